//! Generates the secret for a job on a single host. For a job on several hosts, the user must
//! provide the secret.

use crate::error::{Error, Result};
use crate::random;

/// The variable that holds the secret as 64 hexadecimal digits.
pub(super) const VARIABLE: &str = "RINGTREE_SECRET";
/// The variable that holds the name of a file that contains the secret.
const FILE_VARIABLE: &str = "RINGTREE_SECRET_FILE";

/// Returns a random secret as 64 hexadecimal digits.
pub(super) fn random() -> Result<String> {
    let bytes: [u8; 32] =
        random::bytes().map_err(|error| Error::io("cannot get random bytes", &error))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Returns the error for a job on several hosts that has no secret.
pub(super) fn missing() -> Error {
    Error::configuration(format!(
        "a job on several hosts needs a secret; generate one with `openssl rand -hex 32` (or `head \
         -c 32 /dev/urandom | xxd -p -c 64`) and set {VARIABLE} to it on every host, or set \
         {FILE_VARIABLE} to the path of a file that contains it"
    ))
}

#[cfg(test)]
mod tests;
