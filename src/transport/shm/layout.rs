//! Where things lie in a rank's region.
//!
//! ```text
//! words   line 0            the bell: odd while the owner sleeps; whether its fence is the kernel's
//!         line 1 + q        how many lines of place q's lane to the owner the owner is through with
//!         lane q            LINES lines from the owner to place q
//! bytes   row q             LANE_SLOTS segments for place q; the owner's own row is for messages
//!                           to several places
//! ```
//!
//! A *place* is a rank's number among those that share the memory.

use super::lane::{LINE_WORDS, LINES};
use crate::limits::SHARED_SEGMENT_BYTES;
use crate::sys::shared::{Division, WORD_BYTES};

/// Segments of a row. A sender may be so many ahead of its receiver.
pub const ROW_SLOTS: usize = 4;
/// Bytes of a page.
const PAGE_BYTES: usize = 4096;

/// The word of the bell.
pub const BELL: usize = 0;
/// The word that is 1 if the owner has the kernel fence before it sleeps.
pub const KERNEL_FENCE: usize = 1;

/// The layout of the regions of `places` ranks.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    places: usize,
}

impl Layout {
    /// For so many ranks.
    #[must_use]
    pub const fn new(places: usize) -> Self {
        Self { places }
    }

    /// Words and bytes of a region.
    #[must_use]
    pub const fn division(self) -> Division {
        let lines = 1 + self.places + self.places * LINES;
        let words = lines * LINE_WORDS;
        Division {
            words: words.next_multiple_of(PAGE_BYTES / WORD_BYTES),
            bytes: self.places * ROW_SLOTS * SHARED_SEGMENT_BYTES,
        }
    }

    /// Where the owner acknowledges the lane from `place`.
    #[must_use]
    pub const fn acknowledgement(self, place: usize) -> usize {
        (1 + place) * LINE_WORDS
    }

    /// Where the owner's lane to `place` starts.
    #[must_use]
    pub const fn lane(self, place: usize) -> usize {
        (1 + self.places + place * LINES) * LINE_WORDS
    }

    /// Where segment `slot` of row `place` starts.
    #[must_use]
    pub const fn slot(self, place: usize, slot: usize) -> usize {
        (place * ROW_SLOTS + slot) * SHARED_SEGMENT_BYTES
    }
}
