//! Encodes and decodes manifests, which are JSON files whose last field is the SHA-256 hash of all
//! bytes before it.
//!
//! Decoding detects any flipped bit and any truncation: either the checksum does not match the
//! bytes before it, or the file does not end with a checksum in the required form.

use super::State;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The manifest format that this version writes, and the only one that it reads.
pub(crate) const FORMAT: u32 = 1;

/// The content of a manifest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    #[serde(rename = "ringtree_checkpoint")]
    pub(crate) format: u32,
    pub(crate) state: State,
    pub(crate) tensors: TensorFile,
}

/// The name, length and checksum of the tensor file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct TensorFile {
    pub(crate) file: String,
    pub(crate) bytes: u64,
    pub(crate) sha256: String,
}

/// The field that every version of the manifest format has.
#[derive(Deserialize)]
struct AnyFormat {
    ringtree_checkpoint: u32,
}

impl Manifest {
    /// Returns the bytes of the manifest file, or a message if the state cannot be encoded as JSON.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, String> {
        let mut text = serde_json::to_vec_pretty(self).map_err(|error| error.to_string())?;
        let body = text.len() - b"\n}".len();
        text.truncate(body);
        let end = end(&text);
        text.extend(end);
        Ok(text)
    }

    /// Decodes the bytes of a manifest file.
    ///
    /// # Errors
    /// Returns a message if the bytes are truncated, damaged, malformed or in a different format.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let end_length = end(&[]).len();
        let body = bytes.len().checked_sub(end_length);
        let (body, found) = bytes.split_at(body.ok_or("it is truncated")?);
        if found != end(body) {
            return Err("it is damaged: its checksum does not match".to_owned());
        }
        let malformed = |error| format!("it is malformed: {error}");
        let AnyFormat {
            ringtree_checkpoint: format,
        } = serde_json::from_slice(bytes).map_err(malformed)?;
        if format != FORMAT {
            return Err(format!(
                "it has format {format}, but this version reads only format {FORMAT}"
            ));
        }
        serde_json::from_slice(bytes).map_err(malformed)
    }
}

/// Returns the bytes that follow `body` in a valid manifest.
pub(crate) fn end(body: &[u8]) -> Vec<u8> {
    let checksum = sha256([body]);
    format!(",\n  \"sha256\": \"{checksum}\"\n}}\n").into_bytes()
}

/// Returns the SHA-256 hash of the concatenated `parts` as hexadecimal digits.
pub(crate) fn sha256<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
    }
    let digest = hash.finalize();
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
