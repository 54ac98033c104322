//! Flat: each contribution goes directly to the ranks that need it, in a single hop.
//!
//! ```text
//! broadcast of 4 from 0:   0→1  0→2  0→3          all-reduce: every rank to every rank
//! ```
//!
//! A reduction combines all n operands in a single step, in rank order, so half-precision results
//! are rounded only once. With b pieces, there is one round per piece, so a receiver can process
//! one piece while the next is in flight. All-reduce and barrier take one round for any b. A rank's
//! messages pass through its port in sequence, so the closed forms count all of them:
//!
//! - all-reduce: (n−1)(α + mβ + mγ)
//! - broadcast: (n−1)(bα + mβ)
//! - reduce: (n−1)(bα + mβ + mγ)
//! - reduce-scatter: (n−1)bα + (n−1)/n·m(β + γ)
//! - all-gather, gather, scatter and all-to-all: (n−1)bα + (n−1)/n·mβ
//!
//! Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in
//! MPICH" (IJHPCA 2005), the linear and spread-out baselines; the one-shot all-reduce is the
//! symmetric small-message algorithm of shared-memory libraries.

use super::Entry;
use super::blocks::{FREE, all_but_one, block, whole};
use crate::ir::{ChunkRange, Request, Round, Source, Step};
use crate::price::Cost;
use crate::spec::{Collective, is_blocked};

/// The entry in the registry.
pub(super) const ENTRY: Entry = Entry {
    name: "flat",
    meaning: "Each rank's data goes straight to the ranks that need it.",
    collectives: &[
        Collective::AllReduce,
        Collective::Broadcast,
        Collective::Reduce,
        Collective::ReduceScatter,
        Collective::AllGather,
        Collective::Gather,
        Collective::Scatter,
        Collective::AllToAll,
        Collective::Barrier,
    ],
    source: "linear and spread-out baselines of Thakur, Rabenseifner, Gropp (IJHPCA 2005)",
    is_symmetric: |collective| !collective.is_rooted(),
    is_direct: true,
    chunks,
    build,
    cost,
    is_pipelined: |collective| !matches!(collective, Collective::AllReduce | Collective::Barrier),
    ..Entry::PLAIN
};

fn chunks(request: &Request) -> usize {
    match request.collective {
        Collective::Barrier => 1,
        collective if is_blocked(collective) => request.world_size * request.pieces,
        _ => request.pieces,
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
    let ranks: Vec<usize> = (0..world_size).collect();
    let part = |piece: usize| move |owner: usize| block(owner * pieces + piece, 1);
    let round = |piece: usize| match collective {
        Collective::AllReduce | Collective::Barrier => {
            let all = whole(chunks(request));
            vec![
                send_to_others(rank, &ranks, all.clone()),
                fold_in_rank_order(rank, &ranks, all, true),
            ]
        }
        Collective::Broadcast => broadcast_round(rank, root, &ranks, block(piece, 1)),
        Collective::Reduce => reduce_round(rank, root, &ranks, block(piece, 1), true),
        Collective::ReduceScatter => reduce_scatter_round(rank, &ranks, true, part(piece)),
        Collective::AllGather => all_gather_round(rank, &ranks, part(piece)),
        Collective::Gather => gather_round(rank, root, &ranks, part(piece)),
        Collective::Scatter => scatter_round(rank, root, &ranks, part(piece)),
        Collective::AllToAll => exchange_round(others(rank, &ranks), part(piece)),
    };
    (0..rounds(request)).map(round).collect()
}

/// Returns the number of rounds: one per piece, or a single round if the collective does not
/// benefit from pieces.
fn rounds(request: &Request) -> usize {
    match request.collective {
        Collective::AllReduce | Collective::Barrier => 1,
        _ => request.pieces,
    }
}

/// Returns a round in which the root sends `ranges` to the other `ranks`.
pub(super) fn broadcast_round(
    rank: usize,
    root: usize,
    ranks: &[usize],
    ranges: Vec<ChunkRange>,
) -> Round {
    if rank == root {
        vec![send_to_others(rank, ranks, ranges)]
    } else {
        vec![Step::store(root, ranges)]
    }
}

/// Returns a round in which all `ranks` send `ranges` to the root, which reduces them.
pub(super) fn reduce_round(
    rank: usize,
    root: usize,
    ranks: &[usize],
    ranges: Vec<ChunkRange>,
    completes: bool,
) -> Round {
    if rank == root {
        vec![fold_in_rank_order(rank, ranks, ranges, completes)]
    } else {
        vec![Step::send(root, ranges)]
    }
}

/// Returns a round in which each of `ranks` sends every other rank that rank's part and reduces the
/// parts that it receives into its own part.
pub(super) fn reduce_scatter_round(
    rank: usize,
    ranks: &[usize],
    completes: bool,
    part_of: impl Fn(usize) -> Vec<ChunkRange>,
) -> Round {
    others(rank, ranks)
        .map(|peer| Step::send(peer, part_of(peer)))
        .chain([fold_in_rank_order(rank, ranks, part_of(rank), completes)])
        .collect()
}

/// Returns a round in which each of `ranks` sends its part to all others and stores theirs.
pub(super) fn all_gather_round(
    rank: usize,
    ranks: &[usize],
    part_of: impl Fn(usize) -> Vec<ChunkRange>,
) -> Round {
    let mut round = vec![send_to_others(rank, ranks, part_of(rank))];
    round.extend(others(rank, ranks).map(|peer| Step::store(peer, part_of(peer))));
    round
}

/// Returns a round in which each of `ranks` sends its part to the root, which stores it.
pub(super) fn gather_round(
    rank: usize,
    root: usize,
    ranks: &[usize],
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

/// Returns a round in which the root sends each of `ranks` its part.
fn scatter_round(
    rank: usize,
    root: usize,
    ranks: &[usize],
    part_of: impl Fn(usize) -> Vec<ChunkRange>,
) -> Round {
    if rank == root {
        others(rank, ranks)
            .map(|peer| Step::send(peer, part_of(peer)))
            .collect()
    } else {
        vec![Step::store(root, part_of(rank))]
    }
}

/// Returns a round in which this rank sends each of `peers` that peer's part, and replaces it with
/// the part that it receives from the peer.
pub(super) fn exchange_round(
    peers: impl Iterator<Item = usize> + Clone,
    part_of: impl Fn(usize) -> Vec<ChunkRange>,
) -> Round {
    let sends = peers.clone().map(|peer| Step::send(peer, part_of(peer)));
    let stores = peers.clone().map(|peer| Step::store(peer, part_of(peer)));
    sends.chain(stores).collect()
}

/// Returns all other ranks in `ranks`, beginning with the first one after `rank`, so that the
/// ranks do not all send to the same rank first. `ranks` must be in ascending order.
fn others(rank: usize, ranks: &[usize]) -> impl Iterator<Item = usize> + Clone {
    let (before, behind) = ranks.split_at(ranks.partition_point(|one| *one < rank));
    behind.iter().skip(1).chain(before).copied()
}

fn send_to_others(rank: usize, ranks: &[usize], ranges: Vec<ChunkRange>) -> Step {
    Step::Send {
        peers: others(rank, ranks).collect(),
        ranges,
    }
}

fn fold_in_rank_order(
    rank: usize,
    ranks: &[usize],
    ranges: Vec<ChunkRange>,
    completes: bool,
) -> Step {
    let source = |&peer: &usize| {
        if peer == rank {
            Source::Own
        } else {
            Source::Peer(peer)
        }
    };
    Step::Receive {
        sources: ranks.iter().map(source).collect(),
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
        Collective::Gather => (all_but_one(n), 0.0, 1.0 / n as f64),
        Collective::AllGather | Collective::Scatter | Collective::AllToAll => {
            (all_but_one(n), 0.0, all_but_one(n))
        }
    };
    let rounds = rounds(request);
    Cost {
        rounds,
        hops: 1.0,
        messages_on_path: rounds as f64 * copies,
        volume_on_path: volume,
        folded_on_path: folded,
        max_sent_per_rank: sent,
    }
}
