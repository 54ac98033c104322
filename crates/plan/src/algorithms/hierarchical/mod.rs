//! Hierarchical: inside the hosts over shared memory, between them with as few bytes as can be, and
//! between sites with as few as can be over their uplinks.
//!
//! ```text
//! all-reduce of 4, 2 a host    inside     0↔1  2↔3   each folds one half of the buffer
//!                              between    0↔2  1↔3   all-reduce of that half among equals
//!                              inside     0↔1  2↔3   each hands its half out
//! ```
//!
//! Every level does the same with what the level below it leaves: the ranks of a host fold a part
//! each, the hosts of a site fold parts of these among the ranks that hold them, then the sites;
//! and back. With g ranks on each of h hosts, a rank exchanges a g-th of the buffer between hosts,
//! so that it sends 2(h−1)/h·m/g in 2⌈log₂ h⌉ rounds ([`super::circulant`]) and a host no more than
//! it must. Of c sites of h hosts it exchanges 1/(g·h), and 2(c−1)/c·m pass a site's uplink each
//! way. Inside hosts, a [`super::two_shot`] is cut in the middle.
//!
//! Hosts and sites may have different numbers of ranks. A rank always holds equally much as the
//! others of its host or site ([`shares`]), and exchanges with all ranks of another one that hold
//! part of it ([`levels`]):
//!
//! ```text
//! all-reduce of 3, on hosts of 2 and 1    inside     0↔1         halves
//!                                         between    0↔2  1↔2    rank 2 holds both halves
//!                                         inside     0↔1
//! ```
//!
//! A broadcast goes to one rank of each site along a chain of sites, so that it crosses each uplink
//! once, then to one rank of each host of a site by a [`super::binomial`] tree, then flat inside
//! each; a reduce is the same backwards. That rank is the root, and elsewhere the one in its place,
//! counted round where a site or a host has fewer. With one rank a host, one host a site, or one
//! site, what is left is the stages that have something to do. The cost is the sum of the stages',
//! of which each lasts as long as on the slowest host or site.
//!
//! Inside, b pieces take a round each.
//!
//! Source: Bayatpour, Chakraborty, Subramoni, Lu, Panda, "Scalable Reduction Collectives with Data
//! Partitioning-based Multi-Leader Design" (SC 2017), every rank of a host being a leader;
//! Kielmann, Hofman, Bal, Plaat, Bhoedjang, "MagPIe" (PPoPP 1999), for the rooted ones, and for
//! sites.

mod cost;
mod levels;
mod shares;

use super::binomial::Tree;
use super::blocks::{ceil_log2, real_rank, virtual_rank, whole};
use super::flat::{all_gather_round, broadcast_round, reduce_round, reduce_scatter_round};
use super::{Entry, REGISTRY};
use crate::ir::{ChunkRange, Request, Round, Step};
use crate::spec::{Algorithm, Collective};
use crate::topology::{Sharing, Topology};
use levels::{Cut, not_complete};

/// The registry's line.
pub(super) const ENTRY: Entry = Entry {
    name: "hierarchical",
    meaning: "Ranks work together inside each host and send as few bytes as possible between \
              hosts.",
    collectives: &[
        Collective::AllReduce,
        Collective::Broadcast,
        Collective::Reduce,
    ],
    source: "Bayatpour et al. (SC 2017), every rank a leader; Kielmann et al., MagPIe (PPoPP 1999)",
    chunks: |request| match request.collective.is_rooted() {
        true => request.pieces,
        false => Cut::of(&request.topology()).units() * request.pieces,
    },
    build,
    cost: cost::cost,
    stages: Some(cost::stages),
    // On one host, or with one rank a host at one site, it is one of its stages by another name.
    is_offered: |offer| {
        offer.topology.sharing() == Sharing::Some || offer.topology.site_count() > 1
    },
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

/// How many rounds the hosts of a site take to fold, or to hand out.
fn rounds_one_way(hosts: usize) -> usize {
    ceil_log2(hosts)
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
    let cut = Cut::of(topology);
    let part = |piece: usize| {
        let cut = &cut;
        move |rank: usize| cut.inside(rank, (piece, pieces))
    };
    let mut rounds = inside_rounds(request, topology, |ranks, piece| {
        reduce_scatter_round(rank, ranks, false, part(piece))
    });
    rounds.extend(cut.between(rank, pieces));
    rounds.extend(inside_rounds(request, topology, |ranks, piece| {
        all_gather_round(rank, ranks, part(piece))
    }));
    rounds
}

/// The ranks that lead each host and each site in a broadcast or a reduce.
struct Leaders<'a> {
    topology: &'a Topology,
    root_site: usize,
    /// The root's place in its host, and the place of its host at its site.
    places: (usize, usize),
}

impl<'a> Leaders<'a> {
    fn of(topology: &'a Topology, root: usize) -> Self {
        let host = topology.host_of(root);
        Self {
            topology,
            root_site: topology.site_of(host),
            places: (topology.place_of(root), topology.place_of_host(host)),
        }
    }

    fn of_host(&self, host: usize) -> usize {
        let place = self.places.0 % self.topology.size_of(host);
        self.topology.rank_at(host, place)
    }

    /// The place of a site's leading host among the hosts of the site.
    fn place_at(&self, site: usize) -> usize {
        self.places.1 % self.topology.hosts_at(site)
    }

    fn of_site(&self, site: usize) -> usize {
        let host = self.topology.host_at(site, self.place_at(site));
        self.of_host(host)
    }
}

/// A broadcast or a reduce.
fn rooted(request: &Request, topology: &Topology) -> Vec<Round> {
    let rank = request.rank;
    let leaders = Leaders::of(topology, request.root);
    let leader = leaders.of_host(topology.host_of(rank));
    let piece = |piece| vec![ChunkRange::new(piece, 1)];
    let is_broadcast = request.collective == Collective::Broadcast;
    let inside = inside_rounds(request, topology, |ranks, index| {
        if is_broadcast {
            broadcast_round(rank, leader, ranks, piece(index))
        } else {
            reduce_round(rank, leader, ranks, piece(index), false)
        }
    });
    let among_hosts = among_hosts(request, &leaders);
    let among_sites = among_sites(request, &leaders);
    if is_broadcast {
        [among_sites, among_hosts, inside].concat()
    } else {
        [inside, among_hosts, among_sites].concat()
    }
}

/// The rounds of the leaders of a site's hosts.
fn among_hosts(request: &Request, leaders: &Leaders<'_>) -> Vec<Round> {
    let Leaders { topology, .. } = leaders;
    let (host, sites) = (topology.host_of(request.rank), topology.site_count());
    let site = topology.site_of(host);
    let (hosts, first) = (topology.hosts_at(site), leaders.place_at(site));
    let tree = Tree {
        members: hosts,
        radix: 2,
        own: virtual_rank(topology.place_of_host(host), first, hosts),
        rank_of: |member| {
            let place = real_rank(member, first, hosts);
            leaders.of_host(topology.host_at(site, place))
        },
    };
    let mut rounds = match request.collective {
        Collective::Broadcast => tree.broadcast(request.pieces),
        _ => tree.reduce(request.pieces),
    };
    if request.rank != leaders.of_host(host) {
        rounds.iter_mut().for_each(Vec::clear);
    }
    if sites > 1 {
        not_complete(&mut rounds);
        let hosts = (0..sites).map(|site| topology.hosts_at(site));
        rounds.resize_with(rounds_one_way(hosts.max().unwrap_or(1)), Vec::new);
    }
    rounds
}

/// The rounds of the leaders of the sites, which stand in a chain that begins at the root.
fn among_sites(request: &Request, leaders: &Leaders<'_>) -> Vec<Round> {
    let Leaders {
        topology,
        root_site,
        ..
    } = leaders;
    let (sites, site) = (
        topology.site_count(),
        topology.site_of(topology.host_of(request.rank)),
    );
    let own = virtual_rank(site, *root_site, sites);
    let leader_of = |member| leaders.of_site(real_rank(member, *root_site, sites));
    let all = || whole(request.pieces);
    let leads = request.rank == leaders.of_site(site);
    // In round e the members e and e + 1 meet; a reduce begins at the other end.
    let round = |edge: usize| match request.collective {
        _ if !leads => Vec::new(),
        Collective::Broadcast if own == edge => vec![Step::send(leader_of(own + 1), all())],
        Collective::Broadcast if own == edge + 1 => vec![Step::store(leader_of(edge), all())],
        Collective::Reduce if own == edge + 1 => vec![Step::send(leader_of(edge), all())],
        Collective::Reduce if own == edge => {
            vec![Step::reduce(leader_of(own + 1), all(), edge == 0)]
        }
        _ => Vec::new(),
    };
    let rounds = (0..sites - 1).map(round);
    match request.collective {
        Collective::Broadcast => rounds.collect(),
        _ => rounds.rev().collect(),
    }
}
