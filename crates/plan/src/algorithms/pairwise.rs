//! Pairwise exchange: in each round, every rank exchanges blocks with the two ranks at the same
//! distance before and after it.
//!
//! ```text
//! 5 ranks   round 0   r ↔ r+1   r ↔ r−1      round 1   r ↔ r+2   r ↔ r−2
//! ```
//!
//! Both ends of an exchange send in the same round, so a block that a rank receives can replace the
//! block that the rank has just sent, and the call works in place without scratch. With an even
//! number of ranks, the last round has only one exchange per rank. A rank sends to one side and
//! then to the other, so each port carries only one stream at a time. Every block is sent once,
//! directly to its receiver, so blocks may have arbitrary lengths. The cost is (n−1)α + (n−1)/n·mβ.
//!
//! Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in
//! MPICH" (IJHPCA 2005), §5 (the long-message algorithm of all-to-all). With two distances per
//! round, the exchange works in place.

use super::Entry;
use super::blocks::{FREE, all_but_one, block};
use super::flat::exchange_round;
use crate::ir::{Request, Round};
use crate::price::Cost;
use crate::spec::Collective;

/// The entry in the registry.
pub(super) const ENTRY: Entry = Entry {
    name: "pairwise",
    meaning: "In each round, each rank exchanges blocks with the ranks at a certain distance from \
              it. Each block goes straight to its receiver.",
    collectives: &[Collective::AllToAll],
    source: "Thakur, Rabenseifner, Gropp (IJHPCA 2005), §5",
    is_symmetric: |_| true,
    is_direct: true,
    chunks: |request| request.world_size * request.pieces,
    build,
    cost,
    ..Entry::PLAIN
};

fn build(request: &Request) -> Vec<Round> {
    let (n, rank, pieces) = (request.world_size, request.rank, request.pieces);
    let round = |distance: usize| {
        let (after, before) = ((rank + distance) % n, (rank + n - distance) % n);
        let peers = [after].into_iter();
        let peers = peers.chain((before != after).then_some(before));
        exchange_round(peers, |peer| block(peer, pieces))
    };
    (1..=n / 2).map(round).collect()
}

fn cost(request: &Request) -> Cost {
    let n = request.world_size;
    if n == 1 {
        return FREE;
    }
    Cost {
        rounds: n / 2,
        hops: 1.0,
        messages_on_path: (n - 1) as f64,
        volume_on_path: all_but_one(n),
        folded_on_path: 0.0,
        max_sent_per_rank: all_but_one(n),
    }
}
