//! Hierarchical: inside the hosts over shared memory, between them with as few bytes as can be.
//!
//! ```text
//! all-reduce of 4, 2 a host    inside     0↔1  2↔3   each folds one half of the buffer
//!                              between    0↔2  1↔3   all-reduce of that half among equals
//!                              inside     0↔1  2↔3   each hands its half out
//! ```
//!
//! With g ranks on each of h hosts, the ranks of one place all-reduce a g-th of the buffer, so that
//! between hosts each rank sends 2(h−1)/h·m/g in 2⌈log₂ h⌉ rounds ([`super::circulant`]) and a host
//! no more than it must; inside, a [`super::two_shot`] is cut in the middle.
//!
//! Hosts may have different numbers of ranks. A rank always holds a g-th of the buffer for the g of
//! its own host ([`shares`]), and exchanges with all ranks of another host that hold part of it:
//!
//! ```text
//! all-reduce of 3, on hosts of 2 and 1    inside     0↔1         halves
//!                                         between    0↔2  1↔2    rank 2 holds both halves
//!                                         inside     0↔1
//! ```
//!
//! A broadcast goes to one rank of each host by a [`super::binomial`] tree over the hosts, then
//! flat inside each; a reduce is the same backwards. That rank is the root, and elsewhere the one
//! in its place, counted round where a host has fewer. With one rank a host, or one host, what is
//! left is the stage that has something to do. The cost is the sum of the stages', of which each
//! lasts as long as on the slowest host.
//!
//! Inside, b pieces take a round each. What a rank folds is cut into pieces across the blocks that
//! it then exchanges: both begin at the same chunk, and each is contiguous.
//!
//! Source: Bayatpour, Chakraborty, Subramoni, Lu, Panda, "Scalable Reduction Collectives with Data
//! Partitioning-based Multi-Leader Design" (SC 2017), every rank of a host being a leader;
//! Kielmann, Hofman, Bal, Plaat, Bhoedjang, "MagPIe" (PPoPP 1999), for the rooted ones.

mod shares;

use super::binomial::{Tree, children, depth};
use super::blocks::{FREE, all_but_one, ceil_log2, real_rank, virtual_rank};
use super::circulant::exchange::{Circle, counts};
use super::circulant::skips;
use super::flat::{all_gather_round, broadcast_round, reduce_round, reduce_scatter_round};
use super::{Entry, REGISTRY, Stages};
use crate::plan::ir::{ChunkRange, Request, Round, Step};
use crate::plan::price::Cost;
use crate::plan::spec::{Algorithm, Collective};
use crate::plan::topology::{Hosts, Sharing, Topology};
use shares::Shares;

/// The registry's line.
pub(super) const ENTRY: Entry = Entry {
    name: "hierarchical",
    collectives: &[
        Collective::AllReduce,
        Collective::Broadcast,
        Collective::Reduce,
    ],
    source: "Bayatpour et al. (SC 2017), every rank a leader; Kielmann et al., MagPIe (PPoPP 1999)",
    chunks: |request| match request.collective.is_rooted() {
        true => request.pieces,
        false => {
            let topology = request.topology();
            Shares::of(&topology).units * topology.host_count() * request.pieces
        }
    },
    build,
    cost,
    stages: Some(stages),
    // On one host, or with one rank a host, it is one of its stages by another name.
    is_offered: |offer| offer.topology.sharing() == Sharing::Some,
    ..Entry::PLAIN
};

/// What the ranks of one host do: of `request` those of the whole world, if that is one host.
fn inside(request: &Request) -> (&'static Entry, Request) {
    let algorithm = match request.collective {
        Collective::AllReduce => Algorithm::TwoShot,
        _ => Algorithm::Flat,
    };
    let inside = Request {
        algorithm,
        ..request.clone()
    };
    (REGISTRY[algorithm.number()], inside)
}

fn stages(request: &Request) -> Stages {
    let of_size = |&size: &usize| Request {
        world_size: size,
        rank: 0,
        root: 0,
        hosts: Hosts::each(size),
        ..inside(request).1
    };
    let topology = request.topology();
    let sizes = topology.sizes().iter();
    Stages {
        inside: sizes.filter(|size| **size > 1).map(of_size).collect(),
        between: cost_between(request, &topology),
    }
}

fn build(request: &Request) -> Vec<Round> {
    let topology = request.topology();
    if topology.host_count() == 1 {
        let (entry, inside) = inside(request);
        return (entry.build)(&inside);
    }
    match request.collective {
        Collective::AllReduce => all_reduce(request, &topology),
        _ => rooted(request, &topology),
    }
}

/// One round a piece, in which the ranks of this rank's host do `round`: no round if no host has
/// several ranks.
fn inside_rounds(
    request: &Request,
    topology: &Topology,
    round: impl Fn(&[usize], usize) -> Round,
) -> Vec<Round> {
    if topology.sharing() == Sharing::None {
        return Vec::new();
    }
    let ranks = topology.ranks_of(topology.host_of(request.rank));
    let of_piece = |piece| match ranks.len() {
        1 => Vec::new(),
        _ => round(&ranks, piece),
    };
    (0..request.pieces).map(of_piece).collect()
}

fn all_reduce(request: &Request, topology: &Topology) -> Vec<Round> {
    let (rank, pieces) = (request.rank, request.pieces);
    let (host, places) = (topology.host_of(rank), topology.host_count());
    let shares = Shares::of(topology);
    let size = topology.size_of(host);
    let part = |piece: usize| {
        let shares = &shares;
        move |rank: usize| {
            let held = shares.held(size, topology.place_of(rank));
            let first = (held.start * pieces + held.len() * piece) * places;
            vec![ChunkRange::new(first, held.len() * places)]
        }
    };
    let held = shares.held(size, topology.place_of(rank));
    let segments = shares.segments(&held);
    let circles: Vec<_> = segments
        .iter()
        .map(|segment| Circle {
            places,
            radix: 2,
            own: host,
            pieces: segment.len() * pieces,
            first_chunk: segment.start * places * pieces,
            rank_in: |host| {
                let holder = shares.holder(topology.size_of(host), segment.start);
                topology.rank_at(host, holder)
            },
        })
        .collect();
    let mut rounds = inside_rounds(request, topology, |ranks, piece| {
        reduce_scatter_round(rank, ranks, false, part(piece))
    });
    rounds.extend(side_by_side(circles.iter().map(Circle::reduce_scatter)));
    rounds.extend(side_by_side(circles.iter().map(Circle::all_gather)));
    rounds.extend(inside_rounds(request, topology, |ranks, piece| {
        all_gather_round(rank, ranks, part(piece))
    }));
    rounds
}

/// The rounds of several exchanges at once. What goes from one rank to another is one message.
fn side_by_side(exchanges: impl Iterator<Item = Vec<Round>>) -> Vec<Round> {
    let mut rounds: Vec<Round> = Vec::new();
    for exchange in exchanges {
        rounds.resize_with(exchange.len(), Vec::new);
        for (round, steps) in rounds.iter_mut().zip(exchange) {
            for step in steps {
                if !round.iter_mut().any(|one| joins(one, &step)) {
                    round.push(step);
                }
            }
        }
    }
    for round in &mut rounds {
        round.sort_by_key(|step| !matches!(step, Step::Send { .. }));
    }
    rounds
}

/// Adds the chunks of `other` to those of `step` if both are parts of one message.
fn joins(step: &mut Step, other: &Step) -> bool {
    match (step, other) {
        (
            Step::Send { peers, ranges },
            Step::Send {
                peers: other_peers,
                ranges: more,
            },
        ) if peers == other_peers => ranges.extend(more),
        (
            Step::Receive {
                sources, ranges, ..
            },
            Step::Receive {
                sources: other_sources,
                ranges: more,
                ..
            },
        ) if sources == other_sources => ranges.extend(more),
        _ => return false,
    }
    true
}

/// A broadcast or a reduce. One rank leads each host.
fn rooted(request: &Request, topology: &Topology) -> Vec<Round> {
    let (rank, pieces) = (request.rank, request.pieces);
    let (host, hosts) = (topology.host_of(rank), topology.host_count());
    let (root_host, place) = (
        topology.host_of(request.root),
        topology.place_of(request.root),
    );
    let leader_of = |host| topology.rank_at(host, place % topology.size_of(host));
    let leader = leader_of(host);
    let tree = Tree {
        members: hosts,
        radix: 2,
        own: virtual_rank(host, root_host, hosts),
        rank_of: |member| leader_of(real_rank(member, root_host, hosts)),
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
    let inside = inside_rounds(request, topology, |ranks, index| {
        if is_broadcast {
            broadcast_round(rank, leader, ranks, piece(index))
        } else {
            reduce_round(rank, leader, ranks, piece(index), false)
        }
    });
    if is_broadcast {
        [among_leaders, inside].concat()
    } else {
        [inside, among_leaders].concat()
    }
}

fn cost(request: &Request) -> Cost {
    let topology = request.topology();
    if topology.host_count() == 1 {
        let (entry, inside) = inside(request);
        return (entry.cost)(&inside);
    }
    let inside = cost_inside(request, &topology);
    let between = cost_between(request, &topology);
    Cost {
        rounds: inside.rounds + between.rounds,
        hops: inside.hops + between.hops,
        messages_on_path: inside.messages_on_path + between.messages_on_path,
        volume_on_path: inside.volume_on_path + between.volume_on_path,
        folded_on_path: inside.folded_on_path + between.folded_on_path,
        max_sent_per_rank: max_sent(request, &topology),
    }
}

/// Inside hosts: the largest has most to do, but for what cannot be cut evenly.
fn cost_inside(request: &Request, topology: &Topology) -> Cost {
    if topology.sharing() == Sharing::None {
        return FREE;
    }
    let others = |size: &usize| (size - 1) as f64;
    let most = |of_size: &dyn Fn(&usize) -> f64| {
        let all = topology.sizes().iter().map(of_size);
        all.fold(0.0, f64::max)
    };
    let (ways, volume, folds) = match request.collective {
        Collective::AllReduce => {
            let shares = Shares::of(topology);
            (2, most(&|size| others(size) * shares.share(*size)), 1.0)
        }
        Collective::Reduce => (1, most(&others), 1.0),
        _ => (1, most(&others), 0.0),
    };
    let rounds = ways * request.pieces;
    Cost {
        rounds,
        hops: ways as f64,
        messages_on_path: rounds as f64 * most(&others),
        volume_on_path: ways as f64 * volume,
        folded_on_path: folds * volume,
        max_sent_per_rank: 0.0,
    }
}

/// Between hosts: the smallest has fewest ranks to share the bytes.
fn cost_between(request: &Request, topology: &Topology) -> Cost {
    let hosts = topology.host_count();
    if request.collective != Collective::AllReduce {
        let rounds = ceil_log2(hosts);
        let folds = request.collective == Collective::Reduce;
        return Cost {
            rounds,
            hops: depth(hosts, 2) as f64,
            messages_on_path: rounds as f64,
            volume_on_path: rounds as f64,
            folded_on_path: if folds { rounds as f64 } else { 0.0 },
            max_sent_per_rank: 0.0,
        };
    }
    let shares = Shares::of(topology);
    let moved = all_but_one(hosts) * shares.share(topology.sizes()[0]);
    let skips = skips(hosts, 2);
    let messages = skips[..skips.len() - 1]
        .iter()
        .map(|skip| partners(*skip, topology, &shares));
    Cost {
        rounds: 2 * ceil_log2(hosts),
        hops: 2.0 * counts(hosts, 2).hops as f64,
        messages_on_path: 2.0 * messages.sum::<usize>() as f64,
        volume_on_path: 2.0 * moved,
        folded_on_path: moved,
        max_sent_per_rank: 0.0,
    }
}

/// How many messages a rank sends or receives at most in a round over the hosts `skip` apart.
fn partners(skip: usize, topology: &Topology, shares: &Shares) -> usize {
    if let [_] = topology.sizes() {
        return 1;
    }
    let hosts = topology.host_count();
    let of_pair = |host: usize| {
        let (one, other) = (
            topology.size_of(host),
            topology.size_of((host + skip) % hosts),
        );
        shares.partners(one, other).max(shares.partners(other, one))
    };
    (0..hosts).map(of_pair).max().unwrap_or(0)
}

fn max_sent(request: &Request, topology: &Topology) -> f64 {
    let (hosts, sizes) = (topology.host_count(), topology.sizes().iter());
    match request.collective {
        Collective::AllReduce => {
            let shares = Shares::of(topology);
            // The others' shares, then its own to them; and its own to other hosts.
            let sent = |size: &usize| {
                let share = shares.share(*size);
                1.0 - share + (size - 1) as f64 * share + 2.0 * all_but_one(hosts) * share
            };
            sizes.map(sent).fold(0.0, f64::max)
        }
        // A rank that sends to the leader of its host is no leader.
        Collective::Reduce => 1.0,
        _ => {
            let root = topology.host_of(request.root);
            let sent = |member| {
                let size = topology.size_of(real_rank(member, root, hosts));
                size - 1 + children(member, hosts)
            };
            (0..hosts).map(sent).max().unwrap_or(0) as f64
        }
    }
}
