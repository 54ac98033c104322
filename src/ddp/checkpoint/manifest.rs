//! The manifest: JSON whose last field is a checksum of all that stands before it.
//!
//! Whatever bit is flipped and wherever the text is cut, either the checksum no longer fits what
//! it covers, or the end is no longer the end that the checksum demands.

use super::State;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The format that this version writes, and the only one it reads.
const FORMAT: u32 = 1;

/// What a manifest says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) state: State,
    pub(crate) tensors: TensorFile,
}

/// The file that the tensors are in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct TensorFile {
    pub(crate) file: String,
    pub(crate) bytes: u64,
    pub(crate) sha256: String,
}

/// What is written: without the last brace, which follows the checksum.
#[derive(Serialize)]
struct Written<'a> {
    ringtree_checkpoint: u32,
    #[serde(flatten)]
    manifest: &'a Manifest,
}

/// What can be read of any format.
#[derive(Deserialize)]
struct AnyFormat {
    ringtree_checkpoint: u32,
}

impl Manifest {
    /// The file's bytes.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, String> {
        let written = Written {
            ringtree_checkpoint: FORMAT,
            manifest: self,
        };
        let mut text = serde_json::to_vec_pretty(&written).map_err(|error| error.to_string())?;
        let body = text.len() - b"\n}".len();
        text.truncate(body);
        let end = end(&text);
        text.extend(end);
        Ok(text)
    }

    /// Reads the file's bytes.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let end_length = end(&[]).len();
        let body = bytes.len().checked_sub(end_length);
        let (body, found) = bytes.split_at(body.ok_or("it is cut short")?);
        if found != end(body) {
            return Err("it is damaged: its checksum does not fit".to_owned());
        }
        let malformed = |error| format!("it is malformed: {error}");
        let AnyFormat {
            ringtree_checkpoint: format,
        } = serde_json::from_slice(bytes).map_err(malformed)?;
        if format != FORMAT {
            return Err(format!(
                "it has format {format}, and this version reads {FORMAT}"
            ));
        }
        serde_json::from_slice(bytes).map_err(malformed)
    }
}

/// What follows `body` in a whole manifest.
pub(crate) fn end(body: &[u8]) -> Vec<u8> {
    let checksum = hexadecimal(&Sha256::digest(body));
    format!(",\n  \"sha256\": \"{checksum}\"\n}}\n").into_bytes()
}

/// The SHA-256 of `parts` one after another.
pub(crate) fn sha256<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
    }
    hexadecimal(&hash.finalize())
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        Manifest {
            state: State {
                run_id: "a \"name\"".to_owned(),
                step: 7,
                seed: u64::MAX,
                user: serde_json::json!({ "loss": 0.1 + 0.2, "lines": "a\n}" }),
                ..State::default()
            },
            tensors: TensorFile {
                file: "step-00000007.safetensors".to_owned(),
                bytes: 12,
                sha256: sha256([]),
            },
        }
    }

    #[test]
    fn it_comes_back_and_is_json() {
        let bytes = manifest().encode().unwrap();
        assert_eq!(Manifest::decode(&bytes), Ok(manifest()));
        let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(json["tensors"]["bytes"], 12);
        assert!(json["sha256"].is_string());
    }

    #[test]
    fn no_flipped_bit_and_no_cut_is_read() {
        let whole = manifest().encode().unwrap();
        for length in 0..whole.len() {
            assert!(
                Manifest::decode(&whole[..length]).is_err(),
                "cut to {length}"
            );
        }
        for bit in 0..whole.len() * 8 {
            let mut damaged = whole.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Manifest::decode(&damaged).is_err(), "bit {bit}");
        }
        let longer = [&whole[..], b"\n"].concat();
        assert!(Manifest::decode(&longer).is_err());
    }

    #[test]
    fn what_is_whole_but_foreign_is_refused_in_words() {
        let sealed = |body: &str| {
            let mut bytes = body.as_bytes().to_vec();
            bytes.extend(end(body.as_bytes()));
            Manifest::decode(&bytes).unwrap_err()
        };
        let next = sealed("{\n  \"ringtree_checkpoint\": 2");
        assert!(next.contains("format 2"), "{next}");
        assert!(sealed("{\n  \"ringtree_checkpoint\": 1").contains("malformed"));
        assert!(sealed("no JSON").contains("malformed"));
        assert_eq!(Manifest::decode(b"{}"), Err("it is cut short".to_owned()));
    }
}
