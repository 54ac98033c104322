//! The verifier against a reference interpreter, on plans with one mistake.
//!
//! `RINGTREE_TEST_LONG=1` makes 120,000 mutants, over every algorithm with every radix of the list
//! and up to 16 ranks; otherwise a sample.

use super::interpreter::{Failure, Random, interpret};
use super::{hosts, plans_like};
use ringtree::plan::verify::{Fault, verify};
use ringtree::plan::{Algorithm, ChunkRange, Collective, Plan, REGISTRY, Request, Source, Step};

/// Orders that a mutant is run in.
const SCHEDULES: u64 = 3;

/// Where a step is: rank, round, index.
type Place = (usize, usize, usize);

/// What came of the mutants.
#[derive(Debug, Default)]
struct Count {
    /// Accepted, and right.
    harmless: usize,
    /// Refused, and would have been right.
    harmless_refused: usize,
    /// Refused, and would have been wrong or have hung.
    faulty: usize,
    /// Of those, where the message names the step, or one that exchanges a message with it.
    named: usize,
}

#[test]
fn no_mutant_is_accepted_that_fails() {
    let is_long = std::env::var_os("RINGTREE_TEST_LONG").is_some_and(|value| value == "1");
    let mutants = if is_long { 120_000 } else { 3_000 };
    let pairs: Vec<(Collective, Algorithm)> = REGISTRY
        .iter()
        .flat_map(|entry| {
            let forms = entry.forms(&[2, 3, 5]).into_iter();
            forms.flat_map(|form| entry.collectives.iter().map(move |one| (*one, form)))
        })
        .collect();
    let mut random = Random(1);
    let mut count = Count::default();
    let mut made = 0;
    for turn in 0.. {
        let plans = drawn(pairs[turn % pairs.len()], &mut random);
        for _ in 0..8 {
            if let Some((mutant, place)) = mutated(&plans, &mut random) {
                judge(&plans, &mutant, place, made, &mut count);
                made += 1;
            }
        }
        if made >= mutants && turn >= pairs.len() {
            break;
        }
    }
    println!("{made} mutants: {count:?}");
    let is_enough = |part: usize, of: usize, percent: usize| part * 100 >= of * percent;
    assert!(is_enough(count.faulty, made as usize, 50), "{count:?}");
    assert!(is_enough(count.named, count.faulty, 80), "{count:?}");
}

/// The plans of a pair for some ranks, root, pieces and hosts.
fn drawn((collective, algorithm): (Collective, Algorithm), random: &mut Random) -> Vec<Plan> {
    let world_size = 2 + random.below(15);
    let hosts = hosts(collective, algorithm, world_size);
    plans_like(&Request {
        collective,
        algorithm,
        world_size,
        rank: 0,
        root: match collective.is_rooted() {
            true => random.below(world_size),
            false => 0,
        },
        pieces: 1 + random.below(3),
        hosts: hosts[random.below(hosts.len())].clone(),
    })
}

fn judge(plans: &[Plan], mutant: &[Plan], place: Place, seed: u64, count: &mut Count) {
    let failure = (0..SCHEDULES).find_map(|nth| interpret(mutant, SCHEDULES * seed + nth).err());
    match (verify(mutant), failure) {
        (Ok(_), None) => count.harmless += 1,
        (Err(_), None) => count.harmless_refused += 1,
        (Err(fault), Some(_)) => {
            count.faulty += 1;
            count.named += usize::from(names(&fault, plans, mutant, place));
        }
        (Ok(_), Some(failure)) => {
            let (request, step) = (&plans[0].request, step_at(plans, place));
            panic!("accepted: {request:?} changed at {place:?}, {step:?}: {failure:?}");
        }
    }
}

/// Whether the message says which step is wrong: the one that was changed, or one of the same round
/// that waits for it or is told of by it; or its chunks, at the end.
fn names(fault: &Fault, plans: &[Plan], mutant: &[Plan], place: Place) -> bool {
    let (rank, round, _) = place;
    let mut concerned = vec![rank];
    for step in [step_at(plans, place), step_at(mutant, place)]
        .into_iter()
        .flatten()
    {
        match step {
            Step::Send { peers, .. } => concerned.extend(peers),
            Step::Receive { sources, .. } => concerned.extend(peers_of(sources)),
            Step::Copy { .. } | Step::Reduce { .. } => {}
        }
    }
    // A step that was moved is in the neighbouring round.
    let near = |found: usize| found.abs_diff(round) <= 1;
    concerned.contains(&fault.rank) && fault.round.is_none_or(near)
}

fn peers_of(sources: &[Source]) -> impl Iterator<Item = usize> {
    sources.iter().filter_map(|source| match *source {
        Source::Peer(peer) => Some(peer),
        Source::Own => None,
    })
}

fn step_at(plans: &[Plan], (rank, round, index): Place) -> Option<&Step> {
    plans[rank].rounds.get(round)?.get(index)
}

/// The plans with one step changed, and where; nothing if the change drawn changes nothing.
fn mutated(plans: &[Plan], random: &mut Random) -> Option<(Vec<Plan>, Place)> {
    let rank = random.below(plans.len());
    let busy = plans[rank].rounds.iter().enumerate();
    let busy: Vec<usize> = busy
        .filter(|(_, one)| !one.is_empty())
        .map(|(at, _)| at)
        .collect();
    let round = *busy.get(random.below(busy.len().max(1)))?;
    let index = random.below(plans[rank].rounds[round].len());
    let mut mutant = plans.to_vec();
    let rounds = &mut mutant[rank].rounds;
    match random.below(8) {
        0 => drop(rounds[round].remove(index)),
        1 => rounds[round].swap(index, (index + 1) % plans[rank].rounds[round].len()),
        2 => {
            let other = if random.below(2) == 0 {
                round + 1
            } else {
                round.wrapping_sub(1)
            };
            let step = rounds[round].remove(index);
            let at = match step {
                Step::Send { .. } => 0,
                _ => rounds.get(other)?.len(),
            };
            rounds.get_mut(other)?.insert(at, step);
        }
        kind => change(&mut rounds[round][index], kind, plans.len(), random),
    }
    (mutant != plans).then_some((mutant, (rank, round, index)))
}

/// Another peer, chunk, way of storing, order or word on completeness.
fn change(step: &mut Step, kind: usize, ranks: usize, random: &mut Random) {
    let shift = 1 + random.below(ranks - 1);
    match (step, kind) {
        (Step::Send { peers, .. }, 3) => {
            let at = random.below(peers.len());
            peers[at] = (peers[at] + shift) % ranks;
        }
        (Step::Receive { sources, .. }, 3) => {
            let at = random.below(sources.len());
            if let Source::Peer(peer) = &mut sources[at] {
                *peer = (*peer + shift) % ranks;
            }
        }
        (Step::Send { ranges, .. } | Step::Receive { ranges, .. }, 4) => {
            let at = random.below(ranges.len());
            nudge(&mut ranges[at], random);
        }
        (Step::Copy { from, to }, 3 | 4) => nudge(if kind == 3 { from } else { to }, random),
        (Step::Reduce { from, to, .. }, 3 | 4) => {
            let at = random.below(from.len());
            nudge(if kind == 3 { &mut from[at] } else { to }, random);
        }
        (Step::Receive { sources, .. }, 5) => {
            match sources.iter().position(|source| *source == Source::Own) {
                Some(own) => drop(sources.remove(own)),
                None => sources.push(Source::Own),
            }
        }
        (Step::Reduce { from, .. }, 5) => drop(from.pop()),
        (Step::Send { ranges, .. } | Step::Receive { ranges, .. }, 6) => ranges.reverse(),
        (Step::Reduce { from, .. }, 6) => from.reverse(),
        (Step::Receive { sources, .. }, 7) if random.below(2) == 0 => sources.reverse(),
        (Step::Receive { completes, .. } | Step::Reduce { completes, .. }, 7) => {
            *completes = !*completes;
        }
        _ => {}
    }
}

fn nudge(range: &mut ChunkRange, random: &mut Random) {
    let by = [(1, 0), (-1, 0), (0, 1), (0, -1), (1, -1), (-1, 1)][random.below(6)];
    range.first = range.first.wrapping_add_signed(by.0);
    range.count = range.count.wrapping_add_signed(by.1);
}

#[test]
fn the_interpreter_knows_a_right_plan_from_a_wrong_one_and_from_a_hang() {
    let plans = drawn((Collective::AllReduce, Algorithm::Ring), &mut Random(7));
    assert_eq!(interpret(&plans, 1), Ok(()));
    let mut lost = plans.clone();
    lost[1].rounds.last_mut().unwrap().remove(0);
    assert_eq!(interpret(&lost, 1), Err(Failure::Hang));
    let mut twice = plans.clone();
    for step in &mut twice[0].rounds[0] {
        if let Step::Receive { sources, .. } = step {
            sources.retain(|source| *source != Source::Own);
        }
    }
    assert!(matches!(interpret(&twice, 1), Err(Failure::Wrong(_))));
}
