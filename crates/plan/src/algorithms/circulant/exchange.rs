//! Implements reduce-scatter and all-gather over the skips, in place.
//!
//! As seen from rank r, R[i] is block (r + i) mod n. A reduce-scatter keeps an ever shorter prefix
//! of R. With s' blocks left and s = ⌈s'/2⌉, rank r sends R[s..s') to rank r+s, where they
//! become R[0..s'−s). This continues until only R[0], which is the rank's own block, is left. An
//! all-gather performs these steps in reverse. Both ends of a message list the same blocks of the
//! buffer in the same order.
//!
//! With radix k, s = ⌈s'/k⌉, and R[js..(j+1)s) goes to rank r+js, for j up to k−1. A rank combines
//! all parts that consist of s blocks in a single reduction. The last part may be shorter. If it
//! is, the reduce-scatter has an additional round for it. In that round, no rank has to wait for
//! the data that it receives in the previous round.

use super::skips;
use crate::algorithms::blocks::circle;
use crate::ir::{ChunkRange, Round, Step};

/// Ranks on a circle and the blocks that they exchange, from the perspective of one of the ranks.
/// There is one block per position on the circle.
pub(in crate::algorithms) struct Circle<F, G> {
    /// Number of positions.
    pub(in crate::algorithms) places: usize,
    /// Number of parts into which a round divides the remaining blocks.
    pub(in crate::algorithms) radix: usize,
    /// The position whose rounds are built.
    pub(in crate::algorithms) own: usize,
    /// Returns the first chunk of a block. If the index equals the number of positions, returns the
    /// end of the last block.
    pub(in crate::algorithms) begin: G,
    /// Returns the rank at a position.
    pub(in crate::algorithms) rank_in: F,
}

/// The blocks that a rank sends to the rank at a given distance.
#[derive(Clone, Copy)]
struct Part {
    distance: usize,
    blocks: usize,
}

/// Returns the parts that a rank sends in a reduce-scatter to go from `left` blocks to `skip`
/// blocks.
fn parts(skip: usize, left: usize) -> impl Iterator<Item = Part> {
    let part = move |distance: usize| Part {
        distance,
        blocks: skip.min(left - distance),
    };
    (skip..left).step_by(skip).map(part)
}

/// Numbers of rounds and messages in one pass through the skips, which is a reduce-scatter or an
/// all-gather.
pub(in crate::algorithms) struct Counts {
    pub(in crate::algorithms) levels: usize,
    pub(in crate::algorithms) rounds_reducing: usize,
    pub(in crate::algorithms) messages: usize,
    /// Length of the longest chain of messages that wait for one another.
    pub(in crate::algorithms) hops: usize,
}

/// Counts the rounds and messages for `places` positions.
pub(in crate::algorithms) fn counts(places: usize, radix: usize) -> Counts {
    let skips = skips(places, radix);
    let mut counts = Counts {
        levels: skips.len() - 1,
        rounds_reducing: 0,
        messages: 0,
        hops: 0,
    };
    // Number of hops after which a rank in the all-gather has as many blocks as the skip, indexed
    // by level.
    let mut depths = vec![0];
    for pair in skips.windows(2) {
        let (messages, has_short) = (parts(pair[0], pair[1]).count(), pair[1] % pair[0] > 0);
        counts.messages += messages;
        counts.rounds_reducing += 1 + usize::from(has_short && messages > 1);
        depths.push(depth(&skips, &depths, pair[1]));
    }
    counts.hops = depths[counts.levels];
    counts
}

/// Returns the number of messages, each waiting for the previous one, until a rank has the first
/// `blocks` blocks. `depths` holds this number for each lower level.
fn depth(skips: &[usize], depths: &[usize], blocks: usize) -> usize {
    let level = skips.partition_point(|skip| *skip < blocks);
    if level == 0 {
        return 0;
    }
    let (skip, left) = (skips[level - 1], skips[level]);
    let of_part = |part: Part| match part.blocks == skip {
        true => depths[level - 1],
        false => depth(skips, depths, part.blocks),
    };
    let needed = parts(skip, left).take_while(|part| part.distance < blocks);
    let deepest = needed.map(of_part).max().unwrap_or(0);
    depths[level - 1].max(1 + deepest)
}

impl<F: Fn(usize) -> usize, G: Fn(usize) -> usize> Circle<F, G> {
    /// Returns the rounds after which the rank at each position holds its own block of the result.
    pub(in crate::algorithms) fn reduce_scatter(&self) -> Vec<Round> {
        let mut rounds = Vec::new();
        for pair in skips(self.places, self.radix).windows(2).rev() {
            let (skip, left) = (pair[0], pair[1]);
            let (whole, short): (Vec<_>, Vec<_>) =
                parts(skip, left).partition(|part| part.blocks == skip);
            let given = [whole, short].into_iter().filter(|parts| !parts.is_empty());
            rounds.extend(given.map(|parts| self.fold(&parts, skip == 1)));
        }
        rounds
    }

    /// Returns a round that exchanges and reduces parts of equal length.
    fn fold(&self, parts: &[Part], completes: bool) -> Round {
        let send = |part: &Part| {
            let blocks = self.blocks(self.own + part.distance, part.blocks);
            Step::send(self.after(part.distance), blocks)
        };
        let peers = parts.iter().map(|part| self.before(part.distance));
        let ranges = self.blocks(self.own, parts[0].blocks);
        let fold = Step::reduce_all(peers, ranges, completes);
        parts.iter().map(send).chain([fold]).collect()
    }

    /// Returns the rounds after which the rank at each position holds all blocks. At the start,
    /// each rank holds only its own block.
    pub(in crate::algorithms) fn all_gather(&self) -> Vec<Round> {
        let round = |skip: usize, left: usize| {
            let send = |part: Part| {
                let blocks = self.blocks(self.own, part.blocks);
                Step::send(self.before(part.distance), blocks)
            };
            let store = |part: Part| {
                let blocks = self.blocks(self.own + part.distance, part.blocks);
                Step::store(self.after(part.distance), blocks)
            };
            let parts = || parts(skip, left);
            parts().map(send).chain(parts().map(store)).collect()
        };
        let skips = skips(self.places, self.radix);
        let pairs = skips.windows(2);
        pairs.map(|pair| round(pair[0], pair[1])).collect()
    }

    fn after(&self, skip: usize) -> usize {
        (self.rank_in)((self.own + skip) % self.places)
    }

    fn before(&self, skip: usize) -> usize {
        (self.rank_in)((self.own + self.places - skip) % self.places)
    }

    /// Returns the chunks of `count` blocks, beginning with block `first`.
    fn blocks(&self, first: usize, count: usize) -> Vec<ChunkRange> {
        circle(first, count, self.places, &self.begin)
    }
}
