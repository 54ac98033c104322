//! Moves and reduces the bytes of an operation.
//!
//! *Purpose.* The interpreter of programs (`engine/run.rs`) is generic over [`Medium`]. A medium
//! performs single steps and does not decide their order. [`host`] moves bytes in host memory over
//! links and reduces them on the CPU. [`enqueued`] records entries for a device's streams.

#[cfg(feature = "cuda")]
pub(crate) mod enqueued;
pub(crate) mod host;

use super::program::{Endpoint, Piece, rest};
use crate::link::LinkError;

/// A link error that caused an operation to fail.
#[derive(Debug)]
pub struct Broken {
    /// The peer at the other end of the link.
    pub peer: usize,
    /// The error.
    pub error: LinkError,
}

/// The number of bytes that were moved. It is 0 if the link is full or nothing has arrived.
pub(crate) type Moved = Result<usize, Broken>;

/// The rest of a message, starting at a given byte.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// Number of bytes in the complete message.
    pub message_bytes: usize,
    /// Number of bytes that precede the part.
    pub offset: usize,
}

/// The operands of a reduction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operands<'a> {
    /// The messages, in the order in which they are reduced.
    pub from: &'a [Endpoint],
    /// Index of this rank's bytes among the operands. `None` if the reduction does not use them.
    pub own: Option<usize>,
    /// `true` if the result is complete.
    pub completes: bool,
}

/// An executor of single steps. No method blocks.
pub(crate) trait Medium {
    /// Sends bytes of `piece` to every peer in `to`, or exposes them if `exposes` is `true`. All
    /// peers get the same number of bytes.
    fn send(&mut self, to: &[Endpoint], part: Part, piece: Piece, exposes: bool) -> Moved;

    /// Sends at most `bytes` bytes of several pieces to one peer, beginning with byte `part.offset`
    /// of the pieces. An implementation may stop after the first piece.
    fn send_pieces(&mut self, to: Endpoint, part: Part, pieces: &[Piece], bytes: usize) -> Moved {
        self.send(&[to], part, rest(pieces, part.offset, bytes), false)
    }

    /// Stores the bytes of a message that have arrived.
    fn store(&mut self, from: Endpoint, part: Part, into: Piece) -> Moved;

    /// Reduces the bytes that have arrived from all messages. If this rank's bytes are an operand,
    /// they are stored at the destination.
    fn reduce(&mut self, operands: Operands<'_>, part: Part, into: Piece) -> Moved;

    /// Like [`Medium::reduce`], but this rank's bytes are in `own`, which is not at the
    /// destination.
    fn reduce_from(&mut self, operands: Operands<'_>, own: Piece, part: Part, into: Piece)
    -> Moved;

    /// Copies bytes of this rank. Both pieces have the same length.
    fn copy(&mut self, from: Piece, to: Piece);

    /// Combines bytes of this rank in a single reduction. Each stream in `from` provides one
    /// operand, which begins at byte `offset` of the stream and is as long as `into`. The bytes of
    /// an operand are contiguous.
    fn fold(&mut self, from: &[Vec<Piece>], offset: usize, into: Piece, completes: bool);

    /// Returns `false` if a receive from `peer` cannot make progress now.
    fn is_ready(&self, peer: usize) -> bool;

    /// Returns the position of the last bytes sent to `peer`, for [`Medium::is_acknowledged`].
    fn position(&self, peer: usize) -> usize;

    /// Returns `true` if `peer` has read everything up to `position`.
    fn is_acknowledged(&mut self, peer: usize, position: usize) -> bool;

    /// Returns the number of bytes per element. Elements are never split.
    fn element_bytes(&self) -> usize;

    /// Makes sure that peers notice the bytes that were sent.
    fn flush(&mut self);

    /// Called before an attempt to move the first bytes of a step.
    #[inline]
    fn tries(&mut self) {}

    /// Called when bytes of a step have moved. The flags indicate whether these bytes include the
    /// step's first and last bytes.
    #[inline]
    fn moved(&mut self, _step: usize, _is_first: bool, _is_last: bool) {}
}
