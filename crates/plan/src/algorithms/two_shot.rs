//! Two-shot: a flat reduce-scatter, followed by a flat all-gather or a flat gather to the root.
//!
//! ```text
//! round 0   every rank sends block j to rank j, which reduces all n in rank order
//! round 1   rank j sends the finished block j to every rank
//! ```
//!
//! With b pieces per block, piece k is reduced in round Cₖ, and its result is sent back in round
//! Rₖ. The next piece is collected before the result is sent back: C₀ C₁ R₀ C₂ R₁ … C₍b₋₁₎ R₍b₋₂₎
//! R₍b₋₁₎. On every link, the result of a piece follows the contribution to the next piece, so no
//! rank has to wait for a reduction before it can send. There are 2b rounds of n−1 messages each,
//! with the fewest possible bytes. The cost is 2b(n−1)α + 2(n−1)/n·mβ + (n−1)/n·mγ.
//!
//! In a reduce, the result of piece k is sent only to the root. The root's port carries just as
//! many bytes as in an all-reduce, so the cost is the same. The reduction is still shared among all
//! ranks.
//!
//! Source: the spread-out reduce-scatter and all-gather of Thakur, Rabenseifner, Gropp (IJHPCA
//! 2005), §4; "two-shot" is the name that shared-memory and GPU libraries use for this pair.

use super::Entry;
use super::blocks::{FREE, all_but_one, block};
use super::flat::{all_gather_round, gather_round, reduce_scatter_round};
use crate::ir::{Request, Round};
use crate::price::Cost;
use crate::spec::Collective;
use crate::topology::{Sharing, sharing};

/// The entry in the registry.
pub(super) const ENTRY: Entry = Entry {
    name: "two-shot",
    meaning: "Each rank combines all ranks' contributions to one block and sends the result \
              straight to the ranks that need it.",
    collectives: &[Collective::AllReduce, Collective::Reduce],
    source: "flat reduce-scatter and all-gather of Thakur, Rabenseifner, Gropp (IJHPCA 2005), §4",
    is_symmetric: |collective| !collective.is_rooted(),
    chunks: |request| request.world_size * request.pieces,
    build,
    cost,
    is_pipelined: |_| true,
    // Over a network, other algorithms reduce with fewer messages and no more bytes at the root's
    // port, if they may reduce in any order.
    is_offered: |offer| {
        offer.collective == Collective::AllReduce
            || sharing(&offer.topology) == Sharing::All
            || offer.in_rank_order
    },
    ..Entry::PLAIN
};

fn build(request: &Request) -> Vec<Round> {
    if request.world_size == 1 {
        return Vec::new();
    }
    let ranks: Vec<usize> = (0..request.world_size).collect();
    let part = |piece: usize| move |owner: usize| block(owner * request.pieces + piece, 1);
    let collect = |piece| reduce_scatter_round(request.rank, &ranks, true, part(piece));
    let hand_out = |piece| match request.collective {
        Collective::Reduce => gather_round(request.rank, request.root, &ranks, part(piece)),
        _ => all_gather_round(request.rank, &ranks, part(piece)),
    };
    let mut rounds = vec![collect(0)];
    for next in 1..request.pieces {
        rounds.push(collect(next));
        rounds.push(hand_out(next - 1));
    }
    rounds.push(hand_out(request.pieces - 1));
    rounds
}

fn cost(request: &Request) -> Cost {
    let n = request.world_size;
    if n == 1 {
        return FREE;
    }
    let rounds = 2 * request.pieces;
    Cost {
        rounds,
        hops: 2.0,
        messages_on_path: (rounds * (n - 1)) as f64,
        volume_on_path: 2.0 * all_but_one(n),
        folded_on_path: all_but_one(n),
        max_sent_per_rank: match request.collective {
            Collective::Reduce => 1.0,
            _ => 2.0 * all_but_one(n),
        },
    }
}
