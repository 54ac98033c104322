//! Defines the layout of a rank's region.
//!
//! ```text
//! words   cell 0       the doorbell, odd while the owner sleeps; flag for fences by the kernel
//!         cell 1 + q   number of cells of the ring from place q that the owner has acknowledged
//!         ring q       CELLS cells from the owner to place q
//! bytes   row q        segments for place q; the owner's own row is for messages to several peers
//! ```
//!
//! A *place* is the index of a rank among the ranks that share the memory.

use super::ring::{CELL_WORDS, CELLS};
use crate::limits::{GROUP_SEGMENTS_BYTES, SHARED_SEGMENT_BYTES};
use crate::sys::shared::{Division, WORD_BYTES};

/// Minimum and maximum number of segments per row. A sender can be at most this many segments ahead
/// of its receiver.
const ROW_SLOTS: [usize; 2] = [4, 8];
/// Approximate total number of segments in all rows. Rewriting a segment that is still in its
/// readers' caches takes a message between cores for each cache line. So a few additional segments
/// are worthwhile, as long as all segments on a host fit in its last-level cache.
const REGION_SLOTS: usize = 16;
/// Number of segments per row in a small region. The minimum size of these segments is
/// `SMALL_SEGMENT_BYTES_MIN`.
const SMALL_ROW_SLOTS: usize = 3;
pub(in crate::link) const SMALL_SEGMENT_BYTES_MIN: usize = 4 << 10;
/// Size of a page in bytes.
const PAGE_BYTES: usize = 4096;

/// Index of the doorbell word.
pub(crate) const BELL: usize = 0;
/// Index of the word that is 1 if the owner makes the kernel execute a fence in all threads before
/// it sleeps.
pub(crate) const KERNEL_FENCE: usize = 1;

/// The layout of the regions of ranks that share memory.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    ranks: usize,
    row_slots: usize,
    segment_bytes: usize,
}

impl Layout {
    /// Returns the layout for `ranks` ranks that use full-size segments.
    #[must_use]
    pub const fn new(ranks: usize) -> Self {
        let [least, most] = ROW_SLOTS;
        let fair = REGION_SLOTS / if ranks == 0 { 1 } else { ranks };
        let row_slots = if fair < least {
            least
        } else if fair > most {
            most
        } else {
            fair
        };
        Self {
            ranks,
            row_slots,
            segment_bytes: SHARED_SEGMENT_BYTES,
        }
    }

    /// Returns the layout for a group of `ranks` ranks if many such groups may exist. Together,
    /// the segments of a region take up at most [`GROUP_SEGMENTS_BYTES`], unless there are more
    /// than 64 ranks.
    #[must_use]
    pub const fn small(ranks: usize) -> Self {
        let rows = SMALL_ROW_SLOTS * if ranks == 0 { 1 } else { ranks };
        let fair = 1 << (GROUP_SEGMENTS_BYTES / rows).ilog2();
        let segment_bytes = if fair < SMALL_SEGMENT_BYTES_MIN {
            SMALL_SEGMENT_BYTES_MIN
        } else if fair > SHARED_SEGMENT_BYTES {
            SHARED_SEGMENT_BYTES
        } else {
            fair
        };
        Self {
            ranks,
            row_slots: SMALL_ROW_SLOTS,
            segment_bytes,
        }
    }

    /// Returns the number of words and the number of bytes in a region.
    #[must_use]
    pub const fn division(self) -> Division {
        let cells = 1 + self.ranks + self.ranks * CELLS;
        let words = cells * CELL_WORDS;
        Division {
            words: words.next_multiple_of(PAGE_BYTES / WORD_BYTES),
            bytes: self.ranks * self.row_slots * self.segment_bytes,
        }
    }

    /// Returns the number of segments per row.
    #[must_use]
    pub const fn row_slots(self) -> usize {
        self.row_slots
    }

    /// Returns the size of a segment in bytes.
    #[must_use]
    pub const fn segment_bytes(self) -> usize {
        self.segment_bytes
    }

    /// Returns the index of the word in which the owner acknowledges cells of the ring from
    /// `place`.
    #[must_use]
    pub const fn acknowledgement(self, place: usize) -> usize {
        (1 + place) * CELL_WORDS
    }

    /// Returns the index of the first word of the owner's ring to `place`.
    #[must_use]
    pub const fn ring(self, place: usize) -> usize {
        (1 + self.ranks + place * CELLS) * CELL_WORDS
    }

    /// Returns the offset of segment `slot` in row `place`.
    #[must_use]
    pub const fn slot(self, place: usize, slot: usize) -> usize {
        (place * self.row_slots + slot) * self.segment_bytes
    }
}

#[cfg(test)]
mod tests;
