//! The staged path: copies between a device's memory and pinned memory of the host, tied to the
//! host's operations by words.
//!
//! For each round of a call the caller's thread enqueues on the streams of its
//! [lane](super::lane)
//!
//! ```text
//! stream "in":   for each piece: copy in,  write READY = its number
//! stream "out":  for each piece: wait for DONE = its number, copy out
//! ```
//!
//! and all of that before it does anything else. The host's operation on a piece begins when it
//! sees READY, and stores DONE when it has ended, well or not ([`StagedGate`]). The entries of "in"
//! come before those of "out", so nothing is enqueued behind a wait that the waited-for operation
//! needs.

use super::lane::{ENTRIES_BESIDE, Lane, READY, done_at, has_come};
use crate::engine::gate::Gate;
use crate::error::Result;
use crate::sys::cuda::{Memory, Pinned, Rows};
use std::sync::Arc;

/// A piece of a call: what is copied in and out. The host's part of all rows is the piece's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Elements of the host's operation.
    pub(crate) count: usize,
    /// Where its bytes begin in the round's pinned memory, and how many there are.
    pub(crate) host_at: usize,
    pub(crate) bytes: usize,
    /// Where all of its bytes lie, from its first on.
    pub(crate) rows: Vec<Rows>,
    pub(crate) inputs: Vec<Rows>,
    pub(crate) outputs: Vec<Rows>,
}

/// Entries of one of the queues for a round of these pieces, at most.
pub(crate) fn entries(pieces: &[Piece]) -> usize {
    let of = |piece: &Piece| 1 + piece.inputs.len().max(piece.outputs.len());
    ENTRIES_BESIDE + pieces.iter().map(of).sum::<usize>()
}

impl Lane {
    /// The gate of the next piece.
    pub(crate) fn next_gate(&mut self) -> StagedGate {
        self.piece = self.piece.wrapping_add(1);
        StagedGate {
            words: Arc::clone(&self.words),
            number: self.piece,
        }
    }

    /// Enqueues a round, whose pieces' gates were the last that were taken; its number. The words
    /// of its pieces are stored by the host, whatever happens.
    ///
    /// # Errors
    /// The driver's.
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

/// Ties a piece's operation to the lane's streams: it begins when its input lies in pinned memory,
/// and when it has ended, well or not, the stream "out" goes on.
pub(crate) struct StagedGate {
    words: Arc<Pinned>,
    number: u32,
}

impl Gate for StagedGate {
    fn is_ready(&self) -> bool {
        has_come(&self.words, READY, self.number)
    }

    fn open(&self, _succeeded: bool) {
        let stored = self.words.store(done_at(self.number), self.number);
        stored.expect("invariant: a word of the lane");
    }
}
