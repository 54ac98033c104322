//! The job's secret: made for a job of one host, asked for otherwise.

use crate::error::{Error, Result};
use crate::random;
use std::fmt::Write;

/// The variable that holds the secret as 64 hexadecimal digits.
pub(super) const VARIABLE: &str = "RINGTREE_SECRET";
/// The variable that names a file holding it.
const FILE_VARIABLE: &str = "RINGTREE_SECRET_FILE";

/// A fresh secret from the system's random source, in the form of the environment.
pub(super) fn random() -> Result<String> {
    let bytes: [u8; 32] =
        random::bytes().map_err(|error| Error::io("the system gives no random bytes", &error))?;
    let mut text = String::new();
    for byte in bytes {
        write!(text, "{byte:02x}").expect("invariant: writing to a String does not fail");
    }
    Ok(text)
}

/// The line that a job of several hosts gets when it has no secret.
pub(super) fn missing() -> Error {
    Error::configuration(format!(
        "a job of several hosts needs a secret: make one with `openssl rand -hex 32` (or \
         `head -c 32 /dev/urandom | xxd -p -c 64`) and give the same one to every host in \
         {VARIABLE}, or in a file named by {FILE_VARIABLE}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::handshake::Secret;

    #[test]
    fn a_made_secret_is_one_and_never_the_same() {
        let made = random().unwrap();
        assert!(Secret::from_hex(&made).is_some());
        assert_ne!(random().unwrap(), made);
    }
}
