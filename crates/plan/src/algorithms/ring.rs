//! Ring: ranks send to their neighbors, and every link carries one block in every round.
//!
//! ```text
//! reduce-scatter of 4, the path of block 0:   1 → 2 → 3 → 0, reduced on the way, n−1 rounds
//! all-gather of 4, the path of block 0:       0 → 1 → 2 → 3, stored on the way, n−1 rounds
//! ```
//!
//! A ring sends the fewest possible bytes, but the number of rounds grows with n. A reduce-scatter
//! costs (n−1)α + (n−1)/n·m(β + γ), an all-gather costs (n−1)α + (n−1)/n·mβ, and an all-reduce
//! costs the sum of the two. Each block is reduced in a different order, so the bits of an element
//! depend on its position in the buffer.
//!
//! Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
//! workstations" (JPDC 2009), §4.

use super::Entry;
use super::blocks::{all_but_one, block};
use crate::ir::{ChunkRange, Request, Round, Step};
use crate::price::Cost;
use crate::spec::Collective;

/// The entry in the registry.
pub(super) const ENTRY: Entry = Entry {
    name: "ring",
    meaning: "The ranks form a ring, and each rank sends only to one neighbor.",
    collectives: &[
        Collective::AllReduce,
        Collective::ReduceScatter,
        Collective::AllGather,
    ],
    source: "Patarasuk and Yuan (JPDC 2009), §4",
    is_symmetric: |_| true,
    has_one_sender: true,
    chunks: |request| request.world_size * request.pieces,
    build,
    cost,
    ..Entry::PLAIN
};

fn build(request: &Request) -> Vec<Round> {
    match request.collective {
        Collective::ReduceScatter => reduce_scatter(request),
        Collective::AllGather => all_gather(request),
        _ => {
            let mut rounds = reduce_scatter(request);
            rounds.extend(all_gather(request));
            rounds
        }
    }
}

/// Returns the rounds in which block i starts at rank i+1 and arrives, complete, at rank i.
fn reduce_scatter(request: &Request) -> Vec<Round> {
    let n = request.world_size;
    let round = |step: usize| {
        let folded = request.rank + 2 * n - 2 - step;
        let completes = step + 2 == n;
        vec![
            Step::send(next(request), blocks(folded + 1, request)),
            Step::reduce(previous(request), blocks(folded, request), completes),
        ]
    };
    (0..n - 1).map(round).collect()
}

/// Returns the rounds in which block i starts at rank i and travels around the ring.
fn all_gather(request: &Request) -> Vec<Round> {
    let n = request.world_size;
    let round = |step: usize| {
        let stored = request.rank + n - 1 - step;
        vec![
            Step::send(next(request), blocks(stored + 1, request)),
            Step::store(previous(request), blocks(stored, request)),
        ]
    };
    (0..n - 1).map(round).collect()
}

fn blocks(index: usize, request: &Request) -> Vec<ChunkRange> {
    block(index % request.world_size, request.pieces)
}

fn next(request: &Request) -> usize {
    (request.rank + 1) % request.world_size
}

fn previous(request: &Request) -> usize {
    (request.rank + request.world_size - 1) % request.world_size
}

fn cost(request: &Request) -> Cost {
    let n = request.world_size;
    let (passes, folds) = match request.collective {
        Collective::ReduceScatter => (1, 1.0),
        Collective::AllGather => (1, 0.0),
        _ => (2, 1.0),
    };
    let rounds = passes * (n - 1);
    Cost {
        rounds,
        hops: rounds as f64,
        messages_on_path: rounds as f64,
        volume_on_path: passes as f64 * all_but_one(n),
        folded_on_path: folds * all_but_one(n),
        max_sent_per_rank: passes as f64 * all_but_one(n),
    }
}
