//! Circulant graphs: exchanges that use as few rounds and as few bytes as possible, for *every*
//! number of ranks.
//!
//! Rank r exchanges data with ranks r ± s for the k = ⌈log₂ n⌉ skips s = ⌈n/2⌉, ⌈⌈n/2⌉/2⌉, …, 1.
//! The exchanges also have a radix. With radix 4, they have ⌈log₄ n⌉ levels of 3 messages each.
//! With radix n, they are the same as [`super::two_shot`].
//!
//! ```text
//! reduce-scatter of 6    round 0   r → r+3, 3 blocks
//!                        round 1   r → r+2, 1 block
//!                        round 2   r → r+1, 1 block      5 = n−1 blocks in 3 rounds
//! ```
//!
//! *Purpose.* [`exchange`] implements reduce-scatter, which costs kα + (n−1)/n·m(β + γ),
//! all-gather, which costs kα + (n−1)/n·mβ, and all-reduce, which costs the sum of the two.
//! [`pipeline`] implements broadcast in b pieces, which costs (b−1+k)(α + mβ/b), and its mirror
//! image, reduce, which costs (b−1+k)(α + m(β + γ)/b). [`schedule`] determines which piece is sent
//! when. The best b is √((k−1)·mβ/α) for broadcast. For reduce, β is replaced by β + γ. Long
//! exchanges are split into [`slices`].
//!
//! *Invariants.* No scratch is used. Blocks are addressed in place, and a run of blocks that
//! extends past the end of the buffer becomes two ranges in the same message.
//!
//! *May import* what algorithms import: `plan::{ir, spec, cost}` and `limits`.
//!
//! Source: Träff, "Optimal, Non-pipelined Reduce-scatter and Allreduce Algorithms"
//! (arXiv 2410.14234), §2; Träff, "Optimal Broadcast Schedules in Logarithmic Time with
//! Applications to Broadcast, All-Broadcast, Reduction and All-Reduction" (arXiv 2407.18004), §2.

pub(super) mod exchange;
mod pipeline;
mod schedule;
mod slices;

use super::Entry;
use super::blocks::{FREE, all_but_one, ceil_log2, pipeline_pieces};
use crate::ir::{Request, Round};
use crate::price::{Cost, Question};
use crate::spec::Collective;
use exchange::Circle;

/// The entry in the registry.
pub(super) const ENTRY: Entry = Entry {
    name: "circulant",
    meaning: "The ranks form a circle, and all of them send data over the same few distances, such \
              as 1, 2 and 4.",
    collectives: &[
        Collective::AllReduce,
        Collective::ReduceScatter,
        Collective::AllGather,
        Collective::Broadcast,
        Collective::Reduce,
    ],
    source: "Träff (arXiv 2410.14234), §2; Träff (arXiv 2407.18004), §2",
    is_symmetric: |collective| !collective.is_rooted(),
    has_radix: |collective| !collective.is_rooted(),
    chunks: |request| match request.collective.is_rooted() {
        true => request.pieces,
        false => request.world_size * request.pieces,
    },
    build,
    cost,
    pieces,
    is_pipelined: |collective| collective.is_rooted(),
    is_sliced: |collective| !collective.is_rooted(),
    ..Entry::PLAIN
};

/// Returns the skips, smallest first: 1, …, ⌈n/k⌉, n for radix k.
pub(super) fn skips(world_size: usize, radix: usize) -> Vec<usize> {
    let mut skips = vec![world_size];
    while let Some(&last) = skips.last().filter(|&&skip| skip > 1) {
        skips.push(last.div_ceil(radix));
    }
    skips.reverse();
    skips
}

fn build(request: &Request) -> Vec<Round> {
    let n = request.world_size;
    if n == 1 {
        return Vec::new();
    }
    let circle = Circle {
        places: n,
        radix: request.algorithm.radix(),
        own: request.rank,
        begin: |block| block,
        rank_in: |place| place,
    };
    let mut exchange = Vec::new();
    match request.collective {
        Collective::Broadcast => return pipeline::broadcast(request),
        Collective::Reduce => return pipeline::reduce(request),
        Collective::ReduceScatter => exchange.extend(circle.reduce_scatter()),
        Collective::AllGather => exchange.extend(circle.all_gather()),
        _ => {
            exchange.extend(circle.reduce_scatter());
            exchange.extend(circle.all_gather());
        }
    }
    slices::over_slices(&exchange, request.pieces)
}

fn cost(request: &Request) -> Cost {
    let n = request.world_size;
    if n == 1 {
        return FREE;
    }
    let levels = ceil_log2(n);
    let counts = exchange::counts(n, request.algorithm.radix());
    // A slice begins when the previous slice enters its second round. If every round waits for the
    // one before it, the previous slice must first receive the messages of its first round.
    let waits = |hops: usize, rounds: usize| match hops {
        2.. if hops == rounds => request.pieces - 1,
        _ => 0,
    };
    let exchange = |passes: usize, rounds: usize, folds: f64| Cost {
        rounds: rounds * request.pieces,
        hops: (passes * counts.hops + waits(passes * counts.hops, rounds)) as f64,
        messages_on_path: (passes * counts.messages * request.pieces) as f64,
        volume_on_path: passes as f64 * all_but_one(n),
        folded_on_path: folds * all_but_one(n),
        max_sent_per_rank: passes as f64 * all_but_one(n),
    };
    let rounds = request.pieces - 1 + levels;
    let passed = rounds as f64 / request.pieces as f64;
    // A single piece takes as many hops as a tree of the skips has levels. Several pieces take
    // detours.
    let hops = match request.pieces {
        1 => tree_depth(n),
        _ => levels,
    };
    let pipeline = |folded: f64, sent: f64| Cost {
        rounds,
        hops: hops as f64,
        messages_on_path: rounds as f64,
        volume_on_path: passed,
        folded_on_path: folded,
        max_sent_per_rank: sent,
    };
    match request.collective {
        Collective::Broadcast => pipeline(0.0, passed),
        Collective::Reduce => pipeline(passed, 1.0),
        Collective::ReduceScatter => exchange(1, counts.rounds_reducing, 1.0),
        Collective::AllGather => exchange(1, counts.levels, 0.0),
        _ => exchange(2, counts.rounds_reducing + counts.levels, 1.0),
    }
}

/// Returns the largest number of skips into which a number below n is split if the largest skip
/// that fits is always taken first.
fn tree_depth(world_size: usize) -> usize {
    let skips = skips(world_size, 2);
    let mut depths: Vec<usize> = Vec::new();
    for &skip in &skips {
        let (mut below, mut depth, mut edges) = (skip, 0, 0);
        while let Some(level) = skips.iter().rposition(|one| *one < below) {
            depth = depth.max(edges + depths[level]);
            (below, edges) = (below - skips[level], edges + 1);
        }
        depths.push(depth.max(edges));
    }
    depths.pop().unwrap_or(0)
}

/// Returns the number of pieces b at which the derivative of the pipeline's cost is zero or, for
/// exchanges, the number of slices.
fn pieces(question: &Question) -> usize {
    match question.collective.is_rooted() {
        true => pipeline_pieces(question, ceil_log2(question.world_size) as f64 - 1.0),
        false => slices::count(question),
    }
}
