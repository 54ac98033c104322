//! The job's secret: found in the environment, or made for a job of one host.

use crate::error::{Error, Result};
use crate::protocol::handshake::Secret;
use std::env;
use std::fmt::Write;

/// The variable that holds the secret as 64 hexadecimal digits.
pub(super) const VARIABLE: &str = "RINGTREE_SECRET";
/// The variable that names a file holding it.
const FILE_VARIABLE: &str = "RINGTREE_SECRET_FILE";

/// The secret that the environment gives, if it gives one.
pub(super) fn from_environment() -> Result<Option<Secret>> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty());
    if let Some(text) = set(VARIABLE) {
        return parse(&text.to_string_lossy(), VARIABLE).map(Some);
    }
    let Some(path) = set(FILE_VARIABLE) else {
        return Ok(None);
    };
    let origin = format!("{FILE_VARIABLE} ({})", path.to_string_lossy());
    let text = std::fs::read_to_string(&path)
        .map_err(|error| Error::Configuration(format!("{origin} cannot be read: {error}")))?;
    parse(&text, &origin).map(Some)
}

/// A fresh secret from the system's random source, in the form of the environment.
pub(super) fn random() -> Result<String> {
    let bytes: [u8; 32] = random_bytes()?;
    let mut text = String::new();
    for byte in bytes {
        write!(text, "{byte:02x}").expect("invariant: writing to a String does not fail");
    }
    Ok(text)
}

/// Fresh bytes from the system's random source.
pub(super) fn random_bytes<const COUNT: usize>() -> Result<[u8; COUNT]> {
    let mut bytes = [0; COUNT];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::System(format!("the system gives no random bytes: {error}")))?;
    Ok(bytes)
}

/// The line that a job of several hosts gets when it has no secret.
pub(super) fn missing() -> Error {
    Error::Configuration(format!(
        "a job of several hosts needs a secret: make one with `openssl rand -hex 32` (or \
         `head -c 32 /dev/urandom | xxd -p -c 64`) and give the same one to every host in \
         {VARIABLE}, or in a file named by {FILE_VARIABLE}"
    ))
}

fn parse(text: &str, origin: &str) -> Result<Secret> {
    // The text is not repeated: it may be the secret with a typing error.
    Secret::from_hex(text).ok_or_else(|| {
        Error::Configuration(format!(
            "{origin} does not hold 64 hexadecimal digits; `openssl rand -hex 32` makes them"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_made_secret_is_one_and_never_the_same() {
        let made = random().unwrap();
        assert!(parse(&format!("{made}\n"), "test").is_ok());
        assert_ne!(random().unwrap(), made);
    }

    #[test]
    fn anything_but_64_digits_is_refused_and_not_repeated() {
        for text in ["abc", &"g".repeat(64), &"0".repeat(65), &"é".repeat(32)] {
            let error = parse(text, VARIABLE).unwrap_err().to_string();
            assert!(error.contains("RINGTREE_SECRET"), "{error}");
            assert!(text.len() < 4 || !error.contains(text), "{error}");
        }
    }
}
