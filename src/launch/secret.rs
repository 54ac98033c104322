//! The job's secret: found in the environment, or made for a job of one host.

use crate::error::{Error, Result};
use std::env;
use std::fmt::Write;

/// The variable that holds the secret as 64 hexadecimal digits.
pub(super) const VARIABLE: &str = "RINGTREE_SECRET";
/// The variable that names a file holding it.
const FILE_VARIABLE: &str = "RINGTREE_SECRET_FILE";

/// A 32-byte secret that all processes of one job hold.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Secret(pub(super) [u8; 32]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Secret(..)")
    }
}

impl Secret {
    /// The secret that the environment gives, if it gives one.
    pub(super) fn from_environment() -> Result<Option<Self>> {
        if let Some(text) = env::var_os(VARIABLE) {
            let text = text.to_string_lossy();
            return Self::parse(&text, VARIABLE).map(Some);
        }
        let Some(path) = env::var_os(FILE_VARIABLE) else {
            return Ok(None);
        };
        let origin = format!("{FILE_VARIABLE} ({})", path.to_string_lossy());
        let text = std::fs::read_to_string(&path)
            .map_err(|error| Error::Configuration(format!("{origin} cannot be read: {error}")))?;
        Self::parse(&text, &origin).map(Some)
    }

    /// A fresh secret from the system's random source.
    pub(super) fn random() -> Result<Self> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes)
            .map_err(|error| Error::System(format!("no random bytes for a secret: {error}")))?;
        Ok(Secret(bytes))
    }

    /// The secret as 64 hexadecimal digits.
    pub(super) fn to_hex(&self) -> String {
        self.0.iter().fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02x}").expect("invariant: writing to a String does not fail");
            text
        })
    }

    fn parse(text: &str, origin: &str) -> Result<Self> {
        let text = text.trim();
        let mut bytes = [0; 32];
        if text.len() != 64 || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(Error::Configuration(format!(
                "{origin} does not hold 64 hexadecimal digits; `openssl rand -hex 32` makes them"
            )));
        }
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16)
                .expect("invariant: the text was found to be hexadecimal digits");
        }
        Ok(Secret(bytes))
    }
}

/// The line that a job of several hosts gets when it has no secret.
pub(super) fn missing() -> Error {
    Error::Configuration(format!(
        "a job of several hosts needs a secret: make one with `openssl rand -hex 32` (or \
         `head -c 32 /dev/urandom | xxd -p -c 64`) and give the same one to every host in \
         {VARIABLE}, or in a file named by {FILE_VARIABLE}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_survives_the_way_through_text() {
        let secret = Secret::random().unwrap();
        let text = format!("{}\n", secret.to_hex());
        assert_eq!(Secret::parse(&text, "test").unwrap(), secret);
        assert_ne!(Secret::random().unwrap(), secret);
    }

    #[test]
    fn anything_but_64_digits_is_refused_and_not_repeated() {
        for text in ["", "abc", &"g".repeat(64), &"0".repeat(65), &"é".repeat(32)] {
            let error = Secret::parse(text, "RINGTREE_SECRET")
                .unwrap_err()
                .to_string();
            assert!(error.contains("RINGTREE_SECRET"), "{error}");
            assert!(text.len() < 4 || !error.contains(text), "{error}");
        }
    }
}
