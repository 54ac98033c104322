//! Tests that the verifier rejects changed plans. If it accepts a changed plan, running that plan
//! on pseudo-random values must give the right result.

use super::replay::replay;
use super::{hosts, plans_like, plans_of};
use ringtree::plan::internal::algorithms;
use ringtree::plan::{Algorithm, Collective, Plan, Request, Source, Step, verify};

/// Location of a step: rank, round, index.
type Place = (usize, usize, usize);

/// Calls `test` for every step of all plans for up to 6 ranks.
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

/// Returns a copy of the plans, changed by `mutate`.
fn mutated(plans: &[Plan], mutate: impl FnOnce(&mut Vec<Plan>)) -> Vec<Plan> {
    let mut mutant = plans.to_vec();
    mutate(&mut mutant);
    mutant
}

/// Asserts that the verifier rejects the mutant, unless it equals the original.
#[track_caller]
fn assert_rejected(plans: &[Plan], place: Place, mutate: impl FnOnce(&mut Vec<Plan>)) {
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

/// Returns `true` if the verifier rejects the mutant. If it accepts the mutant, asserts that the
/// mutant gives the right result.
#[track_caller]
fn rejects_unless_right(plans: &[Plan], place: Place, mutate: impl FnOnce(&mut Vec<Plan>)) -> bool {
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
fn dropped_or_repeated_step_is_rejected() {
    for_each_step(|plans, place| {
        let (rank, round, index) = place;
        assert_rejected(plans, place, |mutant| {
            mutant[rank].rounds[round].remove(index);
        });
        assert_rejected(plans, place, |mutant| {
            let again = mutant[rank].rounds[round][index].clone();
            mutant[rank].rounds[round].insert(index, again);
        });
    });
}

#[test]
fn step_in_a_different_round_is_rejected() {
    for_each_step(|plans, place| {
        let (rank, round, index) = place;
        for other in [round.wrapping_sub(1), round + 1] {
            if other >= plans[rank].rounds.len() {
                continue;
            }
            assert_rejected(plans, place, |mutant| {
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
fn step_with_a_different_peer_is_rejected() {
    for_each_step(|plans, place| {
        for shift in 1..plans.len() {
            assert_rejected(plans, place, |mutant| {
                let n = mutant.len();
                match step_at(mutant, place) {
                    Step::Send { peers, .. } => peers[0] = (peers[0] + shift) % n,
                    // Local steps have no peer.
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
fn message_of_different_chunks_is_rejected() {
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
            // Only a rank that has copied a chunk can send different chunks with the same values.
            match plans.iter().all(|plan| plan.scratch == 0) {
                true => assert_rejected(plans, place, change),
                false => drop(rejects_unless_right(plans, place, change)),
            }
        }
    });
}

#[test]
fn wrong_completeness_flag_is_rejected() {
    for_each_step(|plans, place| {
        assert_rejected(plans, place, |mutant| {
            if let Step::Receive { completes, .. } | Step::Reduce { completes, .. } =
                step_at(mutant, place)
            {
                *completes = !*completes;
            }
        });
    });
}

#[test]
fn reordered_steps_are_rejected_or_equivalent() {
    let rejections = std::cell::Cell::new(0);
    for_each_step(|plans, place| {
        let (rank, round, index) = place;
        if index + 1 < plans[rank].rounds[round].len() {
            let is_rejected = rejects_unless_right(plans, place, |mutant| {
                mutant[rank].rounds[round].swap(index, index + 1);
            });
            rejections.set(rejections.get() + usize::from(is_rejected));
        }
    });
    assert!(rejections.get() > 100, "{rejections:?}");
}

#[test]
fn lost_or_extra_operand_is_rejected_or_equivalent() {
    let rejections = std::cell::Cell::new(0);
    for_each_step(|plans, place| {
        let is_rejected = rejects_unless_right(plans, place, |mutant| {
            if let Step::Receive { sources, .. } = step_at(mutant, place) {
                match sources.iter().position(|&source| source == Source::Own) {
                    Some(own) => drop(sources.remove(own)),
                    None => sources.push(Source::Own),
                }
            }
        });
        rejections.set(rejections.get() + usize::from(is_rejected));
    });
    assert!(rejections.get() > 100, "{rejections:?}");
}

#[test]
fn message_removed_at_both_ends_is_rejected_or_unneeded() {
    let rejections = std::cell::Cell::new(0);
    for_each_step(|plans, place| {
        let (rank, round, index) = place;
        let Step::Send { peers, .. } = &plans[rank].rounds[round][index] else {
            return;
        };
        for &peer in peers {
            let is_rejected = rejects_unless_right(plans, place, |mutant| {
                remove_message(mutant, place, peer);
            });
            rejections.set(rejections.get() + usize::from(is_rejected));
        }
    });
    assert!(rejections.get() > 100, "{rejections:?}");
}

#[test]
fn message_shortened_at_both_ends_is_rejected_or_was_too_long() {
    let rejections = std::cell::Cell::new(0);
    for_each_step(|plans, place| {
        let (rank, round, index) = place;
        let Step::Send { peers, ranges } = &plans[rank].rounds[round][index] else {
            return;
        };
        if peers.len() > 1 || ranges[0].count == 1 {
            return;
        }
        let is_rejected = rejects_unless_right(plans, place, |mutant| {
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
        rejections.set(rejections.get() + usize::from(is_rejected));
    });
    assert!(rejections.get() > 100, "{rejections:?}");
}

/// Removes the message at `place` to `peer` from both plans.
fn remove_message(plans: &mut [Plan], (rank, round, index): Place, peer: usize) {
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
fn different_reduction_order_on_one_rank_changes_bits_there() {
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
