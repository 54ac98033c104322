//! Broken plans: the verifier refuses each, or the plan is not broken, as numbers then show.

use super::replay::replay;
use super::{hosts, plans_like, plans_of};
use ringtree::plan::internal::algorithms;
use ringtree::plan::{Algorithm, Collective, Plan, Request, Source, Step, verify};

/// Where a step is: rank, round, index.
type Place = (usize, usize, usize);

/// Calls `test` for every plan of up to 6 ranks with a place in it, one step after another.
fn for_each_step(test: impl Fn(&[Plan], Place)) {
    for (collective, algorithm) in algorithms::pairs(&[2, 3]) {
        for_each_request(collective, algorithm, |request| {
            let plans = plans_like(request);
            for place in places(&plans) {
                test(&plans, place);
            }
        });
    }
}

fn for_each_request(collective: Collective, algorithm: Algorithm, test: impl Fn(&Request)) {
    for world_size in 2..=6 {
        for (root, pieces) in [(0, 1), (1, 2)] {
            let root = if collective.is_rooted() { root } else { 0 };
            for hosts in hosts(collective, algorithm, world_size) {
                test(&Request {
                    collective,
                    algorithm,
                    world_size,
                    rank: 0,
                    root,
                    pieces,
                    hosts,
                });
            }
        }
    }
}

fn places(plans: &[Plan]) -> Vec<Place> {
    let mut places = Vec::new();
    for (rank, plan) in plans.iter().enumerate() {
        for (round, steps) in plan.rounds.iter().enumerate() {
            places.extend((0..steps.len()).map(|index| (rank, round, index)));
        }
    }
    places
}

fn step_at(plans: &mut [Plan], (rank, round, index): Place) -> &mut Step {
    &mut plans[rank].rounds[round][index]
}

/// The plans after `mutate`.
fn mutated(plans: &[Plan], mutate: impl FnOnce(&mut Vec<Plan>)) -> Vec<Plan> {
    let mut mutant = plans.to_vec();
    mutate(&mut mutant);
    mutant
}

#[track_caller]
fn refused(plans: &[Plan], place: Place, mutate: impl FnOnce(&mut Vec<Plan>)) {
    let mutant = mutated(plans, mutate);
    if mutant == plans {
        return;
    }
    let request = &plans[0].request;
    assert!(
        verify(&mutant).is_err(),
        "accepted: {request:?} changed at {place:?}"
    );
}

/// Returns whether the mutant was refused; one that was not must be right.
#[track_caller]
fn refused_or_right(plans: &[Plan], place: Place, mutate: impl FnOnce(&mut Vec<Plan>)) -> bool {
    let mutant = mutated(plans, mutate);
    let accepted = verify(&mutant).is_ok();
    if accepted && let Err(wrong) = replay(&mutant) {
        panic!(
            "accepted: {:?} changed at {place:?}, but {wrong}",
            plans[0].request
        );
    }
    !accepted
}

#[test]
fn a_dropped_or_repeated_step_is_refused() {
    for_each_step(|plans, place| {
        let (rank, round, index) = place;
        refused(plans, place, |mutant| {
            mutant[rank].rounds[round].remove(index);
        });
        refused(plans, place, |mutant| {
            let again = mutant[rank].rounds[round][index].clone();
            mutant[rank].rounds[round].insert(index, again);
        });
    });
}

#[test]
fn a_step_in_another_round_is_refused() {
    for_each_step(|plans, place| {
        let (rank, round, index) = place;
        for other in [round.wrapping_sub(1), round + 1] {
            if other >= plans[rank].rounds.len() {
                continue;
            }
            refused(plans, place, |mutant| {
                let step = mutant[rank].rounds[round].remove(index);
                let at = match step {
                    Step::Send { .. } => 0,
                    _ => mutant[rank].rounds[other].len(),
                };
                mutant[rank].rounds[other].insert(at, step);
            });
        }
    });
}

#[test]
fn a_step_with_another_peer_is_refused() {
    for_each_step(|plans, place| {
        for shift in 1..plans.len() {
            refused(plans, place, |mutant| {
                let n = mutant.len();
                match step_at(mutant, place) {
                    Step::Send { peers, .. } => peers[0] = (peers[0] + shift) % n,
                    // It has no peer.
                    Step::Copy { .. } | Step::Reduce { .. } => {}
                    Step::Receive { sources, .. } => {
                        for source in sources {
                            if let Source::Peer(peer) = source {
                                *peer = (*peer + shift) % n;
                                break;
                            }
                        }
                    }
                }
            });
        }
    });
}

#[test]
fn a_message_of_other_chunks_is_refused() {
    for_each_step(|plans, place| {
        for (first, count) in [(0, 1), (0, -1), (1, 0), (-1, 0), (1, -1), (-1, 1)] {
            let change = |mutant: &mut Vec<Plan>| {
                let range = match step_at(mutant, place) {
                    Step::Send { ranges, .. } | Step::Receive { ranges, .. } => {
                        ranges.last_mut().unwrap()
                    }
                    Step::Copy { from, .. } => from,
                    Step::Reduce { from, .. } => from.last_mut().unwrap(),
                };
                range.first = range.first.wrapping_add_signed(first);
                range.count = range.count.wrapping_add_signed(count);
            };
            // Only a rank that has copied a chunk can send another one that holds the same.
            match plans.iter().all(|plan| plan.scratch == 0) {
                true => refused(plans, place, change),
                false => drop(refused_or_right(plans, place, change)),
            }
        }
    });
}

#[test]
fn a_wrong_word_on_completeness_is_refused() {
    for_each_step(|plans, place| {
        refused(plans, place, |mutant| {
            if let Step::Receive { completes, .. } | Step::Reduce { completes, .. } =
                step_at(mutant, place)
            {
                *completes = !*completes;
            }
        });
    });
}

#[test]
fn steps_in_another_order_are_refused_or_mean_the_same() {
    let refusals = std::cell::Cell::new(0);
    for_each_step(|plans, place| {
        let (rank, round, index) = place;
        if index + 1 < plans[rank].rounds[round].len() {
            let is_refused = refused_or_right(plans, place, |mutant| {
                mutant[rank].rounds[round].swap(index, index + 1);
            });
            refusals.set(refusals.get() + usize::from(is_refused));
        }
    });
    assert!(refusals.get() > 100, "{refusals:?}");
}

#[test]
fn a_lost_operand_or_a_fold_for_a_store_is_refused_or_means_the_same() {
    let refusals = std::cell::Cell::new(0);
    for_each_step(|plans, place| {
        let is_refused = refused_or_right(plans, place, |mutant| {
            if let Step::Receive { sources, .. } = step_at(mutant, place) {
                match sources.iter().position(|&source| source == Source::Own) {
                    Some(own) => drop(sources.remove(own)),
                    None => sources.push(Source::Own),
                }
            }
        });
        refusals.set(refusals.get() + usize::from(is_refused));
    });
    assert!(refusals.get() > 100, "{refusals:?}");
}

#[test]
fn a_message_lost_at_both_ends_is_refused_or_was_not_needed() {
    let refusals = std::cell::Cell::new(0);
    for_each_step(|plans, place| {
        let (rank, round, index) = place;
        let Step::Send { peers, .. } = &plans[rank].rounds[round][index] else {
            return;
        };
        for &peer in peers {
            let is_refused = refused_or_right(plans, place, |mutant| {
                lose(mutant, place, peer);
            });
            refusals.set(refusals.get() + usize::from(is_refused));
        }
    });
    assert!(refusals.get() > 100, "{refusals:?}");
}

#[test]
fn a_message_shortened_at_both_ends_is_refused_or_was_too_long() {
    let refusals = std::cell::Cell::new(0);
    for_each_step(|plans, place| {
        let (rank, round, index) = place;
        let Step::Send { peers, ranges } = &plans[rank].rounds[round][index] else {
            return;
        };
        if peers.len() > 1 || ranges[0].count == 1 {
            return;
        }
        let is_refused = refused_or_right(plans, place, |mutant| {
            let source = Source::Peer(rank);
            for step in &mut mutant[peers[0]].rounds[round] {
                match step {
                    Step::Receive {
                        sources, ranges, ..
                    } if sources.contains(&source) => ranges[0].count -= 1,
                    _ => {}
                }
            }
            if let Step::Send { ranges, .. } = step_at(mutant, place) {
                ranges[0].count -= 1;
            }
        });
        refusals.set(refusals.get() + usize::from(is_refused));
    });
    assert!(refusals.get() > 100, "{refusals:?}");
}

/// Takes the message at `place` to `peer` out of both plans.
fn lose(plans: &mut [Plan], (rank, round, index): Place, peer: usize) {
    if let Step::Send { peers, .. } = &mut plans[rank].rounds[round][index] {
        peers.retain(|&one| one != peer);
    }
    let from = Source::Peer(rank);
    for step in &mut plans[peer].rounds[round] {
        if let Step::Receive { sources, .. } = step {
            sources.retain(|&one| one != from);
        }
    }
    let is_empty = |step: &Step| match step {
        Step::Send { peers, .. } => peers.is_empty(),
        Step::Receive { sources, .. } => sources.iter().all(|&one| one == Source::Own),
        _ => false,
    };
    for plan in plans {
        plan.rounds[round].retain(|step| !is_empty(step));
    }
}

#[test]
fn another_order_of_a_long_fold_on_one_rank_changes_bits_there() {
    for collective in [Collective::AllReduce, Collective::Reduce] {
        for world_size in 3..=6 {
            let algorithm = ringtree::plan::Algorithm::Flat;
            let mut plans = plans_of(collective, algorithm, world_size, 0, 1);
            let before = verify(&plans).unwrap();
            for step in &mut plans[0].rounds[0] {
                if let Step::Receive { sources, .. } = step {
                    sources.reverse();
                }
            }
            let after = verify(&plans).unwrap();
            assert_ne!(after.fingerprint, before.fingerprint);
            assert_eq!(after.bits_agree, collective == Collective::Reduce);
        }
    }
}
