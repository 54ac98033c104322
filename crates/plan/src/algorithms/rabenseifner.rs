//! Rabenseifner's all-reduce: ranks repeatedly halve the part of the buffer that they reduce while
//! the distance doubles, and then gather the parts in reverse order.
//!
//! ```text
//! 4 ranks   round 0   0↔1  2↔3   halves      kept: 0 and 2 the lower, 1 and 3 the upper
//!           round 1   0↔2  1↔3   quarters    each holds one finished quarter
//!           rounds 2 and 3: rounds 1 and 0 backwards, stored instead of reduced
//! ```
//!
//! Partners exchange data in the same order as in recursive doubling, so every chunk has the same
//! association tree as with that algorithm. Therefore, choosing between the two based on the buffer
//! size does not change any bits. With k = ⌊log₂ n⌋ and p = 2^k, the cost is 2kα + 2(p−1)/p·mβ +
//! (p−1)/p·mγ, plus 2(α + mβ) + mγ if n is not a power of two ([`super::extras`]).
//!
//! Source: Rabenseifner, "Optimization of Collective Reduction Operations" (ICCS 2004), §4; Thakur,
//! Rabenseifner, Gropp (IJHPCA 2005), §4.5.

use super::Entry;
use super::blocks::all_but_one;
use super::extras::Members;
use crate::ir::{ChunkRange, Request, Round, Step};
use crate::price::Cost;
use crate::spec::Collective;

/// The entry in the registry.
pub(super) const ENTRY: Entry = Entry {
    name: "rabenseifner",
    meaning: "In each exchange, a rank combines half of its part of the buffer with a peer's. \
              The ranks then gather the parts in reverse order.",
    collectives: &[Collective::AllReduce],
    source: "Rabenseifner (ICCS 2004), §4; Thakur, Rabenseifner, Gropp (IJHPCA 2005), §4.5",
    chunks: |request| request.pieces * Members::new(request.world_size, 2).count,
    build,
    cost,
    ..Entry::PLAIN
};

fn build(request: &Request) -> Vec<Round> {
    let members = Members::new(request.world_size, 2);
    let levels = members.groups.len();
    let chunks = request.pieces * members.count;
    members.around(request, chunks, 2 * levels, |member| {
        let halvings = halvings(&members, member, chunks);
        let halve = |(level, halving): (usize, &Halving)| {
            vec![
                Step::send(halving.peer, vec![halving.given]),
                Step::reduce(halving.peer, vec![halving.kept], level + 1 == levels),
            ]
        };
        let gather = |halving: &Halving| {
            vec![
                Step::send(halving.peer, vec![halving.kept]),
                Step::store(halving.peer, vec![halving.given]),
            ]
        };
        let there = halvings.iter().enumerate().map(halve);
        there.chain(halvings.iter().rev().map(gather)).collect()
    })
}

/// One exchange between two members: the half of their shared chunks that this member keeps
/// reducing, and the half that it leaves to the other member.
struct Halving {
    peer: usize,
    kept: ChunkRange,
    given: ChunkRange,
}

fn halvings(members: &Members, member: usize, chunks: usize) -> Vec<Halving> {
    let mut shared = ChunkRange::new(0, chunks);
    let halve = |level: usize| {
        let half = shared.count / 2;
        let lower = ChunkRange::new(shared.first, half);
        let upper = ChunkRange::new(shared.first + half, half);
        let keeps_lower = member & (1 << level) == 0;
        let (kept, given) = if keeps_lower {
            (lower, upper)
        } else {
            (upper, lower)
        };
        shared = kept;
        Halving {
            peer: members.rank_of(member ^ (1_usize << level)),
            kept,
            given,
        }
    };
    (0..members.groups.len()).map(halve).collect()
}

fn cost(request: &Request) -> Cost {
    let n = request.world_size;
    let members = Members::new(n, 2);
    let extra = members.extras_max();
    let rounds = 2 * (members.groups.len() + extra);
    let moved = all_but_one(members.count);
    Cost {
        rounds,
        hops: rounds as f64,
        messages_on_path: rounds as f64,
        volume_on_path: 2.0 * (moved + extra as f64),
        folded_on_path: moved + extra as f64,
        max_sent_per_rank: 2.0 * moved + extra as f64,
    }
}
