//! Recursive doubling: pairs exchange whole buffers, at distance 1, 2, 4, …
//!
//! ```text
//! 4 ranks   round 0   0↔1  2↔3      round 1   0↔2  1↔3
//! ```
//!
//! The fewest rounds an all-reduce can have, so the best for small buffers. Every rank builds the
//! same association tree, ((0+1)+(2+3))+…, for every chunk: the bits depend neither on the rank nor
//! on the place in the buffer. With k = ⌊log₂ n⌋: k(α + mβ + mγ), and 2(α + mβ) + mγ more when n is
//! not a power of two ([`super::extras`]).
//!
//! Source: Thakur, Rabenseifner, Gropp (IJHPCA 2005), §4.5.

use super::Entry;
use super::blocks::{FREE, whole};
use super::extras;
use crate::plan::ir::{Request, Round, Step};
use crate::plan::price::Cost;
use crate::plan::spec::{Algorithm, Collective};

/// The registry's line.
pub(super) const ENTRY: Entry = Entry {
    algorithm: Algorithm::RecursiveDoubling,
    collectives: &[Collective::AllReduce],
    source: "Thakur, Rabenseifner, Gropp (IJHPCA 2005), §4.5",
    chunks: |_, _, pieces| pieces,
    build,
    cost,
    ..Entry::PLAIN
};

fn build(request: &Request) -> Vec<Round> {
    let levels = extras::levels(request.world_size);
    extras::around(request, request.pieces, levels, |member| {
        let round = |level| {
            let peer = extras::rank_of(member ^ (1_usize << level), request.world_size);
            let completes = level + 1 == levels;
            vec![
                Step::send(peer, whole(request.pieces)),
                Step::reduce(peer, whole(request.pieces), completes),
            ]
        };
        (0..levels).map(round).collect()
    })
}

fn cost(request: &Request) -> Cost {
    let n = request.world_size;
    if n == 1 {
        return FREE;
    }
    let levels = extras::levels(n);
    let extra = usize::from(extras::any(n));
    let rounds = levels + 2 * extra;
    Cost {
        rounds,
        messages_on_path: rounds as f64,
        volume_on_path: rounds as f64,
        folded_on_path: (levels + extra) as f64,
        max_sent_per_rank: (levels + extra) as f64,
    }
}
