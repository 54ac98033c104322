//! Where the table of link speeds comes from: `RINGTREE_TUNING`.

use crate::error::{Error, Result};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

/// The setting.
pub(crate) const TUNING: &str = "RINGTREE_TUNING";
/// The table of an earlier attempt of the job, from the launcher.
pub(crate) const JOB_TUNING: &str = "RINGTREE_JOB_TUNING";
/// The value that asks for the table that is built in.
const BUILT_IN: &str = "built-in";

/// Where the table of link speeds comes from. The same on all ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TuningSource {
    /// It is measured when the ranks have met, if they are on several hosts.
    #[default]
    Measured,
    /// The launcher hands on, as text, what rank 0 of an earlier attempt of the job left.
    HandedOn(String),
    /// The one that is built in.
    BuiltIn,
    /// A table as text, and where that came from. It is compared over ranks.
    Text {
        /// A file's name, or whatever tells a reader where to look.
        origin: String,
        /// The table.
        text: String,
    },
    /// It is measured, and written to this file, which was not there.
    MeasuredInto(PathBuf),
}

impl TuningSource {
    /// What a value of `RINGTREE_TUNING` asks for: `built-in`, or a file. One that is there is
    /// read; one that is not will be written, once the table has been measured.
    ///
    /// # Errors
    /// [`Error::configuration`] if the file cannot be read.
    ///
    /// ```
    /// use ringtree::internal::bootstrap::TuningSource;
    /// assert_eq!(TuningSource::of_setting("built-in")?, TuningSource::BuiltIn);
    /// # Ok::<(), ringtree::Error>(())
    /// ```
    pub fn of_setting(value: &str) -> Result<Self> {
        let value = value.trim();
        if value == BUILT_IN {
            return Ok(Self::BuiltIn);
        }
        match fs::read_to_string(value) {
            Ok(text) => Ok(Self::Text {
                origin: value.to_owned(),
                text,
            }),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Ok(Self::MeasuredInto(value.into()))
            }
            Err(error) => Err(Error::configuration(format!(
                "{TUNING}={value} cannot be read: {error}"
            ))),
        }
    }

    /// What is compared over ranks. Ranks that have the file and ranks that have not would choose
    /// by different tables.
    pub(super) fn to_agree(&self) -> (String, String) {
        let source = match self {
            Self::Measured => "measured at connect".to_owned(),
            Self::BuiltIn => BUILT_IN.to_owned(),
            Self::MeasuredInto(_) => "a file that is not there yet".to_owned(),
            Self::HandedOn(text) => format!("the launcher's, {}", content(text)),
            Self::Text { text, .. } => content(text),
        };
        (TUNING.to_owned(), source)
    }
}

/// What stands for the content of `text`.
fn content(text: &str) -> String {
    let mut hash = String::from("content ");
    for byte in &Sha256::digest(text)[..8] {
        // Writing to a string cannot fail.
        let _ = write!(hash, "{byte:02x}");
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_compared_by_content() {
        let tuned = |content: &str| {
            let file = tempfile::NamedTempFile::new().unwrap();
            fs::write(file.path(), content).unwrap();
            TuningSource::of_setting(file.path().to_str().unwrap())
                .unwrap()
                .to_agree()
        };
        assert_eq!(tuned("a"), tuned("a"));
        assert_ne!(tuned("a"), tuned("b"));
        let absent = TuningSource::of_setting("/no/such").unwrap();
        assert_eq!(absent, TuningSource::MeasuredInto("/no/such".into()));
        assert_ne!(absent.to_agree(), tuned("a"));
        assert_ne!(absent.to_agree(), TuningSource::Measured.to_agree());
        assert_ne!(
            TuningSource::Measured.to_agree(),
            TuningSource::BuiltIn.to_agree()
        );
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap();
        let error = TuningSource::of_setting(path).unwrap_err();
        assert!(error.to_string().contains(path), "{error}");
    }
}
