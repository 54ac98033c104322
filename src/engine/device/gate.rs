//! Holding a user's stream back until a collective has ended.

use crate::device::{Stream, Word};
use crate::error::Result;

/// What a user's stream waits for: the word gets the value when this is dropped.
#[derive(Debug)]
pub struct Gate {
    word: Word,
    value: u32,
    is_handed_on: bool,
}

impl Gate {
    /// A gate at `word`, which this host can write and which is below `value`.
    #[must_use]
    pub fn new(word: Word, value: u32) -> Self {
        Self {
            word,
            value,
            is_handed_on: false,
        }
    }

    /// What `stream` is told from now on waits for the gate.
    ///
    /// # Errors
    /// The device's.
    pub fn close(&self, stream: &dyn Stream) -> Result<()> {
        stream.wait_word(&self.word, self.value)
    }

    /// Opens when `stream` has done what it was told so far, which waits for nobody.
    pub(super) fn open_behind(mut self, stream: &dyn Stream) {
        // If the stream does not take it, the host opens the gate now.
        self.is_handed_on = stream.write_word(&self.word, self.value).is_ok();
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        if !self.is_handed_on {
            self.word.store(self.value);
        }
    }
}
