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
use crate::limits::{GROUP_SEGMENTS_BYTES, SHARED_SEGMENT_BYTES};
use crate::sys::shared::{Division, WORD_BYTES};

/// The fewest and the most segments of a row. A sender may be so many ahead of its receiver.
const ROW_SLOTS: [usize; 2] = [4, 8];
/// Segments of all rows, roughly. A segment that is written again while its readers' caches still
/// hold it costs a message between the cores for every line of the cache, so a few more are
/// better, as long as all of a host's segments stay in its last level of cache.
const REGION_SLOTS: usize = 16;
/// Segments of a row of a small region, and the least bytes of each.
const SMALL_ROW_SLOTS: usize = 3;
pub(in crate::link) const SMALL_SEGMENT_BYTES_MIN: usize = 4 << 10;
/// Bytes of a page.
const PAGE_BYTES: usize = 4096;

/// The word of the doorbell.
pub(crate) const BELL: usize = 0;
/// The word that is 1 if the owner has the kernel fence before it sleeps.
pub(crate) const KERNEL_FENCE: usize = 1;

/// The layout of the regions of `places` ranks.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    places: usize,
    row_slots: usize,
    segment_bytes: usize,
}

impl Layout {
    /// For so many ranks, with segments as large as are of use.
    #[must_use]
    pub const fn new(places: usize) -> Self {
        let [least, most] = ROW_SLOTS;
        let fair = REGION_SLOTS / if places == 0 { 1 } else { places };
        let row_slots = if fair < least {
            least
        } else if fair > most {
            most
        } else {
            fair
        };
        Self {
            places,
            row_slots,
            segment_bytes: SHARED_SEGMENT_BYTES,
        }
    }

    /// For so many ranks of a group of which there may be many: a region's segments take
    /// [`GROUP_SEGMENTS_BYTES`] together, unless there are more than 64 ranks.
    #[must_use]
    pub const fn small(places: usize) -> Self {
        let rows = SMALL_ROW_SLOTS * if places == 0 { 1 } else { places };
        let fair = 1 << (GROUP_SEGMENTS_BYTES / rows).ilog2();
        let segment_bytes = if fair < SMALL_SEGMENT_BYTES_MIN {
            SMALL_SEGMENT_BYTES_MIN
        } else if fair > SHARED_SEGMENT_BYTES {
            SHARED_SEGMENT_BYTES
        } else {
            fair
        };
        Self {
            places,
            row_slots: SMALL_ROW_SLOTS,
            segment_bytes,
        }
    }

    /// Words and bytes of a region.
    #[must_use]
    pub const fn division(self) -> Division {
        let cells = 1 + self.places + self.places * CELLS;
        let words = cells * CELL_WORDS;
        Division {
            words: words.next_multiple_of(PAGE_BYTES / WORD_BYTES),
            bytes: self.places * self.row_slots * self.segment_bytes,
        }
    }

    /// Segments of a row.
    #[must_use]
    pub const fn row_slots(self) -> usize {
        self.row_slots
    }

    /// Bytes of a segment.
    #[must_use]
    pub const fn segment_bytes(self) -> usize {
        self.segment_bytes
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
        (place * self.row_slots + slot) * self.segment_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_region_takes_its_share_whatever_the_number_of_ranks() {
        for (places, segment_kib) in [(1, 128), (2, 128), (3, 64), (4, 64), (8, 32), (64, 4)] {
            let layout = Layout::small(places);
            assert_eq!(layout.segment_bytes(), segment_kib << 10, "{places}");
            assert!(layout.division().bytes <= GROUP_SEGMENTS_BYTES, "{places}");
            assert!(layout.row_slots() >= 2, "a link holds two messages");
        }
        assert_eq!(Layout::small(1000).segment_bytes(), SMALL_SEGMENT_BYTES_MIN);
    }
}
