//! Bruck: after round r every rank has the blocks of 2^(r+1) ranks, its own and those after it.
//!
//! ```text
//! 5 ranks   round 0   r → r−1, 1 block      round 1   r → r−2, 2 blocks
//!           round 2   r → r−4, 1 block      4 = n−1 blocks in 3 rounds
//! ```
//!
//! Blocks are addressed where they lie, a run past the end of the buffer being two ranges of one
//! message, so there is no scratch and nothing is turned round at the end. ⌈log₂ n⌉α + (n−1)/n·mβ
//! for every n; with radix k ⌈log_k n⌉ rounds of k−1 messages.
//!
//! Source: Bruck, Ho, Kipnis, Upfal, Weathersby, "Efficient Algorithms for All-to-All
//! Communications in Multiport Message-Passing Systems" (IEEE TPDS 1997), §4, the concatenation.

use super::Entry;
use super::blocks::{FREE, all_but_one, circle, distances, messages, multiples};
use crate::plan::ir::{Request, Round, Step};
use crate::plan::price::Cost;
use crate::plan::spec::Collective;

/// The registry's line.
pub(super) const ENTRY: Entry = Entry {
    name: "bruck",
    collectives: &[Collective::AllGather],
    source: "Bruck, Ho, Kipnis, Upfal, Weathersby (IEEE TPDS 1997), §4",
    is_symmetric: |_| true,
    has_radix: true,
    chunks: |_, world_size, pieces| world_size * pieces,
    build,
    cost,
    // With radix 2 circulant takes as many rounds and as many bytes.
    is_offered: |_| false,
    ..Entry::PLAIN
};

fn build(request: &Request) -> Vec<Round> {
    let (rank, n) = (request.rank, request.world_size);
    let radix = request.algorithm.radix();
    let blocks = |first, count| circle(first, count, n, request.pieces);
    let round = |distance: usize| {
        let skips = || multiples(distance, n, radix).map(|skip| (skip, distance.min(n - skip)));
        let send = |(skip, count)| Step::send((rank + n - skip) % n, blocks(rank, count));
        let store = |(skip, count)| Step::store((rank + skip) % n, blocks(rank + skip, count));
        skips().map(send).chain(skips().map(store)).collect()
    };
    distances(n, radix).into_iter().map(round).collect()
}

fn cost(request: &Request) -> Cost {
    let n = request.world_size;
    if n == 1 {
        return FREE;
    }
    let radix = request.algorithm.radix();
    Cost {
        rounds: distances(n, radix).len(),
        messages_on_path: messages(n, radix) as f64,
        volume_on_path: all_but_one(n),
        folded_on_path: 0.0,
        max_sent_per_rank: all_but_one(n),
    }
}
