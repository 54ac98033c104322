//! Dissemination: after round r, every rank knows that 2^(r+1) ranks have entered, namely itself
//! and the ranks before it.
//!
//! ```text
//! 5 ranks   round 0   r → r+1      round 1   r → r+2      round 2   r → r+4
//! radix 3   round 0   r → r+1, r+2      round 1   r → r+3
//! ```
//!
//! The cost is ⌈log₂ n⌉α for every n. With radix k, there are ⌈log_k n⌉ rounds of k − 1 tokens. If
//! n is not a power of two, a token may count a rank twice. This is harmless in a barrier but not
//! in a sum, so the algorithm implements only barriers.
//!
//! Source: Hensgen, Finkel, Manber, "Two algorithms for barrier synchronization" (IJPP 1988), §3.

use super::Entry;
use super::blocks::{distances, messages, multiples, whole};
use crate::ir::{Request, Round, Step};
use crate::price::Cost;
use crate::spec::Collective;

/// The entry in the registry.
pub(super) const ENTRY: Entry = Entry {
    name: "dissemination",
    meaning: "Each rank signals ranks at growing distances, such as 1, 2 and 4, until every \
              rank knows that all others have arrived.",
    collectives: &[Collective::Barrier],
    source: "Hensgen, Finkel, Manber (IJPP 1988), §3",
    is_symmetric: |_| true,
    has_radix: |_| true,
    chunks: |_| 1,
    build,
    cost,
    ..Entry::PLAIN
};

fn build(request: &Request) -> Vec<Round> {
    let (rank, n) = (request.rank, request.world_size);
    let radix = request.algorithm.radix();
    let round = |distance: usize| {
        let skips = || multiples(distance, n, radix);
        let sends = skips().map(|skip| Step::send((rank + skip) % n, whole(1)));
        let peers = skips().map(|skip| (rank + n - skip) % n);
        let completes = distance.saturating_mul(radix) >= n;
        let fold = Step::reduce_all(peers, whole(1), completes);
        sends.chain([fold]).collect()
    };
    distances(n, radix).into_iter().map(round).collect()
}

fn cost(request: &Request) -> Cost {
    let (n, radix) = (request.world_size, request.algorithm.radix());
    let tokens = messages(n, radix) as f64;
    Cost {
        rounds: distances(n, radix).len(),
        hops: distances(n, radix).len() as f64,
        messages_on_path: tokens,
        volume_on_path: tokens,
        folded_on_path: tokens,
        max_sent_per_rank: tokens,
    }
}
