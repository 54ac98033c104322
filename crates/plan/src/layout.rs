//! How the elements of a buffer are split over blocks and chunks.

use super::spec::Collective;
use std::ops::Range;

/// How a buffer is split into one block a rank. It is the same on all ranks.
///
/// A buffer is split evenly unless it is lent together with another layout, see
/// [`Layout::of`].
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
    #[doc(hidden)]
    #[must_use]
    pub fn total(self, count: usize) -> Option<usize> {
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

/// A buffer that is split into blocks by a layout of its own, see [`Layout::of`].
#[derive(Clone, Debug)]
pub struct Blocks<'a, B> {
    buffer: B,
    layout: Kept<'a>,
}

impl<'a> Layout<'a> {
    /// `buffer`, or what a reference to it leads to, split by this layout, for the whole buffer of
    /// a call: the output of an all-gather or gather, the input of a reduce-scatter or scatter, or
    /// the buffer of a call in place. All ranks give the same layout. Calls without blocks do not
    /// look at it.
    ///
    /// ```
    /// use ringtree::Layout;
    /// let gathered = ringtree::simulate(3, |comm| {
    ///     let (own, mut all) = (vec![comm.rank() as u8; comm.rank()], [9; 3]);
    ///     let counts = Layout::Counts(&[0, 1, 2]);
    ///     comm.all_gather_into(&own, &mut counts.of(&mut all)).map(|()| all)
    /// });
    /// assert_eq!(gathered, vec![Ok([1, 2, 2]); 3]);
    /// ```
    pub fn of<B>(self, buffer: B) -> Blocks<'a, B> {
        Blocks {
            buffer,
            layout: Kept::Lent(self),
        }
    }
}

impl<B> Blocks<'_, B> {
    /// The same with counts of its own, for calls that go on while the caller does.
    ///
    /// ```
    /// use ringtree::Layout;
    /// let gathered = ringtree::simulate(3, |comm| {
    ///     let counts: Vec<usize> = (0..comm.world_size()).collect();
    ///     let blocks = Layout::Counts(&counts).of(vec![comm.rank() as u8; 3]).into_owned();
    ///     Ok::<_, ringtree::Error>(comm.all_gather_async(blocks)?.wait()?.into_inner())
    /// });
    /// assert_eq!(gathered, vec![Ok(vec![1, 2, 2]); 3]);
    /// ```
    #[must_use]
    pub fn into_owned(self) -> Blocks<'static, B> {
        Blocks {
            layout: Kept::of(self.layout.layout()),
            buffer: self.buffer,
        }
    }

    /// Returns how the buffer is split.
    #[doc(hidden)]
    #[inline]
    #[must_use]
    pub fn layout(&self) -> Layout<'_> {
        self.layout.layout()
    }

    #[doc(hidden)]
    #[inline]
    #[must_use]
    pub fn buffer(&self) -> &B {
        &self.buffer
    }

    #[doc(hidden)]
    #[inline]
    pub fn buffer_mut(&mut self) -> &mut B {
        &mut self.buffer
    }

    /// The buffer.
    #[must_use]
    pub fn into_inner(self) -> B {
        self.buffer
    }
}

/// A layout apart from the buffer that it comes with.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub enum Kept<'a> {
    /// Borrowed counts, or none.
    Lent(Layout<'a>),
    /// Its own counts.
    Counts(Vec<usize>),
}

impl Kept<'_> {
    /// A layout that outlives the borrow of its buffer. Only counts are copied.
    #[inline]
    #[must_use]
    pub fn of(layout: Layout) -> Kept<'static> {
        match layout {
            Layout::Even => Kept::Lent(Layout::Even),
            Layout::Ceil => Kept::Lent(Layout::Ceil),
            Layout::Counts(counts) => Kept::Counts(counts.to_vec()),
        }
    }

    /// Returns the layout.
    #[inline]
    #[must_use]
    pub fn layout(&self) -> Layout<'_> {
        match self {
            Kept::Lent(layout) => *layout,
            Kept::Counts(counts) => Layout::Counts(counts),
        }
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
