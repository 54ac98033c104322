//! Splits a text into training sequences.

use crate::replicas;
use candle_core::{Device, Result as CandleResult, Tensor};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt::{Display, Formatter, Result as FmtResult};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Length of the text divided by the length of its validation part, which is at the end.
const VALIDATION_PART: usize = 10;

/// The identity of a text, with which a checkpoint recognizes the text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// Length in bytes.
    bytes: usize,
    /// First 16 hexadecimal digits of the text's SHA-256 digest.
    sha256: String,
}

impl Display for Identity {
    fn fmt(&self, f: &mut Formatter<'_>) -> FmtResult {
        write!(f, "{} bytes, SHA-256 {}...", self.bytes, self.sha256)
    }
}

/// A text as tokens. The token of a byte is its index among the different bytes in the text. The
/// first part of the text is for training and the rest for validation. The text is split at a fixed
/// position, so the split is the same on all ranks.
pub(crate) struct Text {
    /// The text, with each byte replaced by its index in `vocabulary`.
    tokens: Vec<u8>,
    /// The different bytes in the text, in ascending order.
    vocabulary: Vec<u8>,
    identity: Identity,
    /// Number of characters in a sequence.
    block: usize,
    /// Position at which the validation part begins.
    split: usize,
}

impl Text {
    /// Loads the file `path`, or this project's sources if `path` is `None`.
    pub(crate) fn load(path: Option<&Path>, block: usize) -> Result<Self, String> {
        let files = match path {
            Some(path) => vec![path.to_path_buf()],
            None => own_sources()?,
        };
        let mut bytes = Vec::new();
        for file in &files {
            bytes.extend(fs::read(file).map_err(|error| cannot_read(file, &error))?);
        }
        Self::new(&bytes, block)
    }

    /// Splits `bytes` into sequences of `block` characters.
    pub(crate) fn new(bytes: &[u8], block: usize) -> Result<Self, String> {
        let needed = (block + 1) * VALIDATION_PART;
        if bytes.len() < needed {
            return Err(format!(
                "the text has {} bytes; sequences of --block {block} need {needed}",
                bytes.len()
            ));
        }
        let mut place_of = [None; 256];
        for &byte in bytes {
            place_of[usize::from(byte)] = Some(0);
        }
        let mut vocabulary = Vec::new();
        for (byte, place) in (0..=u8::MAX).zip(&mut place_of) {
            if place.is_some() {
                *place = Some(vocabulary.len() as u8);
                vocabulary.push(byte);
            }
        }
        let place = |byte: &u8| place_of[usize::from(*byte)].expect("invariant: it occurs");
        Ok(Self {
            tokens: bytes.iter().map(place).collect(),
            vocabulary,
            identity: Identity {
                bytes: bytes.len(),
                sha256: replicas::short(&Sha256::digest(bytes).into()),
            },
            block,
            split: bytes.len() - bytes.len() / VALIDATION_PART,
        })
    }

    /// Returns the different bytes in the text, in ascending order.
    pub(crate) fn vocabulary(&self) -> &[u8] {
        &self.vocabulary
    }

    /// Returns the identity of the text.
    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Returns all tokens of the text.
    pub(crate) fn tokens(&self) -> &[u8] {
        &self.tokens
    }

    /// Returns the number of training sequences. The sequences do not overlap.
    pub(crate) fn sequences(&self) -> usize {
        (self.split - 1) / self.block
    }

    /// Returns the training sequences with the indices `numbers`, and for each character the one
    /// that follows it.
    pub(crate) fn batch(&self, numbers: &[usize]) -> CandleResult<(Tensor, Tensor)> {
        let starts: Vec<_> = numbers.iter().map(|number| number * self.block).collect();
        self.at(&starts)
    }

    /// Chooses `count` validation sequences at even distances, or all if there are fewer, and
    /// returns those in `part`. Returns `None` if the part is empty.
    pub(crate) fn validation(
        &self,
        count: usize,
        part: impl Fn(usize) -> Range<usize>,
    ) -> CandleResult<Option<(Tensor, Tensor)>> {
        let room = self.split..self.tokens.len() - self.block;
        let count = count.min(room.len());
        let starts: Vec<_> = part(count)
            .map(|number| room.start + number * room.len() / count)
            .collect();
        match starts.is_empty() {
            true => Ok(None),
            false => self.at(&starts).map(Some),
        }
    }

    fn at(&self, starts: &[usize]) -> CandleResult<(Tensor, Tensor)> {
        let shape = (starts.len(), self.block);
        let tensor = |shift: usize| {
            let tokens = starts.iter().flat_map(|start| {
                let range = start + shift..start + shift + self.block;
                self.tokens[range].iter().map(|token| u32::from(*token))
            });
            Tensor::from_vec(tokens.collect::<Vec<_>>(), shape, &Device::Cpu)
        };
        Ok((tensor(0)?, tensor(1)?))
    }
}

/// Returns the Rust files of the library that contains this example, sorted by path.
fn own_sources() -> Result<Vec<PathBuf>, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../src");
    if !root.is_dir() {
        return Err(format!(
            "the default text, this project's sources, is no longer in {}; pass --text FILE",
            root.display()
        ));
    }
    let mut found = Vec::new();
    let mut directories = vec![root];
    while let Some(directory) = directories.pop() {
        let failed = |error| cannot_read(&directory, &error);
        for entry in fs::read_dir(&directory).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

fn cannot_read(path: &Path, error: &std::io::Error) -> String {
    format!("cannot read the text {}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text() -> Text {
        let bytes: Vec<u8> = (0..200u8).collect();
        Text::new(&bytes, 4).unwrap()
    }

    #[test]
    fn targets_are_sequences_shifted_by_one() {
        let (shown, next) = text().batch(&[0, 3]).unwrap();
        let rows = |tensor: Tensor| tensor.to_vec2::<u32>().unwrap();
        assert_eq!(rows(shown), [[0, 1, 2, 3], [12, 13, 14, 15]]);
        assert_eq!(rows(next), [[1, 2, 3, 4], [13, 14, 15, 16]]);
    }

    #[test]
    fn training_never_sees_validation_text() {
        let text = text();
        let all: Vec<_> = (0..text.sequences()).collect();
        let (_, trained) = text.batch(&all).unwrap();
        let last = trained.flatten_all().unwrap().max(0).unwrap();
        let (asked, _) = text.validation(100, |count| 0..count).unwrap().unwrap();
        let first = asked.flatten_all().unwrap().min(0).unwrap();
        let number = |tensor: Tensor| tensor.to_scalar::<u32>().unwrap();
        assert!(number(last) < number(first));
    }

    #[test]
    fn too_short_text_returns_an_error() {
        let message = Text::new(b"abc", 2).err().unwrap();
        assert!(
            message.contains("3 bytes") && message.contains("need 30"),
            "{message}"
        );
    }

    #[test]
    fn default_text_is_this_project() {
        assert!(Text::load(None, 64).unwrap().sequences() > 1000);
    }
}
