//! Where the bytes of an operation lie, and how they move.
//!
//! *Purpose.* [`Medium`] is what the one interpreter of programs (`engine/run.rs`) is generic over:
//! it carries out single steps, and decides nothing about their order. [`host`] moves host bytes
//! over links and reduces them with the CPU; [`enqueued`] writes down what a device's stream is
//! told.

#[cfg(feature = "cuda")]
pub(crate) mod enqueued;
pub(crate) mod host;

use super::program::{Endpoint, Piece, rest};
use crate::link::LinkError;

/// A link that failed an operation.
#[derive(Debug)]
pub struct Broken {
    /// The peer at the link's other end.
    pub peer: usize,
    /// What happened.
    pub error: LinkError,
}

/// How many bytes moved; 0 when the link is full or nothing has arrived.
pub(crate) type Moved = Result<usize, Broken>;

/// Part of a message: how long the message is, and from which of its bytes on the part goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// Bytes of the whole message.
    pub message_bytes: usize,
    /// Bytes of it that are done.
    pub offset: usize,
}

/// How to reduce.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operands<'a> {
    /// The messages, in the order of the fold.
    pub from: &'a [Endpoint],
    /// The place of this rank's bytes among the operands.
    pub own: Option<usize>,
    /// Whether the result is complete.
    pub completes: bool,
}

/// Carries out steps. No method blocks.
pub(crate) trait Medium {
    /// Sends the bytes of `piece` to every peer of `to`, which all take the same number of them.
    fn send(&mut self, to: &[Endpoint], part: Part, piece: Piece, exposes: bool) -> Moved;

    /// Sends `bytes` bytes of several pieces to one peer, from byte `part.offset` of them on; it
    /// may send those of one piece alone.
    fn send_pieces(&mut self, to: Endpoint, part: Part, pieces: &[Piece], bytes: usize) -> Moved {
        self.send(&[to], part, rest(pieces, part.offset, bytes), false)
    }

    /// Stores what has come of a message.
    fn store(&mut self, from: Endpoint, part: Part, into: Piece) -> Moved;

    /// Reduces what has come of all messages. This rank's bytes, if they are an operand, lie where
    /// the result goes.
    fn reduce(&mut self, operands: Operands<'_>, part: Part, into: Piece) -> Moved;

    /// The same with this rank's bytes in `own`, elsewhere.
    fn reduce_from(&mut self, operands: Operands<'_>, own: Piece, part: Part, into: Piece)
    -> Moved;

    /// Copies bytes of this rank; both pieces are equally long.
    fn copy(&mut self, from: Piece, to: Piece);

    /// Reduces bytes of this rank, in one fold: of every stream of `from`, the bytes from `offset`
    /// on that fit `into`, which lie in one piece.
    fn fold(&mut self, from: &[Vec<Piece>], offset: usize, into: Piece, completes: bool);

    /// Whether it is worth trying to receive from `peer`.
    fn is_ready(&self, peer: usize) -> bool;

    /// The place of what was sent to `peer` last, for [`Medium::is_through`].
    fn position(&self, peer: usize) -> usize;

    /// Whether `peer` has read everything up to `position`.
    fn is_through(&mut self, peer: usize, position: usize) -> bool;

    /// Bytes that must not be torn apart.
    fn element_bytes(&self) -> usize;

    /// Makes sure that peers notice what was sent.
    fn flush(&mut self);

    /// The first bytes of a step are about to be tried.
    #[inline]
    fn tries(&mut self) {}

    /// Bytes of step number `step` have moved: its first, its last, or others.
    #[inline]
    fn moved(&mut self, _step: usize, _is_first: bool, _is_last: bool) {}
}
