//! Where things lie in a rank's region.
//!
//! ```text
//! words   cell 0       the doorbell: odd while the owner sleeps; if its fence is the kernel's
//!         cell 1 + q   how many cells of place q's ring to it the owner is through with
//!         ring q       CELLS cells from the owner to place q
//! bytes   row q        segments for place q; the owner's own row is for messages to several
//! ```
//!
//! A *place* is a rank's number among those that share the memory.

use super::ring::{CELL_WORDS, CELLS};
use crate::limits::SHARED_SEGMENT_BYTES;
use crate::sys::shared::{Division, WORD_BYTES};

/// The fewest and the most segments of a row. A sender may be so many ahead of its receiver.
const ROW_SLOTS: [usize; 2] = [4, 8];
/// Segments of all rows, roughly. A segment that is written again while its readers' caches still
/// hold it costs a message between the cores for every line of the cache, so a few more are
/// better, as long as all of a host's segments stay in its last level of cache.
const REGION_SLOTS: usize = 16;
/// Bytes of a page.
const PAGE_BYTES: usize = 4096;

/// The word of the doorbell.
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
        let cells = 1 + self.places + self.places * CELLS;
        let words = cells * CELL_WORDS;
        Division {
            words: words.next_multiple_of(PAGE_BYTES / WORD_BYTES),
            bytes: self.places * self.row_slots() * SHARED_SEGMENT_BYTES,
        }
    }

    /// Segments of a row.
    #[must_use]
    pub const fn row_slots(self) -> usize {
        let [least, most] = ROW_SLOTS;
        let fair = REGION_SLOTS / if self.places == 0 { 1 } else { self.places };
        if fair < least {
            least
        } else if fair > most {
            most
        } else {
            fair
        }
    }

    /// Where the owner acknowledges the ring from `place`.
    #[must_use]
    pub const fn acknowledgement(self, place: usize) -> usize {
        (1 + place) * CELL_WORDS
    }

    /// Where the owner's ring to `place` starts.
    #[must_use]
    pub const fn ring(self, place: usize) -> usize {
        (1 + self.places + place * CELLS) * CELL_WORDS
    }

    /// Where segment `slot` of row `place` starts.
    #[must_use]
    pub const fn slot(self, place: usize, slot: usize) -> usize {
        (place * self.row_slots() + slot) * SHARED_SEGMENT_BYTES
    }
}
