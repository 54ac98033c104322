//! Verifies all algorithms in the registry, and compares their plans with formulas and costs.

use super::formulas::{expected, longest_of_sites, path};
use super::replay::replay;
use super::{hosts, pieces, plans_like, plans_of, roots};
use proptest::prelude::*;
use ringtree::plan::internal::algorithms;
use ringtree::plan::internal::algorithms::forms;
use ringtree::plan::internal::reproducible::is_in_rank_order;
use ringtree::plan::internal::topology::at_sites;
use ringtree::plan::{
    Algorithm, Collective, Cost, Hosts, Plan, Proof, REGISTRY, Request, Source, Step, Topology,
    verify,
};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Radixes of the sweep. With the last radix, a plan has a single round.
const RADIXES: [usize; 6] = [2, 3, 4, 5, 8, 64];

/// Verifies an algorithm for every world size, root, number of pieces and placement of the sweep.
fn sweep(algorithm: Algorithm) {
    for collective in Collective::ALL.iter().copied() {
        if algorithms::entry(collective, algorithm).is_none() {
            continue;
        }
        for world_size in 1..=64 {
            for root in roots(collective, world_size) {
                for pieces in pieces(collective, algorithm, world_size) {
                    for hosts in hosts(collective, algorithm, world_size) {
                        let request = Request {
                            collective,
                            algorithm,
                            world_size,
                            rank: 0,
                            root,
                            pieces,
                            hosts,
                        };
                        check(&plans_like(&request), &format!("{request:?}"));
                    }
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn plans_for_any_placement_are_verified(
        ranks in prop::collection::vec((0..7usize, 0..4usize), 1..=40),
        (root, pieces) in (0..40usize, 1..4usize),
    ) {
        let world_size = ranks.len();
        let (hosts, sites): (Vec<usize>, Vec<usize>) = ranks.into_iter().unzip();
        let topology = at_sites(&hosts, &sites);
        for entry in REGISTRY.iter().filter(|entry| entry.stages.is_some()) {
            for &collective in entry.collectives {
                let request = Request {
                    collective,
                    algorithm: entry.algorithm,
                    world_size,
                    rank: 0,
                    root: if collective.is_rooted() { root % world_size } else { 0 },
                    pieces,
                    hosts: topology.hosts.clone(),
                };
                check(&plans_like(&request), &format!("{request:?}"));
            }
        }
    }
}

fn check(plans: &[Plan], name: &str) {
    let proof = verify(plans).unwrap_or_else(|fault| panic!("{name}: {fault}"));
    let request = &plans[0].request;
    let (collective, algorithm) = (request.collective, request.algorithm);
    assert!(proof.bits_agree, "{name}");
    check_order(&proof, request, name);

    if let Some(formula) = expected(request) {
        assert_eq!(plans[0].chunks, formula.chunks, "{name}");
        assert_eq!(proof.rounds, formula.rounds, "{name}");
        assert_eq!(proof.max_chunks_sent, formula.max_chunks_sent, "{name}");
    }

    let entry = algorithms::entry(collective, algorithm).unwrap();
    check_cost(plans, &proof, &(entry.cost)(request), name);

    let message_chunks = |step: &Step| match step {
        Step::Send { ranges, .. } => ranges.iter().map(|range| range.count).sum(),
        _ => 1,
    };
    if (entry.is_pipelined)(collective) {
        let mut steps = plans.iter().flat_map(|plan| plan.rounds.iter().flatten());
        assert!(steps.all(|step| message_chunks(step) == 1), "{name}");
    }
    if (entry.is_symmetric)(collective) {
        for plan in plans {
            assert_eq!(renumbered(plan), renumbered(&plans[0]), "{name}");
        }
    }
    if request.world_size <= 20 {
        replay(plans).unwrap_or_else(|wrong| panic!("{name}: {wrong}"));
    }
}

/// Checks that the closed form equals the critical path of the plans if all ranks start each round
/// together.
///
/// The closed form uses the busiest site of each level. Different sites do not start rounds
/// together. So the form must be at least the load of the busiest site, and at most the sum over
/// the rounds of the load of the site that is busiest in each round. Because a unit size does not
/// suit all sites, shares may differ by one unit.
fn check_cost(plans: &[Plan], proof: &Proof, cost: &Cost, name: &str) {
    let share = |chunks: usize| chunks as f64 / plans[0].chunks as f64;
    let are_equal = are_sites_equal(&plans[0].request.topology());
    let whole = path(plans.iter());
    let least = match are_equal {
        true => whole,
        false => longest_of_sites(plans),
    };
    assert_eq!(cost.rounds, proof.rounds, "{name}");
    let sent = share(proof.max_chunks_sent);
    let (unit, most_sent) = if are_equal {
        (0.0, sent)
    } else {
        (0.125, 3.0 * sent)
    };
    for (form, least, most, rounding) in [
        (
            cost.messages_on_path,
            least.messages as f64,
            whole.messages as f64,
            0.0,
        ),
        (
            cost.volume_on_path,
            share(least.chunks),
            share(whole.chunks),
            unit,
        ),
        (
            cost.folded_on_path,
            share(least.folded),
            share(whole.folded),
            unit,
        ),
        (cost.max_sent_per_rank, sent, most_sent, unit),
    ] {
        let (least, most) = (least * (1.0 - rounding), most * (1.0 + rounding));
        assert!(
            (least - 1e-9..=most + 1e-9).contains(&form),
            "{name}: {cost:?}, but the plans have {least} to {most}"
        );
    }
}

/// Returns `true` if all sites have hosts with the same numbers of ranks.
fn are_sites_equal(topology: &Topology) -> bool {
    let hosts = |site| {
        let hosts = crate::hosts_at(topology, site).into_iter();
        hosts
            .map(|host| topology.ranks_of(host).len())
            .collect::<Vec<_>>()
    };
    (1..topology.site_count()).all(|site| hosts(site) == hosts(0))
}

/// Checks [`is_in_rank_order`] against the proof for this number of ranks, root and number of
/// pieces. The function derives the reduction order for any number of ranks from proofs for a few
/// ranks.
fn check_order(proof: &Proof, request: &Request, name: &str) {
    // With at most as many ranks as the radix, all ranks form a single group.
    let enough = (request.algorithm.radix() + 1).max(3);
    let smaller = match request.hosts == Hosts::APART {
        true => Request {
            world_size: request.world_size.min(enough),
            ..request.clone()
        },
        false if request.world_size > 12 => return,
        false => request.clone(),
    };
    match is_in_rank_order(&smaller) {
        true => assert!(proof.is_in_rank_order, "{name}"),
        // With other roots, the plan may still reduce in rank order.
        false if request.collective.is_rooted() => {}
        false => assert!(!proof.is_in_rank_order, "{name}"),
    }
}

/// Returns the messages as (is sent, distance to the peer, chunks), indexed by round. Local steps
/// appear as messages from the rank to itself.
fn renumbered(plan: &Plan) -> Vec<Vec<(bool, usize, usize)>> {
    let n = plan.request.world_size;
    let distance = |peer: usize| (peer + n - plan.request.rank) % n;
    let of_round = |steps: &Vec<Step>| {
        let mut messages = Vec::new();
        for step in steps {
            let (is_sent, peers, ranges) = match step {
                Step::Send { peers, ranges } => (true, peers.clone(), ranges),
                Step::Receive {
                    sources, ranges, ..
                } => {
                    let peer = |source: &Source| match *source {
                        Source::Peer(peer) => Some(peer),
                        Source::Own => None,
                    };
                    (false, sources.iter().filter_map(peer).collect(), ranges)
                }
                Step::Copy { to, .. } => (false, vec![plan.request.rank], &vec![*to]),
                Step::Reduce { from, to, .. } => {
                    (false, vec![plan.request.rank; from.len()], &vec![*to])
                }
            };
            let chunks = ranges.iter().map(|range| range.count).sum();
            messages.extend(
                peers
                    .into_iter()
                    .map(|peer| (is_sent, distance(peer), chunks)),
            );
        }
        messages.sort_unstable();
        messages
    };
    plan.rounds.iter().map(of_round).collect()
}

#[test]
fn every_algorithm_in_the_registry_is_verified() {
    let next = AtomicUsize::new(0);
    let take = || REGISTRY.get(next.fetch_add(1, Ordering::Relaxed));
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(entry) = take() {
                    forms(entry, &RADIXES).into_iter().for_each(sweep);
                }
            });
        }
    });
}

#[test]
fn circulant_plans_for_large_worlds_are_verified() {
    let worlds = (65..=160).chain([255, 256, 257, 511, 513, 600, 769, 1000, 1023, 1024]);
    for world_size in worlds {
        for collective in [
            Collective::Broadcast,
            Collective::Reduce,
            Collective::AllReduce,
        ] {
            if collective == Collective::AllReduce && world_size > 257 {
                continue;
            }
            let plans = plans_of(collective, Algorithm::Circulant, world_size, 0, 5);
            verify(&plans).unwrap_or_else(|fault| panic!("{collective} {world_size}: {fault}"));
        }
    }
}

fn proof(algorithm: Algorithm, world_size: usize, pieces: usize) -> Proof {
    verify(&plans_of(
        Collective::AllReduce,
        algorithm,
        world_size,
        0,
        pieces,
    ))
    .unwrap()
}

#[test]
fn butterfly_algorithms_share_one_reduction_tree() {
    for world_size in 2..=64 {
        let reference = proof(Algorithm::RecursiveDoubling, world_size, 1);
        assert!(reference.position_independent);
        for pieces in [1, 2, 3] {
            for algorithm in [Algorithm::RecursiveDoubling, Algorithm::Rabenseifner] {
                let other = proof(algorithm, world_size, pieces);
                assert!(other.position_independent, "{algorithm} {world_size}");
                assert_eq!(
                    other.fingerprint, reference.fingerprint,
                    "{algorithm} {world_size}"
                );
            }
        }
    }
    for world_size in [2, 4, 8, 16, 32, 64] {
        let tree = proof(Algorithm::Binomial, world_size, 1);
        let reference = proof(Algorithm::RecursiveDoubling, world_size, 1);
        assert_eq!(tree.fingerprint, reference.fingerprint, "{world_size}");
    }
}

#[test]
fn rank_order_algorithms_share_one_reduction_tree() {
    for world_size in 2..=64 {
        let one_shot = proof(Algorithm::Flat, world_size, 1);
        assert!(one_shot.position_independent);
        for algorithm in [Algorithm::TwoShot, Algorithm::BruckFold] {
            let other = proof(algorithm, world_size, 2);
            assert!(other.position_independent, "{algorithm} {world_size}");
            assert_eq!(
                one_shot.fingerprint, other.fingerprint,
                "{algorithm} {world_size}"
            );
        }
        let butterfly = proof(Algorithm::RecursiveDoubling, world_size, 1);
        let is_same = one_shot.fingerprint == butterfly.fingerprint;
        assert_eq!(is_same, world_size == 2, "{world_size}");
    }
}

#[test]
fn circulant_has_one_reduction_tree_exactly_for_powers_of_two() {
    for world_size in 2_usize..=64 {
        let has_one = proof(Algorithm::Circulant, world_size, 1).position_independent;
        assert_eq!(has_one, world_size.is_power_of_two(), "{world_size}");
    }
}

#[test]
fn ring_reduction_trees_depend_on_the_buffer_position() {
    for world_size in 3..=64 {
        assert!(
            !proof(Algorithm::Ring, world_size, 1).position_independent,
            "{world_size}"
        );
        let reference = proof(Algorithm::RecursiveDoubling, world_size, 1);
        let ring = proof(Algorithm::Ring, world_size, 1);
        assert_ne!(ring.fingerprint, reference.fingerprint);
    }
}
