//! Implements the staged path, which copies between device memory and pinned host memory. Words
//! synchronize the copies with the engine's operations.
//!
//! For each round of a call, the caller's thread enqueues these entries on the streams of the
//! [lane](super::lane) before it does anything else:
//!
//! ```text
//! stream "in":   for each piece: copy in,  write READY = its number
//! stream "out":  for each piece: wait for DONE = its number, copy out
//! ```
//!
//! The engine's operation on a piece begins when READY has reached the piece's number. When the
//! operation has succeeded or failed, [`StagedGate`] stores the number in DONE. All entries of "in"
//! are enqueued before those of "out", so no copy in is enqueued after a wait for the operation
//! that needs it.

use super::lane::{ENTRIES_BESIDE, Lane, READY, done_at, is_reached};
use crate::engine::gate::Gate;
use crate::error::Result;
use crate::sys::cuda::{Memory, Pinned, Rows};
use std::sync::Arc;

/// A piece of a call, and the rows that are copied in and out. On the host, all rows are in the
/// piece's part of the pinned memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Number of elements in the engine's operation.
    pub(crate) count: usize,
    /// Offset of the piece in the round's pinned memory.
    pub(crate) host_at: usize,
    /// Length in bytes.
    pub(crate) bytes: usize,
    /// Rows that together contain all bytes of the piece, in order.
    pub(crate) rows: Vec<Rows>,
    /// Rows that are copied to the host.
    pub(crate) inputs: Vec<Rows>,
    /// Rows that are copied back to the device.
    pub(crate) outputs: Vec<Rows>,
}

/// Returns the maximum number of entries in each stream for a round of these pieces.
pub(crate) fn entries(pieces: &[Piece]) -> usize {
    let of = |piece: &Piece| 1 + piece.inputs.len().max(piece.outputs.len());
    ENTRIES_BESIDE + pieces.iter().map(of).sum::<usize>()
}

impl Lane {
    /// Returns the gate of the next piece.
    pub(crate) fn next_gate(&mut self) -> StagedGate {
        self.piece = self.piece.wrapping_add(1);
        StagedGate {
            words: Arc::clone(&self.words),
            number: self.piece,
        }
    }

    /// Enqueues a round of `pieces` and returns the round's number. The last gates that were
    /// created must be the gates of these pieces. The host stores the words of these pieces even if
    /// their operations fail.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub(crate) fn enqueue(
        &mut self,
        memory: &Memory,
        pinned: &Pinned,
        pieces: &[Piece],
    ) -> Result<u32> {
        let first = self.piece.wrapping_sub(pieces.len() as u32).wrapping_add(1);
        let numbers = (0..pieces.len() as u32).map(|nth| first.wrapping_add(nth));
        let round = self.begin_round()?;
        for (number, piece) in numbers.clone().zip(pieces) {
            for rows in &piece.inputs {
                self.input.copy_in(memory, pinned, rows)?;
            }
            self.input.write_word(&self.words, READY, number)?;
        }
        for (number, piece) in numbers.zip(pieces) {
            self.output
                .wait_word(&self.words, done_at(number), number)?;
            for rows in &piece.outputs {
                self.output.copy_out(pinned, memory, rows)?;
            }
        }
        self.end_round()?;
        Ok(round)
    }
}

/// A gate between a piece's operation and the lane's streams. The operation begins when its input
/// is in pinned memory. When the operation has succeeded or failed, the stream "out" continues.
pub(crate) struct StagedGate {
    words: Arc<Pinned>,
    number: u32,
}

impl Gate for StagedGate {
    fn is_ready(&self) -> bool {
        is_reached(&self.words, READY, self.number)
    }

    fn open(&self, _succeeded: bool) {
        let stored = self.words.store(done_at(self.number), self.number);
        stored.expect("invariant: the word is in the lane");
    }
}
