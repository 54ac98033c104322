//! Reduce-scatter and all-gather over the skips, in place.
//!
//! Seen from rank r, R[i] is block (r + i) mod n. Reduce-scatter keeps ever shorter beginnings of
//! R: with s' blocks left it sends R[s..s'), s = ⌈s'/2⌉, to rank r+s, for whom they are R[0..s'−s),
//! until R[0], its own block, is left. All-gather is the same backwards. Both ends of a message see
//! the same blocks of the buffer in the same order.

use super::skips;
use crate::plan::algorithms::blocks::circle;
use crate::plan::ir::{ChunkRange, Round, Step};

/// Ranks on a circle, seen by one of them, and the blocks they exchange, one a place.
pub(in crate::plan::algorithms) struct Circle<F> {
    /// How many places there are.
    pub(in crate::plan::algorithms) places: usize,
    /// Whose rounds are wanted.
    pub(in crate::plan::algorithms) own: usize,
    /// Chunks a block.
    pub(in crate::plan::algorithms) pieces: usize,
    /// Where block 0 begins.
    pub(in crate::plan::algorithms) first_chunk: usize,
    /// Which rank is in which place.
    pub(in crate::plan::algorithms) rank_in: F,
}

impl<F: Fn(usize) -> usize> Circle<F> {
    /// The rounds after which each place holds its own block of the reduction.
    pub(in crate::plan::algorithms) fn reduce_scatter(&self) -> Vec<Round> {
        let round = |skip: usize, left: usize| {
            let moved = left - skip;
            vec![
                Step::send(self.after(skip), self.blocks(self.own + skip, moved)),
                Step::reduce(self.before(skip), self.blocks(self.own, moved), skip == 1),
            ]
        };
        let skips = skips(self.places);
        let pairs = skips.windows(2).rev();
        pairs.map(|pair| round(pair[0], pair[1])).collect()
    }

    /// The rounds after which each place holds all blocks, where each begins with its own.
    pub(in crate::plan::algorithms) fn all_gather(&self) -> Vec<Round> {
        let round = |skip: usize, left: usize| {
            let moved = left - skip;
            vec![
                Step::send(self.before(skip), self.blocks(self.own, moved)),
                Step::store(self.after(skip), self.blocks(self.own + skip, moved)),
            ]
        };
        let skips = skips(self.places);
        let pairs = skips.windows(2);
        pairs.map(|pair| round(pair[0], pair[1])).collect()
    }

    fn after(&self, skip: usize) -> usize {
        (self.rank_in)((self.own + skip) % self.places)
    }

    fn before(&self, skip: usize) -> usize {
        (self.rank_in)((self.own + self.places - skip) % self.places)
    }

    fn blocks(&self, first: usize, count: usize) -> Vec<ChunkRange> {
        let mut ranges = circle(first, count, self.places, self.pieces);
        for range in &mut ranges {
            range.first += self.first_chunk;
        }
        ranges
    }
}
