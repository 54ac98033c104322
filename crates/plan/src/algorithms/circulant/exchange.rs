//! Reduce-scatter and all-gather over the skips, in place.
//!
//! Seen from rank r, R[i] is block (r + i) mod n. Reduce-scatter keeps ever shorter beginnings of
//! R: with s' blocks left it sends R[s..s'), s = ⌈s'/2⌉, to rank r+s, for whom they are R[0..s'−s),
//! until R[0], its own block, is left. All-gather is the same backwards. Both ends of a message see
//! the same blocks of the buffer in the same order.
//!
//! With radix k, s = ⌈s'/k⌉, and R[js..(j+1)s) goes to rank r+js, for j up to k−1. A rank folds all
//! that is s blocks long at once. The last part may be shorter. The reduce-scatter then has a round
//! more for it, in which no rank waits for what it receives in the round before.

use super::skips;
use crate::ir::{ChunkRange, Round, Source, Step};

/// Ranks on a circle, seen by one of them, and the blocks they exchange, one a place.
pub(in crate::algorithms) struct Circle<F, G> {
    /// How many places there are.
    pub(in crate::algorithms) places: usize,
    /// Into how many parts a round divides what is left.
    pub(in crate::algorithms) radix: usize,
    /// Whose rounds are wanted.
    pub(in crate::algorithms) own: usize,
    /// The first chunk of a block, and where the last one ends.
    pub(in crate::algorithms) begin: G,
    /// Which rank is in which place.
    pub(in crate::algorithms) rank_in: F,
}

/// Blocks that go to the rank so many places away.
#[derive(Clone, Copy)]
struct Part {
    distance: usize,
    blocks: usize,
}

/// What leaves a rank where `left` blocks become `skip`.
fn parts(skip: usize, left: usize) -> impl Iterator<Item = Part> {
    let part = move |distance: usize| Part {
        distance,
        blocks: skip.min(left - distance),
    };
    (skip..left).step_by(skip).map(part)
}

/// Rounds and messages of one way through the skips: of the reduce-scatter, and of the all-gather.
pub(in crate::algorithms) struct Counts {
    pub(in crate::algorithms) levels: usize,
    pub(in crate::algorithms) rounds_reducing: usize,
    pub(in crate::algorithms) messages: usize,
    /// The longest chain of messages that wait for one another.
    pub(in crate::algorithms) hops: usize,
}

/// Counts them for so many places.
pub(in crate::algorithms) fn counts(places: usize, radix: usize) -> Counts {
    let skips = skips(places, radix);
    let mut counts = Counts {
        levels: skips.len() - 1,
        rounds_reducing: 0,
        messages: 0,
        hops: 0,
    };
    // Of each level, how long it takes in the all-gather to have as many blocks as its skip.
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

/// How many messages, each of which waits for the one before, it takes to have the first `blocks`
/// blocks; `depths` holds that for the skips so far.
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
    /// The rounds after which each place holds its own block of the reduction.
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

    /// Parts of equal length are exchanged and folded.
    fn fold(&self, parts: &[Part], completes: bool) -> Round {
        let send = |part: &Part| {
            let blocks = self.blocks(self.own + part.distance, part.blocks);
            Step::send(self.after(part.distance), blocks)
        };
        let peer = |part: &Part| Source::Peer(self.before(part.distance));
        let fold = Step::Receive {
            sources: [Source::Own]
                .into_iter()
                .chain(parts.iter().map(peer))
                .collect(),
            ranges: self.blocks(self.own, parts[0].blocks),
            completes,
        };
        parts.iter().map(send).chain([fold]).collect()
    }

    /// The rounds after which each place holds all blocks, where each begins with its own.
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

    /// `count` blocks from one on: one range, or two when the run passes the end.
    fn blocks(&self, first: usize, count: usize) -> Vec<ChunkRange> {
        let first = first % self.places;
        let before_the_end = count.min(self.places - first);
        let range = |first: usize, count: usize| {
            let (start, end) = ((self.begin)(first), (self.begin)(first + count));
            ChunkRange::new(start, end - start)
        };
        let mut ranges = vec![range(first, before_the_end)];
        if count > before_the_end {
            ranges.push(range(0, count - before_the_end));
        }
        ranges
    }
}
