//! Dissemination: after round r every rank has heard of 2^(r+1) ranks, itself and those before it.
//!
//! ```text
//! 5 ranks   round 0   r → r+1      round 1   r → r+2      round 2   r → r+4
//! ```
//!
//! ⌈log₂ n⌉α for every n. A token may count a rank twice when n is not a power of two; a barrier
//! does not mind, a sum would, so this is a barrier only.
//!
//! Source: Hensgen, Finkel, Manber, "Two algorithms for barrier synchronization" (IJPP 1988), §3.

use super::Entry;
use super::blocks::{ceil_log2, whole};
use crate::plan::ir::{Request, Round, Step};
use crate::plan::price::Cost;
use crate::plan::spec::{Algorithm, Collective};

/// The registry's line.
pub(super) const ENTRY: Entry = Entry {
    algorithm: Algorithm::Dissemination,
    collectives: &[Collective::Barrier],
    source: "Hensgen, Finkel, Manber (IJPP 1988), §3",
    is_symmetric: |_| true,
    chunks: |_, _, _| 1,
    build,
    cost,
    ..Entry::PLAIN
};

fn build(request: &Request) -> Vec<Round> {
    let (rank, n) = (request.rank, request.world_size);
    let levels = ceil_log2(n);
    let round = |level: usize| {
        let distance = 1 << level;
        let completes = level + 1 == levels;
        vec![
            Step::send((rank + distance) % n, whole(1)),
            Step::reduce((rank + n - distance) % n, whole(1), completes),
        ]
    };
    (0..levels).map(round).collect()
}

fn cost(request: &Request) -> Cost {
    let rounds = ceil_log2(request.world_size);
    let tokens = rounds as f64;
    Cost {
        rounds,
        messages_on_path: tokens,
        volume_on_path: tokens,
        folded_on_path: tokens,
        max_sent_per_rank: tokens,
    }
}
