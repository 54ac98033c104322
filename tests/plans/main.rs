//! Tests of plans: verify every algorithm in the registry for world sizes up to 64, run plans on
//! pseudo-random values, and check predicted costs.

#![allow(clippy::unwrap_used)]

mod documents;
mod examples;
mod formulas;
mod interpreter;
#[path = "../support/long.rs"]
mod long;
mod mutants;
mod mutations;
mod own;
mod prices;
mod proofs;
mod replay;
mod thesis;

use ringtree::plan::internal::algorithms;
use ringtree::plan::internal::price::{LinkCost, Question};
use ringtree::plan::internal::topology::in_sites_of;
use ringtree::plan::{Algorithm, Collective, Hosts, Plan, Request, Topology};

/// Returns the plans of all ranks, each on a separate host.
fn plans_of(
    collective: Collective,
    algorithm: Algorithm,
    world_size: usize,
    root: usize,
    pieces: usize,
) -> Vec<Plan> {
    plans_like(&Request {
        collective,
        algorithm,
        world_size,
        rank: 0,
        root,
        pieces,
        hosts: Hosts::APART,
    })
}

/// Returns the hosts at `site`.
fn hosts_at(topology: &Topology, site: usize) -> Vec<usize> {
    let hosts = 0..topology.host_count();
    hosts
        .filter(|host| topology.site_of(*host) == site)
        .collect()
}

/// Returns the plans of all ranks, given the request of one rank.
fn plans_like(request: &Request) -> Vec<Plan> {
    algorithms::plans(request).unwrap()
}

/// Largest world size whose ranks are also placed at several sites. Larger worlds take long to
/// verify.
const AT_SITES_MAX: usize = 32;

/// Returns placements of the ranks.
///
/// Algorithms that do not plan by hosts get only hosts of one rank. Other algorithms get:
///
/// - hosts with the same number of ranks, for each divisor of `world_size`
/// - hosts with the same number of ranks, except that the last host may have fewer
/// - two hosts with alternating ranks
/// - hosts of 1, 2, 3, … ranks
/// - if there are few ranks, some of these placements at sites
fn hosts(collective: Collective, algorithm: Algorithm, world_size: usize) -> Vec<Hosts> {
    if algorithms::entry(collective, algorithm)
        .unwrap()
        .stages
        .is_none()
    {
        return vec![Hosts::APART];
    }
    let by = |host_of: &dyn Fn(usize) -> usize| {
        Hosts::of(&(0..world_size).map(host_of).collect::<Vec<_>>())
    };
    let equal = (1..=world_size).filter(|&ranks| world_size.is_multiple_of(ranks));
    let mut all: Vec<Hosts> = equal.map(Hosts::each).collect();
    let last = [2, 3, world_size.saturating_sub(1)].into_iter();
    all.extend(
        last.filter(|ranks| *ranks > 1)
            .map(|ranks| by(&|rank| rank / ranks)),
    );
    all.push(by(&|rank| rank % 2));
    all.push(by(&|rank| (2 * rank).isqrt()));
    if world_size <= AT_SITES_MAX {
        all.extend(at_sites(world_size));
    }
    all
}

/// Returns placements at sites. Hosts have one rank, two ranks, or a growing number of ranks. Sites
/// have the same number of hosts or different numbers.
fn at_sites(world_size: usize) -> Vec<Hosts> {
    let growing: Vec<usize> = (0..world_size).map(|rank| (2 * rank).isqrt()).collect();
    let mut all = vec![in_sites_of(Hosts::APART, &vec![1; world_size])];
    for hosts in [Hosts::APART, Hosts::each(2), Hosts::of(&growing)] {
        let topology = Topology {
            world_size,
            hosts: hosts.clone(),
        };
        let count = topology.host_count();
        let put = |site_of: &dyn Fn(usize) -> usize| {
            let sites: Vec<usize> = (0..count).map(site_of).collect();
            hosts.clone().in_sites(&sites)
        };
        if world_size.is_multiple_of(4) {
            all.push(put(&|host| 2 * host / count));
        }
        if world_size.is_multiple_of(2) {
            all.push(put(&|host| host.isqrt() % 3));
            all.push(put(&|host| host % 2));
        }
    }
    all
}

/// Returns all roots of a small world, or some roots of a large one.
fn roots(collective: Collective, world_size: usize) -> Vec<usize> {
    if !collective.is_rooted() {
        vec![0]
    } else if world_size <= 16 {
        (0..world_size).collect()
    } else {
        vec![0, 1, world_size / 3, world_size - 1]
    }
}

/// Returns numbers of pieces: 1, 2, 3, 7 and the best number for 1 MiB over a 10 Gbit/s network. A
/// radix other than 2 gets only 2 pieces.
fn pieces(collective: Collective, algorithm: Algorithm, world_size: usize) -> Vec<usize> {
    let question = Question {
        collective,
        world_size,
        bytes: 1 << 20,
        link: LinkCost {
            alpha_s: 10e-6,
            overhead_s: 5e-6,
            beta_s_per_byte: 0.8e-9,
            gamma_s_per_byte: 0.1e-9,
        },
    };
    let entry = algorithms::entry(collective, algorithm).unwrap();
    let mut pieces = match algorithm.radix() {
        2 => vec![1, 2, 3, 7, (entry.pieces)(&question)],
        _ => vec![2],
    };
    pieces.sort_unstable();
    pieces.dedup();
    pieces
}
