//! Hierarchical: inside the hosts over shared memory, between them with as few bytes as can be.
//!
//! ```text
//! all-reduce of 4, 2 a host    inside     0↔1  2↔3   each folds one half of the buffer
//!                              between    0↔2  1↔3   all-reduce of that half among equals
//!                              inside     0↔1  2↔3   each hands its half out
//! ```
//!
//! With g ranks on each of h hosts, the ranks of one local index all-reduce a g-th of the buffer,
//! so that between hosts each rank sends 2(h−1)/h·m/g in 2⌈log₂ h⌉ rounds ([`super::circulant`])
//! and a host no more than it must; inside, a [`super::two_shot`] is cut in the middle. A broadcast
//! goes to the ranks with the root's local index by a [`super::binomial`] tree over the hosts, then
//! flat inside each; a reduce is the same backwards. With one rank a host, or one host, what is
//! left is the stage that has something to do. The cost is the sum of the stages'.
//!
//! Inside, b pieces take a round each. What a rank folds is cut into pieces across the blocks that
//! its equals then exchange: both begin at the same chunk, and each is contiguous.
//!
//! Source: Bayatpour, Chakraborty, Subramoni, Lu, Panda, "Scalable Reduction Collectives with Data
//! Partitioning-based Multi-Leader Design" (SC 2017), every rank of a host being a leader;
//! Kielmann, Hofman, Bal, Plaat, Bhoedjang, "MagPIe" (PPoPP 1999), for the rooted ones.

use super::binomial::Tree;
use super::blocks::{FREE, real_rank, virtual_rank};
use super::circulant::exchange::Circle;
use super::flat::{all_gather_round, broadcast_round, reduce_round, reduce_scatter_round};
use super::{Entry, REGISTRY, Stages};
use crate::plan::ir::{ChunkRange, Request, Round};
use crate::plan::price::Cost;
use crate::plan::spec::{Algorithm, Collective};
use crate::plan::topology::Sharing;

/// The registry's line.
pub(super) const ENTRY: Entry = Entry {
    name: "hierarchical",
    collectives: &[
        Collective::AllReduce,
        Collective::Broadcast,
        Collective::Reduce,
    ],
    source: "Bayatpour et al. (SC 2017), every rank a leader; Kielmann et al., MagPIe (PPoPP 1999)",
    chunks: |collective, world_size, pieces| {
        if collective.is_rooted() {
            pieces
        } else {
            world_size * pieces
        }
    },
    build,
    cost,
    stages: Some(stages),
    // On one host, or with one rank a host, it is one of its stages by another name.
    is_offered: |offer| offer.topology.sharing() == Sharing::Some,
    ..Entry::PLAIN
};

/// What is done inside a host, and what between hosts.
fn entries(collective: Collective) -> (&'static Entry, &'static Entry) {
    let (inside, between) = match collective {
        Collective::AllReduce => (Algorithm::TwoShot, Algorithm::Circulant),
        _ => (Algorithm::Flat, Algorithm::Binomial),
    };
    (REGISTRY[inside.number()], REGISTRY[between.number()])
}

fn stages(request: &Request) -> Stages {
    let g = request.ranks_per_host;
    let (inside, between) = entries(request.collective);
    Stages {
        inside: Request {
            algorithm: inside.algorithm,
            world_size: g,
            rank: request.rank % g,
            root: request.root % g,
            ..*request
        },
        between: Request {
            algorithm: between.algorithm,
            world_size: request.world_size / g,
            rank: request.rank / g,
            root: request.root / g,
            ranks_per_host: 1,
            ..*request
        },
        share_between: match request.collective {
            Collective::AllReduce => 1.0 / g as f64,
            _ => 1.0,
        },
    }
}

fn build(request: &Request) -> Vec<Round> {
    let Stages {
        inside, between, ..
    } = stages(request);
    let (inside_entry, between_entry) = entries(request.collective);
    if inside.world_size == 1 {
        return (between_entry.build)(&between);
    }
    if between.world_size == 1 {
        return (inside_entry.build)(&inside);
    }
    match request.collective {
        Collective::AllReduce => all_reduce(request, &inside, &between),
        _ => rooted(request, &inside, &between),
    }
}

fn all_reduce(request: &Request, inside: &Request, between: &Request) -> Vec<Round> {
    let (rank, pieces) = (request.rank, request.pieces);
    let (g, h) = (inside.world_size, between.world_size);
    let host = rank - inside.rank..rank - inside.rank + g;
    let share = |local: usize| local * h * pieces;
    let part =
        |piece: usize| move |rank: usize| vec![ChunkRange::new(share(rank % g) + piece * h, h)];
    let circle = Circle {
        places: h,
        own: between.rank,
        pieces,
        first_chunk: share(inside.rank),
        rank_in: |place| place * g + inside.rank,
    };
    let collect = |piece| reduce_scatter_round(rank, &host, false, part(piece));
    let mut rounds: Vec<Round> = (0..pieces).map(collect).collect();
    rounds.extend(circle.reduce_scatter());
    rounds.extend(circle.all_gather());
    rounds.extend((0..pieces).map(|piece| all_gather_round(rank, &host, part(piece))));
    rounds
}

/// A broadcast or a reduce. The ranks with the root's local index lead their hosts.
fn rooted(request: &Request, inside: &Request, between: &Request) -> Vec<Round> {
    let (rank, pieces) = (request.rank, request.pieces);
    let (g, h) = (inside.world_size, between.world_size);
    let host = rank - inside.rank..rank - inside.rank + g;
    let leader = host.start + inside.root;
    let tree = Tree {
        members: h,
        radix: 2,
        own: virtual_rank(between.rank, between.root, h),
        rank_of: |member| real_rank(member, between.root, h) * g + inside.root,
    };
    let piece = |piece| vec![ChunkRange::new(piece, 1)];
    let is_broadcast = request.collective == Collective::Broadcast;
    let mut among_leaders = if is_broadcast {
        tree.broadcast(pieces)
    } else {
        tree.reduce(pieces)
    };
    if rank != leader {
        among_leaders.iter_mut().for_each(Vec::clear);
    }
    if is_broadcast {
        let hand_out = |index| broadcast_round(rank, leader, &host, piece(index));
        among_leaders
            .into_iter()
            .chain((0..pieces).map(hand_out))
            .collect()
    } else {
        let collect = |index| reduce_round(rank, leader, &host, piece(index), false);
        (0..pieces).map(collect).chain(among_leaders).collect()
    }
}

fn cost(request: &Request) -> Cost {
    let stages = stages(request);
    let (inside_entry, between_entry) = entries(request.collective);
    let of = |entry: &Entry, stage: &Request| match stage.world_size {
        1 => FREE,
        _ => (entry.cost)(stage),
    };
    let inside = of(inside_entry, &stages.inside);
    let between = of(between_entry, &stages.between);
    let share = stages.share_between;
    Cost {
        rounds: inside.rounds + between.rounds,
        messages_on_path: inside.messages_on_path + between.messages_on_path,
        volume_on_path: inside.volume_on_path + share * between.volume_on_path,
        folded_on_path: inside.folded_on_path + share * between.folded_on_path,
        max_sent_per_rank: match request.collective {
            // A rank that sends to the leader of its host is no leader.
            Collective::Reduce => inside.max_sent_per_rank.max(between.max_sent_per_rank),
            _ => inside.max_sent_per_rank + share * between.max_sent_per_rank,
        },
    }
}
