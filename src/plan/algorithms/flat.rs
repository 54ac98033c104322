//! Flat: every contribution goes straight to the ranks that need it, in one hop.
//!
//! ```text
//! broadcast of 4 from 0:   0→1  0→2  0→3          all-reduce: every rank to every rank
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
use crate::plan::ir::{ChunkRange, Request, Round, Source, Step};
use crate::plan::price::Cost;
use crate::plan::spec::Collective;
use std::ops::Range;

/// The registry's line.
pub(super) const ENTRY: Entry = Entry {
    name: "flat",
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
    chunks,
    build,
    cost,
    is_pipelined: |collective| !matches!(collective, Collective::AllReduce | Collective::Barrier),
    ..Entry::PLAIN
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
    let ranks = 0..world_size;
    let part = |piece: usize| move |owner: usize| block(owner * pieces + piece, 1);
    let round = |piece: usize| match collective {
        Collective::AllReduce | Collective::Barrier => {
            let all = whole(chunks(collective, world_size, pieces));
            vec![
                send_to_others(rank, &ranks, all.clone()),
                fold_in_rank_order(rank, &ranks, all, true),
            ]
        }
        Collective::Broadcast => broadcast_round(rank, root, &ranks, block(piece, 1)),
        Collective::Reduce => reduce_round(rank, root, &ranks, block(piece, 1), true),
        Collective::ReduceScatter => reduce_scatter_round(rank, &ranks, true, part(piece)),
        Collective::AllGather => all_gather_round(rank, &ranks, part(piece)),
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

/// The root sends `ranges` to the other `ranks`.
pub(super) fn broadcast_round(
    rank: usize,
    root: usize,
    ranks: &Range<usize>,
    ranges: Vec<ChunkRange>,
) -> Round {
    if rank == root {
        vec![send_to_others(rank, ranks, ranges)]
    } else {
        vec![Step::store(root, ranges)]
    }
}

/// All `ranks` send `ranges` to the root, which folds them.
pub(super) fn reduce_round(
    rank: usize,
    root: usize,
    ranks: &Range<usize>,
    ranges: Vec<ChunkRange>,
    completes: bool,
) -> Round {
    if rank == root {
        vec![fold_in_rank_order(rank, ranks, ranges, completes)]
    } else {
        vec![Step::send(root, ranges)]
    }
}

/// Each of `ranks` sends every other its part and folds what it gets into its own.
pub(super) fn reduce_scatter_round(
    rank: usize,
    ranks: &Range<usize>,
    completes: bool,
    part_of: impl Fn(usize) -> Vec<ChunkRange>,
) -> Round {
    others(rank, ranks)
        .map(|peer| Step::send(peer, part_of(peer)))
        .chain([fold_in_rank_order(rank, ranks, part_of(rank), completes)])
        .collect()
}

/// Each of `ranks` sends its part to all others and stores theirs.
pub(super) fn all_gather_round(
    rank: usize,
    ranks: &Range<usize>,
    part_of: impl Fn(usize) -> Vec<ChunkRange>,
) -> Round {
    let mut round = vec![send_to_others(rank, ranks, part_of(rank))];
    round.extend(others(rank, ranks).map(|peer| Step::store(peer, part_of(peer))));
    round
}

/// Each of `ranks` sends its part to the root, which stores it.
pub(super) fn gather_round(
    rank: usize,
    root: usize,
    ranks: &Range<usize>,
    part_of: impl Fn(usize) -> Vec<ChunkRange>,
) -> Round {
    if rank == root {
        others(rank, ranks)
            .map(|peer| Step::store(peer, part_of(peer)))
            .collect()
    } else {
        vec![Step::send(root, part_of(rank))]
    }
}

/// The others of `ranks`, beginning behind `rank`, so that not all send to the same one first.
fn others(rank: usize, ranks: &Range<usize>) -> impl Iterator<Item = usize> {
    (rank + 1..ranks.end).chain(ranks.start..rank)
}

fn send_to_others(rank: usize, ranks: &Range<usize>, ranges: Vec<ChunkRange>) -> Step {
    Step::Send {
        peers: others(rank, ranks).collect(),
        ranges,
    }
}

fn fold_in_rank_order(
    rank: usize,
    ranks: &Range<usize>,
    ranges: Vec<ChunkRange>,
    completes: bool,
) -> Step {
    let source = |peer| {
        if peer == rank {
            Source::Own
        } else {
            Source::Peer(peer)
        }
    };
    Step::Receive {
        sources: ranks.clone().map(source).collect(),
        ranges,
        completes,
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
