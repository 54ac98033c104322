//! Encodes where a cell's payload is stored and how long the payload is.

use super::ring::INLINE_BYTES;
use crate::limits::SHARED_SEGMENT_BYTES;

/// The memory in which a cell's payload is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// The cell itself.
    Inline,
    /// A segment for this peer, in this slot.
    Slot(usize),
    /// A segment for several peers, in this slot.
    Staged(usize),
    /// Memory that the sender exposes. The cell contains a locator.
    Exposed,
}

/// Number of low bits that hold the length.
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
        // Both values fit: `bytes` is at most the size of a segment, and a row has at most 8 slots.
        bytes as u32 | (slot as u32) << LENGTH_BITS | kind << KIND_BITS
    }

    /// Decodes the length and the form. Returns `None` if they are invalid.
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
