//! How the elements of a buffer are split over chunks.

use super::spec::Collective;

/// Where each chunk of a buffer of `count` elements begins.
///
/// A buffer is split as evenly as possible: the first `count mod parts` parts are one element
/// longer. Blocked collectives (reduce-scatter, all-gather) split into one block a rank first and
/// each block into pieces second, so that a rank's block does not depend on the pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    count: usize,
    blocks: usize,
    pieces: usize,
}

impl Layout {
    /// The layout of `count` elements over `chunks` chunks for `collective` on `world_size` ranks.
    #[must_use]
    pub fn new(collective: Collective, world_size: usize, chunks: usize, count: usize) -> Self {
        if collective.is_blocked() {
            Self {
                count,
                blocks: world_size,
                pieces: chunks / world_size,
            }
        } else {
            Self {
                count,
                blocks: chunks,
                pieces: 1,
            }
        }
    }

    /// The element at which `chunk` begins; for `chunk` = the number of chunks, `count`.
    #[must_use]
    pub fn start(&self, chunk: usize) -> usize {
        let (block, piece) = (chunk / self.pieces, chunk % self.pieces);
        let begin = part_start(self.count, self.blocks, block);
        if piece == 0 {
            return begin;
        }
        let length = part_start(self.count, self.blocks, block + 1) - begin;
        begin + part_start(length, self.pieces, piece)
    }
}

/// The element at which part `index` of `parts` begins when `count` elements are split evenly.
#[must_use]
pub fn part_start(count: usize, parts: usize, index: usize) -> usize {
    index * (count / parts) + index.min(count % parts)
}
