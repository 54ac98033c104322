//! How the elements of a buffer are split over blocks and chunks.

use super::spec::Collective;
use std::ops::Range;

/// How a buffer is split into one block a rank. It is the same on all ranks.
///
/// A buffer is split evenly unless it is lent together with another layout, see
/// [`Layout::of`](crate::comm::blocks).
///
/// ```
/// use ringtree::Layout;
/// let blocks = |layout: Layout| [0, 1, 2, 3].map(|rank| layout.block(rank, 4, 5));
/// assert_eq!(blocks(Layout::Even), [0..2, 2..3, 3..4, 4..5]);
/// assert_eq!(blocks(Layout::Ceil), [0..2, 2..4, 4..5, 5..5]);
/// assert_eq!(blocks(Layout::Counts(&[0, 4, 0, 1])), [0..0, 0..4, 4..4, 4..5]);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Layout<'a> {
    /// As evenly as possible: the first `count mod n` blocks are one element longer.
    #[default]
    Even,
    /// Blocks of ⌈count/n⌉ elements, as `torch.chunk` makes them: of the last ones, one may be
    /// shorter and others empty.
    Ceil,
    /// So many elements for each rank, in rank order.
    Counts(&'a [usize]),
}

impl Layout<'_> {
    /// The elements of a buffer of `count` that are the block of `rank` among `world_size` ranks.
    /// With `Counts`, `count` says nothing; a rank beyond them has an empty block. A block ends at
    /// `usize::MAX` at the latest.
    #[must_use]
    pub fn block(self, rank: usize, world_size: usize, count: usize) -> Range<usize> {
        self.start(rank, world_size, count)..self.start(rank + 1, world_size, count)
    }

    fn start(self, block: usize, blocks: usize, count: usize) -> usize {
        match self {
            Layout::Even => part_start(count, blocks, block),
            Layout::Ceil => count.min(block.saturating_mul(count.div_ceil(blocks.max(1)))),
            Layout::Counts(counts) => {
                let before = counts[..block.min(counts.len())].iter();
                before.fold(0, |start, count| start.saturating_add(*count))
            }
        }
    }

    /// How many elements all blocks of a buffer of `count` have together; `None` where that is
    /// more than a number holds.
    pub(crate) fn total(self, count: usize) -> Option<usize> {
        let Layout::Counts(counts) = self else {
            return Some(count);
        };
        let sum = |total: usize, count: &usize| total.checked_add(*count);
        counts.iter().try_fold(0, sum)
    }
}

impl<'a> From<&'a [usize]> for Layout<'a> {
    fn from(counts: &'a [usize]) -> Self {
        Layout::Counts(counts)
    }
}

impl<'a> From<&'a Vec<usize>> for Layout<'a> {
    fn from(counts: &'a Vec<usize>) -> Self {
        Layout::Counts(counts)
    }
}

impl<'a, const N: usize> From<&'a [usize; N]> for Layout<'a> {
    fn from(counts: &'a [usize; N]) -> Self {
        Layout::Counts(counts)
    }
}

/// Where each chunk of a buffer of `count` elements begins.
///
/// Collectives with blocks split into one block a rank first and each block into pieces second, so
/// that a rank's block does not depend on the pieces. Others split into chunks evenly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Division<'a> {
    count: usize,
    blocks: usize,
    pieces: usize,
    layout: Layout<'a>,
}

impl<'a> Division<'a> {
    /// The division of `count` elements, evenly laid out, over `chunks` chunks for `collective` on
    /// `world_size` ranks.
    #[must_use]
    pub fn new(collective: Collective, world_size: usize, chunks: usize, count: usize) -> Self {
        let (blocks, pieces) = match collective.is_blocked() {
            true => (world_size, chunks / world_size),
            false => (chunks, 1),
        };
        Self {
            count,
            blocks,
            pieces,
            layout: Layout::Even,
        }
    }

    /// The same with blocks of another layout.
    #[must_use]
    pub fn laid(self, layout: Layout<'a>) -> Self {
        Self { layout, ..self }
    }

    /// The element at which `chunk` begins; for `chunk` = the number of chunks, `count`.
    #[must_use]
    pub fn start(&self, chunk: usize) -> usize {
        let (block, piece) = (chunk / self.pieces, chunk % self.pieces);
        let Range { start, end } = self.layout.block(block, self.blocks, self.count);
        match piece {
            0 => start,
            _ => start + part_start(end - start, self.pieces, piece),
        }
    }
}

/// The element at which part `index` of `parts` begins when `count` elements are split evenly.
#[must_use]
pub fn part_start(count: usize, parts: usize, index: usize) -> usize {
    index * (count / parts) + index.min(count % parts)
}
