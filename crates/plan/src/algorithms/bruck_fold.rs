//! Bruck with a reduction: every rank gathers all contributions and reduces them in rank order.
//!
//! ```text
//! 5 ranks   round 0   r → r−1, 1 contribution     rank r has those of r, r+1
//!           round 1   r → r−2, 2 contributions                     of r, …, r+3
//!           round 2   r → r−4, 1 contribution                      of all, and reduces them
//! ```
//!
//! Scratch holds the contributions in the order in which they arrive: on rank r, slot i holds the
//! contribution of rank r + i. The number of rounds is minimal for *every* number of ranks. The
//! reduction is the same as in [`flat`]: every rank reduces every chunk in rank order and rounds
//! once. However, every rank receives all contributions, so this algorithm is suitable only for
//! small buffers. The cost is ⌈log₂ n⌉α + (n−1)m(β + γ). With radix k, there are ⌈log_k n⌉ rounds
//! of k−1 messages.
//!
//! [`flat`]: super::flat
//!
//! Source: Bruck, Ho, Kipnis, Upfal, Weathersby, "Efficient Algorithms for All-to-All
//! Communications in Multiport Message-Passing Systems" (IEEE TPDS 1997), §4, the concatenation.

use super::Entry;
use super::blocks::{distances, hops, messages, multiples};
use crate::ir::{ChunkRange, Request, Round, Step};
use crate::price::Cost;
use crate::spec::Collective;
use crate::topology::{Sharing, sharing};

/// The entry in the registry.
pub(super) const ENTRY: Entry = Entry {
    name: "bruck-fold",
    meaning: "Ranks gather all contributions by exchanging messages over growing distances, such \
              as 1, 2 and 4. Each rank then combines all of them.",
    collectives: &[Collective::AllReduce],
    source: "Bruck, Ho, Kipnis, Upfal, Weathersby (IEEE TPDS 1997), §4, followed by a reduction",
    is_symmetric: |_| true,
    has_radix: |_| true,
    scratch: |request| match request.world_size {
        1 => 0,
        n => n * request.pieces,
    },
    build,
    cost,
    // In shared memory, ranks can read all contributions in place, unless there are too many ranks.
    is_offered: |offer| {
        let reads_all = sharing(&offer.topology) == Sharing::All
            && offer.topology.world_size <= READ_AT_ONCE_MAX;
        offer.bytes <= SMALL_BYTES && !reads_all
    },
    ..Entry::PLAIN
};

/// Size in bytes of the largest buffer for which `auto` considers this algorithm.
const SMALL_BYTES: usize = 16 << 10;
/// Largest number of ranks on a host that read each other's contributions in a single round.
const READ_AT_ONCE_MAX: usize = 16;

fn build(request: &Request) -> Vec<Round> {
    let (n, rank, pieces) = (request.world_size, request.rank, request.pieces);
    if n == 1 {
        return Vec::new();
    }
    let slots = |first: usize, count: usize| ChunkRange::new((1 + first) * pieces, count * pieces);
    let own = ChunkRange::new(0, pieces);
    let mut rounds = vec![vec![Step::Copy {
        from: own,
        to: slots(0, 1),
    }]];
    let radix = request.algorithm.radix();
    for distance in distances(n, radix) {
        let skips = || multiples(distance, n, radix).map(|skip| (skip, distance.min(n - skip)));
        let send = |(skip, count)| Step::send((rank + n - skip) % n, vec![slots(0, count)]);
        let store = |(skip, count)| Step::store((rank + skip) % n, vec![slots(skip, count)]);
        rounds.push(skips().map(send).chain(skips().map(store)).collect());
    }
    rounds.push(vec![Step::Reduce {
        from: (0..n).map(|of| slots((of + n - rank) % n, 1)).collect(),
        to: own,
        completes: true,
    }]);
    rounds
}

fn cost(request: &Request) -> Cost {
    let n = request.world_size;
    let radix = request.algorithm.radix();
    let others = (n - 1) as f64;
    Cost {
        rounds: distances(n, radix).len(),
        hops: hops(n, radix),
        messages_on_path: messages(n, radix) as f64,
        volume_on_path: others,
        folded_on_path: others,
        max_sent_per_rank: others,
    }
}
