//! Hierarchical: collectives with separate stages inside hosts, between hosts and between sites.
//! The stage inside hosts uses shared memory, the stage between hosts sends the fewest possible
//! bytes, and the stage between sites sends the fewest possible bytes over the uplinks.
//!
//! ```text
//! all-reduce of 4, 2 per host  inside     0↔1  2↔3   each reduces one half of the buffer
//!                              between    0↔2  1↔3   all-reduce of that half
//!                              inside     0↔1  2↔3   each distributes its half
//! ```
//!
//! Every level processes the results of the level below in the same way. Each rank on a host
//! reduces one part of the buffer. Among the hosts at a site, the ranks that hold the same data
//! reduce parts of it, and then the sites do the same. The results travel back through the levels
//! in reverse order. With g ranks on each of h hosts, a rank exchanges 1/g of the buffer with other
//! hosts. It sends 2(h−1)/h·m/g in 2⌈log₂ h⌉ rounds (see [`super::circulant`]), and a host sends no
//! more than necessary. With c sites of h hosts each, a rank exchanges 1/(g·h) of the buffer with
//! other sites, and 2(c−1)/c·m pass through each site's uplink in each direction. The two stages
//! inside hosts are the two halves of a two-shot all-reduce ([`super::two_shot`]).
//!
//! Hosts and sites may have different numbers of ranks. A rank always holds as much as the other
//! ranks on its host or at its site (see [`shares`]). It exchanges data with all ranks on another
//! host or at another site that hold a part of the same data (see [`levels`]):
//!
//! ```text
//! all-reduce of 3, on hosts of 2 and 1    inside     0↔1         halves
//!                                         between    0↔2  1↔2    rank 2 holds both halves
//!                                         inside     0↔1
//! ```
//!
//! In a broadcast, the data first goes to one rank at each site along a chain of sites, so that it
//! crosses each uplink once. It then goes to one rank on each host at a site along a
//! [`super::binomial`] tree, and finally to all ranks on each host by a flat broadcast. A reduce is
//! the reverse. The rank that represents a site or host is the root or, elsewhere, the rank at the
//! root's position, modulo the size of smaller sites and hosts. Stages with nothing to do are
//! omitted. This is the case if there is only one rank per host, one host per site, or one site.
//! The cost is the sum of the costs of the stages, each on the slowest host or site.
//!
//! Inside hosts, each of the b pieces takes a separate round.
//!
//! Source: Bayatpour, Chakraborty, Subramoni, Lu, Panda, "Scalable Reduction Collectives with Data
//! Partitioning-based Multi-Leader Design" (SC 2017), with every rank on a host as a leader;
//! Kielmann, Hofman, Bal, Plaat, Bhoedjang, "MagPIe" (PPoPP 1999), for the rooted collectives and
//! for sites.

mod cost;
mod levels;
mod shares;

use super::binomial::Tree;
use super::blocks::{ceil_log2, real_rank, virtual_rank, whole};
use super::flat::{all_gather_round, broadcast_round, reduce_round, reduce_scatter_round};
use super::{Entry, REGISTRY};
use crate::ir::{ChunkRange, Request, Round, Step};
use crate::spec::{Algorithm, Collective};
use crate::topology::{Sharing, Topology, sharing};
use levels::{BufferDivision, clear_completes};

/// The entry in the registry.
pub(super) const ENTRY: Entry = Entry {
    name: "hierarchical",
    meaning: "The ranks on each host work together so that as few bytes as possible are sent \
              between hosts.",
    collectives: &[
        Collective::AllReduce,
        Collective::Broadcast,
        Collective::Reduce,
    ],
    source: "Bayatpour et al. (SC 2017), every rank a leader; Kielmann et al., MagPIe (PPoPP 1999)",
    chunks: |request| match request.collective.is_rooted() {
        true => request.pieces,
        false => BufferDivision::of(&request.topology()).units() * request.pieces,
    },
    build,
    cost: cost::cost,
    stages: Some(cost::stages),
    // On one host, or with one rank per host at a single site, the algorithm consists of just one
    // of its stages.
    is_offered: |offer| {
        sharing(&offer.topology) == Sharing::Some || offer.topology.site_count() > 1
    },
    ..Entry::PLAIN
};

/// Returns the entry and the request of the stage inside a host, as if all ranks of `request` were
/// on one host.
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

/// Returns the number of rounds in which `hosts` hosts reduce or distribute data.
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

/// Returns one round per piece, which `round` builds for the ranks on this rank's host. Returns no
/// rounds if no host has several ranks.
fn inside_rounds(
    request: &Request,
    topology: &Topology,
    round: impl Fn(&[usize], usize) -> Round,
) -> Vec<Round> {
    if sharing(topology) == Sharing::None {
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
    let cut = BufferDivision::of(topology);
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
    /// The position of the root on its host, and of that host at its site.
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

    /// Returns the position of a site's leading host among the hosts at the site.
    fn place_at(&self, site: usize) -> usize {
        self.places.1 % self.topology.hosts_at(site)
    }

    fn of_site(&self, site: usize) -> usize {
        let host = self.topology.host_at(site, self.place_at(site));
        self.of_host(host)
    }
}

/// Returns the rounds of a broadcast or a reduce.
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

/// Returns the rounds in which the leaders of the hosts at a site exchange data.
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
        clear_completes(&mut rounds);
        let hosts = (0..sites).map(|site| topology.hosts_at(site));
        rounds.resize_with(rounds_one_way(hosts.max().unwrap_or(1)), Vec::new);
    }
    rounds
}

/// Returns the rounds in which the leaders of the sites exchange data along a chain that begins at
/// the root.
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
    // In round e of a broadcast, member e sends to member e + 1. A reduce reverses both the
    // messages and the order of the rounds.
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
