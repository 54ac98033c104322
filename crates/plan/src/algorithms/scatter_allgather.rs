//! Scatter-allgather: the root scatters one block to each rank along a binomial tree. Then all
//! ranks gather all blocks over circulant skips.
//!
//! ```text
//! 4 ranks from 0   scatter     0→2 blocks 2,3      0→1 block 1   2→3 block 3
//!                  all-gather  r→r−1 1 block       r→r−2 2 blocks
//! ```
//!
//! The root already has all blocks, so nothing is sent to it in the all-gather. With k = ⌈log₂ n⌉,
//! the cost is 2kα + 2(n−1)/n·mβ for every n.
//!
//! Source: Barnett, Gupta, Payne, Shuler, van de Geijn, Watts, "Interprocessor collective
//! communication library (InterCom)" (SHPCC 1994), §5; the all-gather is Träff's (arXiv
//! 2410.14234), which works for any number of ranks.

use super::Entry;
use super::binomial::Tree;
use super::blocks::{all_but_one, ceil_log2, circle, real_rank, virtual_rank};
use super::circulant::exchange::Circle;
use crate::ir::{Request, Round, Step};
use crate::price::Cost;
use crate::spec::Collective;

/// The entry in the registry.
pub(super) const ENTRY: Entry = Entry {
    name: "scatter-allgather",
    meaning: "The root scatters one block to each rank along a tree. All ranks then gather all \
              blocks.",
    collectives: &[Collective::Broadcast],
    source: "Barnett et al., InterCom (SHPCC 1994), §5; all-gather of Träff (arXiv 2410.14234)",
    chunks: |request| request.world_size * request.pieces,
    build,
    cost,
    ..Entry::PLAIN
};

fn build(request: &Request) -> Vec<Round> {
    let (n, root) = (request.world_size, request.root);
    let own = virtual_rank(request.rank, root, n);
    let tree = Tree {
        members: n,
        radix: 2,
        own,
        rank_of: |place| real_rank(place, root, n),
    };
    // Blocks are numbered from the root.
    let begin = |block| block * request.pieces;
    let mut rounds = tree.scatter(|first, count| circle(first, count, n, begin));
    let circle = Circle {
        places: n,
        radix: 2,
        own,
        begin,
        rank_in: |place| real_rank(place, root, n),
    };
    let useful = |step: &Step| match step {
        Step::Send { peers, .. } => !peers.contains(&root),
        _ => own != 0,
    };
    rounds.extend(circle.all_gather().into_iter().map(|mut round| {
        round.retain(useful);
        round
    }));
    rounds
}

fn cost(request: &Request) -> Cost {
    let n = request.world_size;
    let rounds = 2 * ceil_log2(n);
    Cost {
        rounds,
        hops: rounds as f64,
        messages_on_path: rounds as f64,
        volume_on_path: 2.0 * all_but_one(n),
        folded_on_path: 0.0,
        max_sent_per_rank: 2.0 * all_but_one(n),
    }
}
