//! What the head of a cell says of its payload: where it lies, and how long it is.

use super::ring::INLINE_BYTES;
use crate::limits::SHARED_SEGMENT_BYTES;

/// Where a cell's payload lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Beside the flag.
    Inline,
    /// In a segment for this peer.
    Slot(usize),
    /// In a segment for several peers.
    Staged(usize),
    /// In memory that the sender exposes; a locator lies beside the flag.
    Exposed,
}

/// Bits of a form that hold the length.
const LENGTH_BITS: u32 = 24;
const KIND_BITS: u32 = 28;

impl Form {
    #[inline]
    pub(super) fn encode(self, bytes: usize) -> u32 {
        let (kind, slot) = match self {
            Form::Inline => (0, 0),
            Form::Slot(slot) => (1, slot),
            Form::Staged(slot) => (2, slot),
            Form::Exposed => (3, 0),
        };
        // Both are small: a segment's length, a slot of a row.
        bytes as u32 | (slot as u32) << LENGTH_BITS | kind << KIND_BITS
    }

    /// The length and the place, if they can be.
    #[inline]
    pub(super) fn decode(word: u32) -> Option<(usize, Self)> {
        let bytes = (word & ((1 << LENGTH_BITS) - 1)) as usize;
        let slot = (word >> LENGTH_BITS & 0xf) as usize;
        let (most, form) = match word >> KIND_BITS {
            0 => (INLINE_BYTES, Form::Inline),
            1 => (SHARED_SEGMENT_BYTES, Form::Slot(slot)),
            2 => (SHARED_SEGMENT_BYTES, Form::Staged(slot)),
            3 => (SHARED_SEGMENT_BYTES, Form::Exposed),
            _ => return None,
        };
        (bytes > 0 && bytes <= most).then_some((bytes, form))
    }
}
