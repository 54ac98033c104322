//! Flat: every contribution goes straight to whoever needs it, in one hop.
//!
//! ```text
//! broadcast of 4 from 0:   0→1  0→2  0→3          all-reduce: everybody to everybody
//! ```
//!
//! A reduction is one fold of all n operands in rank order, so half floats are rounded once. With b
//! pieces there is one round a piece, so that a receiver works on one piece while the next is
//! under way; all-reduce and barrier take one round whatever b is. On one port the messages of a
//! rank go one after the other, which is why the closed forms count them all: all-reduce
//! (n−1)(α + mβ + mγ); broadcast (n−1)(bα + mβ); reduce (n−1)(bα + mβ + mγ); reduce-scatter
//! (n−1)bα + (n−1)/n·m(β + γ); all-gather (n−1)bα + (n−1)/n·mβ.
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
    let round = |piece: usize| match collective {
        Collective::AllReduce | Collective::Barrier => vec![
            send_to_all_others(rank, world_size, all()),
            fold_in_rank_order(rank, world_size, all()),
        ],
        Collective::Broadcast if rank == root => {
            vec![send_to_all_others(rank, world_size, block(piece, 1))]
        }
        Collective::Broadcast => vec![Step::store(root, block(piece, 1))],
        Collective::Reduce if rank == root => {
            vec![fold_in_rank_order(rank, world_size, block(piece, 1))]
        }
        Collective::Reduce => vec![Step::send(root, block(piece, 1))],
        Collective::ReduceScatter => reduce_scatter_round(request, piece),
        Collective::AllGather => all_gather_round(request, piece),
    };
    (0..rounds(request)).map(round).collect()
}

/// One a piece where there is something to gain from pieces.
fn rounds(request: &Request) -> usize {
    match request.collective {
        Collective::AllReduce | Collective::Barrier => 1,
        _ => request.pieces,
    }
}

/// Each rank sends the piece of block j to rank j and folds what it gets into that of its own.
pub(super) fn reduce_scatter_round(request: &Request, piece: usize) -> Round {
    let (rank, n) = (request.rank, request.world_size);
    let part_of = |owner: usize| block(owner * request.pieces + piece, 1);
    others(rank, n)
        .map(|peer| Step::send(peer, part_of(peer)))
        .chain([fold_in_rank_order(rank, n, part_of(rank))])
        .collect()
}

/// Each rank sends the piece of its block to all others and stores theirs.
pub(super) fn all_gather_round(request: &Request, piece: usize) -> Round {
    let (rank, n) = (request.rank, request.world_size);
    let part_of = |owner: usize| block(owner * request.pieces + piece, 1);
    let mut round = vec![send_to_all_others(rank, n, part_of(rank))];
    round.extend(others(rank, n).map(|peer| Step::store(peer, part_of(peer))));
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
    let rounds = rounds(request);
    Cost {
        rounds,
        messages_on_path: rounds as f64 * copies,
        volume_on_path: volume,
        folded_on_path: folded,
        max_sent_per_rank: sent,
    }
}
