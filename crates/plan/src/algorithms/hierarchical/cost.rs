//! Computes the cost of each level in closed form.

use super::levels::{BufferDivision, Kind};
use super::shares::Share;
use super::{inside, rounds_one_way};
use crate::algorithms::binomial::{children, depth};
use crate::algorithms::blocks::{FREE, all_but_one, ceil_log2, virtual_rank};
use crate::algorithms::circulant::exchange::counts;
use crate::algorithms::circulant::skips;
use crate::algorithms::{Across, Stages};
use crate::ir::Request;
use crate::price::Cost;
use crate::spec::Collective;
use crate::topology::{Hosts, Sharing, Topology, sharing};

pub(super) fn stages(request: &Request) -> Stages {
    let of_size = |&size: &usize| Request {
        world_size: size,
        rank: 0,
        root: 0,
        hosts: Hosts::each(size),
        ..inside(request).1
    };
    let topology = request.topology();
    let cut = BufferDivision::of(&topology);
    let sizes = topology.sizes().iter();
    Stages {
        inside: sizes.filter(|size| **size > 1).map(of_size).collect(),
        between: between(request, &topology, &cut),
        across: across(request, &topology, &cut),
    }
}

pub(super) fn cost(request: &Request) -> Cost {
    let topology = request.topology();
    if topology.host_count() == 1 {
        let (entry, inside) = inside(request);
        return (entry.cost)(&inside);
    }
    let cut = BufferDivision::of(&topology);
    let inside = cost_inside(request, &topology, &cut);
    let between = between(request, &topology, &cut);
    let across = across(request, &topology, &cut).map_or(FREE, |across| across.cost);
    Cost {
        max_sent_per_rank: max_sent(request, &topology, &cut),
        ..inside.then(&between).then(&across)
    }
}

/// Returns the largest value of `of_kind` over the kinds of sites.
fn most(cut: &BufferDivision<'_>, of_kind: impl Fn(&Kind) -> f64) -> f64 {
    cut.kinds.iter().map(of_kind).fold(0.0, f64::max)
}

/// Returns the largest share of the buffer that any rank holds on a host with `size` ranks.
fn share_of(size: usize, kind: &Kind) -> f64 {
    kind.common.div_ceil(size) as f64 / kind.common as f64
}

/// Returns the cost inside hosts. The largest host has the most work, except where shares cannot be
/// equal.
fn cost_inside(request: &Request, topology: &Topology, cut: &BufferDivision<'_>) -> Cost {
    if sharing(topology) == Sharing::None {
        return FREE;
    }
    let others = |size: &usize| (size - 1) as f64;
    let most_of_sizes = |of_size: &dyn Fn(&usize, &Kind) -> f64| {
        most(cut, |kind| {
            let all = kind.sizes.iter().map(|size| of_size(size, kind));
            all.fold(0.0, f64::max)
        })
    };
    let messages = most_of_sizes(&|size, _| others(size));
    let (ways, volume, folds) = match request.collective {
        Collective::AllReduce => {
            let volume = most_of_sizes(&|size, kind| others(size) * share_of(*size, kind));
            (2, volume, 1.0)
        }
        Collective::Reduce => (1, messages, 1.0),
        _ => (1, messages, 0.0),
    };
    let rounds = ways * request.pieces;
    Cost {
        rounds,
        hops: ways as f64,
        messages_on_path: rounds as f64 * messages,
        volume_on_path: ways as f64 * volume,
        folded_on_path: folds * volume,
        max_sent_per_rank: 0.0,
    }
}

/// Returns the cost of the stage between the hosts at a site. The ranks of the smallest host send
/// the most bytes, because they have the largest shares.
fn between(request: &Request, topology: &Topology, cut: &BufferDivision<'_>) -> Cost {
    let hosts_of = |kind: &Kind| topology.hosts_at(kind.site);
    let hosts = cut.kinds.iter().map(hosts_of).max().unwrap_or(1);
    if request.collective != Collective::AllReduce {
        return rooted(request, ceil_log2(hosts), depth(hosts, 2));
    }
    let moved = most(cut, |kind| {
        all_but_one(hosts_of(kind)) * share_of(kind.sizes[0], kind)
    });
    let messages = most(cut, |kind| {
        let host = |place| topology.size_of(topology.host_at(kind.site, place));
        let share = |place| cut.host(host(place));
        let is_one_size = kind.sizes.len() == 1;
        messages(hosts_of(kind), is_one_size, kind.common, share)
    });
    exchange(hosts, messages, moved)
}

/// Returns the cost of a stage of a broadcast or a reduce. The busiest rank sends or receives the
/// buffer in each of `rounds` rounds.
fn rooted(request: &Request, rounds: usize, hops: usize) -> Cost {
    let passed = rounds as f64;
    let folds = request.collective == Collective::Reduce;
    Cost {
        rounds,
        hops: hops as f64,
        messages_on_path: passed,
        volume_on_path: passed,
        folded_on_path: if folds { passed } else { 0.0 },
        max_sent_per_rank: 0.0,
    }
}

/// Returns the cost of reducing and distributing among `groups` groups, if a rank sends `messages`
/// messages and the share `moved` of the buffer in one direction.
fn exchange(groups: usize, messages: f64, moved: f64) -> Cost {
    Cost {
        rounds: 2 * rounds_one_way(groups),
        hops: 2.0 * counts(groups, 2).hops as f64,
        messages_on_path: 2.0 * messages,
        volume_on_path: 2.0 * moved,
        folded_on_path: moved,
        max_sent_per_rank: 0.0,
    }
}

/// Returns the stage between sites, or `None` if there is only one site.
fn across(request: &Request, topology: &Topology, cut: &BufferDivision<'_>) -> Option<Across> {
    let sites = topology.site_count();
    if sites == 1 {
        return None;
    }
    if request.collective != Collective::AllReduce {
        return Some(Across {
            cost: rooted(request, sites - 1, sites - 1),
            uplink_volume: (sites - 1) as f64,
        });
    }
    let share = most(cut, |kind| max_held(kind, cut));
    let moved = all_but_one(sites) * share;
    let messages = messages(sites, cut.kinds.len() == 1, cut.common, |site| {
        let share = cut.kind_of(site).share.as_ref();
        share.expect("invariant: where there are several sites, each has a share")
    });
    Some(Across {
        cost: exchange(sites, messages, moved),
        uplink_volume: 2.0 * all_but_one(sites),
    })
}

/// Returns the largest share of the buffer that a rank at a site of this kind holds, or 0 if there
/// is only one site.
fn max_held(kind: &Kind, cut: &BufferDivision<'_>) -> f64 {
    let share = kind.share.as_ref();
    share.map_or(0.0, |share| share.most(cut.common))
}

/// Returns the largest number of messages that a rank sends or receives in one direction of an
/// exchange between groups. `share` returns the share of a group, `are_equal` states whether all of
/// these shares are equal, and the buffer is divided into `common` units.
fn messages<'a>(
    groups: usize,
    are_equal: bool,
    common: usize,
    share: impl Fn(usize) -> &'a Share,
) -> f64 {
    let skips = skips(groups, 2);
    let partners = |skip: &usize| {
        let of_pair = |one: usize| {
            let (one, other) = (share(one), share((one + skip) % groups));
            one.partners(other, common).max(other.partners(one, common))
        };
        match are_equal {
            true => 1,
            false => (0..groups).map(of_pair).max().unwrap_or(0),
        }
    };
    let rounds = &skips[..skips.len() - 1];
    rounds.iter().map(partners).sum::<usize>() as f64
}

/// Returns the largest share of the buffer that a rank at a site of this kind sends in an
/// all-reduce.
fn max_sent_at(kind: &Kind, topology: &Topology, cut: &BufferDivision<'_>) -> f64 {
    let hosts = topology.hosts_at(kind.site);
    // Inside the host, a rank first sends each of the other ranks that rank's share, and later
    // sends its own share to all of them. Between hosts it sends its own share, and between sites
    // the part that it holds after the exchange between hosts.
    let sent = |size: usize, held: f64| {
        let share = share_of(size, kind);
        let to_hosts = 2.0 * all_but_one(hosts) * share;
        let to_sites = 2.0 * all_but_one(topology.site_count()) * held;
        1.0 - share + (size - 1) as f64 * share + to_hosts + to_sites
    };
    let Some(share) = &kind.share else {
        let of_sizes = kind.sizes.iter().map(|size| sent(*size, 0.0));
        return of_sizes.fold(0.0, f64::max);
    };
    let mut members = share.of_members(cut.common).into_iter();
    let of_host = |place| {
        let size = topology.size_of(topology.host_at(kind.site, place));
        let held = members.by_ref().take(size).max().unwrap_or(0);
        sent(size, held as f64 / cut.common as f64)
    };
    (0..hosts).map(of_host).fold(0.0, f64::max)
}

fn max_sent(request: &Request, topology: &Topology, cut: &BufferDivision<'_>) -> f64 {
    let sites = topology.site_count();
    match request.collective {
        Collective::AllReduce => most(cut, |kind| max_sent_at(kind, topology, cut)),
        // A rank sends at most once, because a rank that sends to its leader does not lead.
        Collective::Reduce => 1.0,
        _ => {
            let leaders = super::Leaders::of(topology, request.root);
            let sent = |host: usize| {
                let site = topology.site_of(host);
                let (hosts, first) = (topology.hosts_at(site), leaders.place_at(site));
                let member = virtual_rank(topology.place_of_host(host), first, hosts);
                let last = virtual_rank(site, leaders.root_site, sites) + 1 == sites;
                let onwards = usize::from(member == 0 && !last);
                topology.size_of(host) - 1 + children(member, hosts) + onwards
            };
            let hosts = 0..topology.host_count();
            hosts.map(sent).max().unwrap_or(0) as f64
        }
    }
}
