//! Splits the elements of a buffer into blocks and chunks.

use super::spec::Collective;
use crate::spec::is_blocked;
use std::ops::Range;

/// The division of a buffer into one block per rank. All ranks use the same layout.
///
/// A buffer is split evenly unless it is passed with a different layout (see [`Layout::of`]).
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
    /// Blocks that are as even as possible: the first `count mod n` blocks are one element longer.
    #[default]
    Even,
    /// Blocks of ⌈count/n⌉ elements, as in `torch.chunk`. The last nonempty block may be shorter,
    /// and the blocks after it are empty.
    Ceil,
    /// Blocks with the given numbers of elements, in rank order.
    Counts(&'a [usize]),
}

impl Layout<'_> {
    /// Returns the range of elements that belongs to `rank` in a buffer of `count` elements with
    /// `world_size` blocks. If the layout is `Counts`, `count` is ignored, and a rank without an
    /// entry in the counts has an empty block. No block extends beyond `usize::MAX`.
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

    /// Returns the total number of elements in all blocks of a buffer of `count` elements, or
    /// `None` if the total overflows.
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

/// A buffer together with the layout of its blocks. Created by [`Layout::of`].
#[derive(Clone, Debug)]
pub struct Blocks<'a, B> {
    buffer: B,
    layout: Kept<'a>,
}

impl<'a> Layout<'a> {
    /// Attaches this layout to `buffer`, which may be a reference to a buffer.
    ///
    /// `buffer` is the complete buffer of a call: the output of an all-gather or gather, the input
    /// of a reduce-scatter or scatter, or the buffer of an in-place call. All ranks must use the
    /// same layout. Calls that do not use blocks ignore the layout.
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
    /// Copies the layout's counts so that the value can be passed to calls that outlive the borrow.
    ///
    /// ```
    /// use ringtree::Layout;
    /// let gathered = ringtree::simulate(3, |comm| {
    ///     let counts: Vec<usize> = (0..comm.world_size()).collect();
    ///     let blocks = Layout::Counts(&counts).of(vec![comm.rank() as u8; 3]).into_owned();
    ///     Ok::<_, ringtree::Error>(comm.start_all_gather(blocks)?.wait()?.into_inner())
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

    /// Returns the layout of the blocks.
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

    /// Returns the buffer.
    #[must_use]
    pub fn into_inner(self) -> B {
        self.buffer
    }
}

/// A layout that is stored separately from its buffer.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub enum Kept<'a> {
    /// A layout that has no counts or borrows them.
    Lent(Layout<'a>),
    /// A layout that owns its counts.
    Counts(Vec<usize>),
}

impl Kept<'_> {
    /// Copies `layout`, including its counts, so that the result does not borrow anything.
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

/// The division of a buffer of `count` elements into chunks.
///
/// Collectives with blocks first split the buffer into one block per rank, and then split each
/// block into pieces. A rank's block therefore does not depend on the number of pieces. Other
/// collectives split the buffer evenly into chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Division<'a> {
    count: usize,
    blocks: usize,
    pieces: usize,
    layout: Layout<'a>,
}

impl<'a> Division<'a> {
    /// Divides `count` elements evenly into `chunks` chunks, for `collective` across `world_size`
    /// ranks.
    #[must_use]
    pub fn new(collective: Collective, world_size: usize, chunks: usize, count: usize) -> Self {
        let (blocks, pieces) = match is_blocked(collective) {
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

    /// Returns the division with a different layout of the blocks.
    #[must_use]
    pub fn laid(self, layout: Layout<'a>) -> Self {
        Self { layout, ..self }
    }

    /// Returns the index of the first element of `chunk`, or the end of the last chunk if `chunk`
    /// equals the number of chunks.
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

/// Returns the index of the first element of part `index` if `count` elements are split evenly into
/// `parts` parts.
#[must_use]
pub fn part_start(count: usize, parts: usize, index: usize) -> usize {
    index * (count / parts) + index.min(count % parts)
}
