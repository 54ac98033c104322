//! Flat: every contribution goes straight to whoever needs it, in one round.
//!
//! ```text
//! broadcast of 4 from 0:   0→1  0→2  0→3          all-reduce: everybody to everybody
//! ```
//!
//! A reduction is one fold of all n operands in rank order, so half floats are rounded once. On one
//! port the messages of a rank go one after the other, which is why the closed forms count them
//! all: all-reduce (n−1)(α + mβ + mγ); broadcast (n−1)(α + mβ); reduce (n−1)(α + mβ + mγ);
//! reduce-scatter (n−1)α + (n−1)/n·m(β + γ); all-gather (n−1)α + (n−1)/n·mβ.
//!
//! Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in
//! MPICH" (IJHPCA 2005), the linear and spread-out baselines; the one-shot all-reduce is the
//! symmetric small-message algorithm of shared-memory libraries.

use super::Entry;
use super::blocks::{FREE, all_but_one, block, whole};
use crate::plan::cost::Cost;
use crate::plan::ir::{ChunkRange, Request, Round, Source, Step};
use crate::plan::spec::{Algorithm, Collective};

/// The registry's line.
pub(super) const ENTRY: Entry = Entry {
    algorithm: Algorithm::Flat,
    collectives: &[
        Collective::AllReduce,
        Collective::Broadcast,
        Collective::Reduce,
        Collective::ReduceScatter,
        Collective::AllGather,
        Collective::Barrier,
    ],
    source: "linear and spread-out baselines of Thakur, Rabenseifner, Gropp (IJHPCA 2005)",
    is_symmetric: |collective| !collective.is_rooted(),
    has_one_sender: false,
    chunks,
    scratch: |_| 0,
    build,
    cost,
    pieces: |_| 1,
};

fn chunks(collective: Collective, world_size: usize, pieces: usize) -> usize {
    match collective {
        Collective::Barrier => 1,
        Collective::ReduceScatter | Collective::AllGather => world_size * pieces,
        _ => pieces,
    }
}

fn build(request: &Request) -> Vec<Round> {
    let Request {
        collective,
        world_size,
        rank,
        root,
        pieces,
        ..
    } = *request;
    if world_size == 1 {
        return Vec::new();
    }
    let all = || whole(chunks(collective, world_size, pieces));
    let round = match collective {
        Collective::AllReduce | Collective::Barrier => vec![
            send_to_all_others(rank, world_size, all()),
            fold_in_rank_order(rank, world_size, all()),
        ],
        Collective::Broadcast if rank == root => vec![send_to_all_others(rank, world_size, all())],
        Collective::Broadcast => vec![Step::store(root, all())],
        Collective::Reduce if rank == root => vec![fold_in_rank_order(rank, world_size, all())],
        Collective::Reduce => vec![Step::send(root, all())],
        Collective::ReduceScatter => reduce_scatter_round(rank, world_size, pieces),
        Collective::AllGather => all_gather_round(rank, world_size, pieces),
    };
    vec![round]
}

/// Each rank sends block j to rank j and folds what it gets into its own block.
pub(super) fn reduce_scatter_round(rank: usize, world_size: usize, pieces: usize) -> Round {
    others(rank, world_size)
        .map(|peer| Step::send(peer, block(peer, pieces)))
        .chain([fold_in_rank_order(rank, world_size, block(rank, pieces))])
        .collect()
}

/// Each rank sends its block to all others and stores theirs.
pub(super) fn all_gather_round(rank: usize, world_size: usize, pieces: usize) -> Round {
    let mut round = vec![send_to_all_others(rank, world_size, block(rank, pieces))];
    round.extend(others(rank, world_size).map(|peer| Step::store(peer, block(peer, pieces))));
    round
}

/// The other ranks, beginning behind `rank`, so that not all send to the same one first.
fn others(rank: usize, world_size: usize) -> impl Iterator<Item = usize> {
    (1..world_size).map(move |distance| (rank + distance) % world_size)
}

fn send_to_all_others(rank: usize, world_size: usize, ranges: Vec<ChunkRange>) -> Step {
    Step::Send {
        peers: others(rank, world_size).collect(),
        ranges,
    }
}

fn fold_in_rank_order(rank: usize, world_size: usize, ranges: Vec<ChunkRange>) -> Step {
    let source = |peer| {
        if peer == rank {
            Source::Own
        } else {
            Source::Peer(peer)
        }
    };
    Step::Receive {
        sources: (0..world_size).map(source).collect(),
        ranges,
        completes: true,
    }
}

fn cost(request: &Request) -> Cost {
    let n = request.world_size;
    if n == 1 {
        return FREE;
    }
    let copies = (n - 1) as f64;
    let (volume, folded, sent) = match request.collective {
        Collective::AllReduce | Collective::Barrier => (copies, copies, copies),
        Collective::Broadcast => (copies, 0.0, copies),
        Collective::Reduce => (copies, copies, 1.0),
        Collective::ReduceScatter => (all_but_one(n), all_but_one(n), all_but_one(n)),
        Collective::AllGather => (all_but_one(n), 0.0, all_but_one(n)),
    };
    Cost {
        rounds: 1,
        messages_on_path: copies,
        volume_on_path: volume,
        folded_on_path: folded,
        max_sent_per_rank: sent,
    }
}
