//! Selects the source of the link speed table, as set by `RINGTREE_TUNING`.

use super::unique_id::hex;
use crate::error::{Error, Result};
use sha2::{Digest, Sha256};
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

/// The variable that selects the source of the table.
pub(crate) const TUNING: &str = "RINGTREE_TUNING";
/// The variable in which the launcher passes on the table of an earlier attempt.
pub(crate) const JOB_TUNING: &str = "RINGTREE_JOB_TUNING";
/// The value that selects the built-in table.
const BUILT_IN: &str = "built-in";

/// The source of the link speed table. It must be the same on all ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TuningSource {
    /// A measurement at startup if the ranks are on several hosts; otherwise, the built-in table.
    #[default]
    Measured,
    /// The table, as text, that rank 0 measured in an earlier attempt and that the launcher passed
    /// on.
    HandedOn(String),
    /// The built-in table.
    BuiltIn,
    /// A table given as text. Ranks compare the text.
    Text {
        /// The name of the file, or some other description of where the text comes from.
        origin: String,
        /// The table.
        text: String,
    },
    /// A measurement at startup, which is then written to this file. The file does not exist yet.
    MeasuredInto(PathBuf),
}

impl TuningSource {
    /// Returns the source selected by a value of `RINGTREE_TUNING`, which is either `built-in` or
    /// the name of a file. If the file exists, it is read. Otherwise, the table will be measured
    /// and written to the file.
    ///
    /// # Errors
    /// Returns `ErrorKind::Configuration` if the file exists but cannot be read.
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

    /// Returns the value of the setting that ranks compare. The value shows whether the file
    /// exists, because a rank with the file and a rank without it would use different tables.
    pub(super) fn to_agree(&self) -> String {
        match self {
            Self::Measured => "measured at startup".to_owned(),
            Self::BuiltIn => BUILT_IN.to_owned(),
            Self::MeasuredInto(_) => "a file that does not exist yet".to_owned(),
            Self::HandedOn(text) => format!("from the launcher, {}", content(text)),
            Self::Text { text, .. } => content(text),
        }
    }
}

/// Returns a hash that represents the content of `text`.
fn content(text: &str) -> String {
    format!("content {}", hex(&Sha256::digest(text)[..8]))
}

#[cfg(test)]
mod tests;
