//! Compares the verifier with a reference interpreter on plans with a single mistake (mutants).
//!
//! The mutants cover every algorithm with several radixes and up to 16 ranks.
//! `RINGTREE_TEST_LONG=1` generates 120,000 mutants; otherwise, the test generates a sample.

use super::interpreter::{Failure, Random, interpret};
use super::{hosts, plans_like};
use crate::long::short_or_long;
use ringtree::plan::internal::algorithms;
use ringtree::plan::{
    Algorithm, ChunkRange, Collective, Fault, Plan, Request, Source, Step, verify,
};
use std::collections::BTreeMap;

/// Number of orders in which each mutant runs.
const SCHEDULES: u64 = 3;

/// Location of a step: rank, round, index.
type Place = (usize, usize, usize);

/// The kind of change made to a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Dropped,
    Swapped,
    Moved,
    OtherPeer,
    OtherChunks,
    OtherOperands,
    OtherOrder,
    OtherFlags,
}

const KINDS: [Kind; 8] = [
    Kind::Dropped,
    Kind::Swapped,
    Kind::Moved,
    Kind::OtherPeer,
    Kind::OtherChunks,
    Kind::OtherOperands,
    Kind::OtherOrder,
    Kind::OtherFlags,
];

/// A mistake: the kind of change, the original place of the step, and its new place if the step
/// still exists.
#[derive(Clone, Copy, Debug)]
struct Mistake {
    kind: Kind,
    place: Place,
    now: Option<Place>,
}

/// The number of mutants with each verdict.
#[derive(Debug, Default)]
struct Count {
    /// The verifier accepted the mutant, and its result is right.
    harmless: usize,
    /// The verifier rejected the mutant, but its result would have been right.
    harmless_rejected: usize,
    /// The verifier rejected the mutant, which would hang or give a wrong result. Maps each kind of
    /// change to the number of such mutants and the number of those whose mistake the fault names.
    faulty: BTreeMap<Kind, (usize, usize)>,
}

impl Count {
    fn all_faulty(&self) -> (usize, usize) {
        let counts = self.faulty.values();
        counts.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
    }
}

#[test]
fn verifier_accepts_no_mutant_that_fails() {
    let mutants = short_or_long(3_000, 120_000);
    let pairs = algorithms::pairs(&[2, 3, 5]);
    let mut random = Random(1);
    let mut count = Count::default();
    let mut made = 0;
    for turn in 0.. {
        let plans = random_plans(pairs[turn % pairs.len()], &mut random);
        for _ in 0..8 {
            if let Some((mutant, mistake)) = mutated(&plans, &mut random) {
                judge(&plans, &mutant, mistake, made, &mut count);
                made += 1;
            }
        }
        if made >= mutants && turn >= pairs.len() {
            break;
        }
    }
    let (faulty, named) = count.all_faulty();
    println!("{made} mutants: {count:?}; {named} of {faulty} named");
    assert!(faulty * 100 >= made as usize * 50, "{count:?}");
    assert!(named * 100 >= faulty * 99, "{count:?}");
}

/// Returns plans for the collective and algorithm with a random number of ranks, root, number of
/// pieces and placement.
fn random_plans(
    (collective, algorithm): (Collective, Algorithm),
    random: &mut Random,
) -> Vec<Plan> {
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

fn judge(plans: &[Plan], mutant: &[Plan], mistake: Mistake, seed: u64, count: &mut Count) {
    let failure = (0..SCHEDULES).find_map(|nth| interpret(mutant, SCHEDULES * seed + nth).err());
    match (verify(mutant), failure) {
        (Ok(_), None) => count.harmless += 1,
        (Err(_), None) => count.harmless_rejected += 1,
        (Err(fault), Some(_)) => {
            let (faulty, named) = count.faulty.entry(mistake.kind).or_default();
            *faulty += 1;
            *named += usize::from(names(&fault, plans, mutant, &mistake));
        }
        (Ok(_), Some(failure)) => {
            let (request, step) = (&plans[0].request, step_at(plans, mistake.place));
            panic!("accepted: {request:?} changed at {mistake:?}, {step:?}: {failure:?}");
        }
    }
}

/// Returns `true` if the fault names the changed step, or the other end of a message that this step
/// exchanges now or exchanged before the change. The plans can be fixed at either step. If a local
/// step was dropped, the fault can name only the chunk that the step wrote.
fn names(fault: &Fault, plans: &[Plan], mutant: &[Plan], mistake: &Mistake) -> bool {
    let (rank, round, index) = mistake.place;
    let wrote_named_chunk = |step: &Step| match step {
        Step::Copy { to, .. } | Step::Reduce { to, .. } => {
            let chunk = fault.chunk.filter(|_| fault.rank == rank);
            chunk.is_some_and(|chunk| (to.first..to.end()).contains(&chunk))
        }
        _ => false,
    };
    if mistake.now.is_none() && step_at(plans, mistake.place).is_some_and(wrote_named_chunk) {
        return true;
    }
    let named = fault.round.zip(fault.step);
    let named = named.map(|(round, step)| (fault.rank, round, step));
    let named = named.into_iter().chain(fault.other);
    let partner = match mistake.kind {
        Kind::Swapped => Some((rank, round, (index + 1) % mutant[rank].rounds[round].len())),
        _ => None,
    };
    let mut named = named;
    named.any(|named| {
        let was = step_at(plans, mistake.place).map(|step| (step, round));
        let is = mistake
            .now
            .and_then(|now| Some((step_at(mutant, now)?, now.1)));
        let mut ends = was.into_iter().chain(is);
        Some(named) == mistake.now
            || Some(named) == partner
            || ends.any(|(step, round)| is_other_end(mutant, named, (rank, round, step)))
    })
}

/// Returns `true` if the step at `place` exchanges a message with the step of `rank` in `round`.
fn is_other_end(mutant: &[Plan], place: Place, (rank, round, step): (usize, usize, &Step)) -> bool {
    let Some(other) = step_at(mutant, place).filter(|_| place.1 == round) else {
        return false;
    };
    match (step, other) {
        (Step::Send { peers, .. }, Step::Receive { sources, .. }) => {
            peers.contains(&place.0) && peers_of(sources).any(|peer| peer == rank)
        }
        (Step::Receive { sources, .. }, Step::Send { peers, .. }) => {
            peers_of(sources).any(|peer| peer == place.0) && peers.contains(&rank)
        }
        _ => false,
    }
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

/// Returns the plans with one random change and its description, or `None` if the chosen change has
/// no effect.
fn mutated(plans: &[Plan], random: &mut Random) -> Option<(Vec<Plan>, Mistake)> {
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
    let length = rounds[round].len();
    let kind = KINDS[random.below(KINDS.len())];
    let now = match kind {
        Kind::Dropped => {
            rounds[round].remove(index);
            None
        }
        Kind::Swapped => {
            rounds[round].swap(index, (index + 1) % length);
            Some((rank, round, (index + 1) % length))
        }
        Kind::Moved => {
            let other = match random.below(2) {
                0 => round + 1,
                _ => round.wrapping_sub(1),
            };
            let step = rounds[round].remove(index);
            let at = match step {
                Step::Send { .. } => 0,
                _ => rounds.get(other)?.len(),
            };
            rounds.get_mut(other)?.insert(at, step);
            Some((rank, other, at))
        }
        _ => {
            change(&mut rounds[round][index], kind, plans.len(), random);
            Some((rank, round, index))
        }
    };
    let place = (rank, round, index);
    (mutant != plans).then_some((mutant, Mistake { kind, place, now }))
}

/// Changes the peer, the chunks, the operands, their order or the completeness flag of a step.
fn change(step: &mut Step, kind: Kind, ranks: usize, random: &mut Random) {
    let shift = 1 + random.below(ranks - 1);
    match (step, kind) {
        (Step::Send { peers, .. }, Kind::OtherPeer) => {
            let at = random.below(peers.len());
            peers[at] = (peers[at] + shift) % ranks;
        }
        (Step::Receive { sources, .. }, Kind::OtherPeer) => {
            let at = random.below(sources.len());
            if let Source::Peer(peer) = &mut sources[at] {
                *peer = (*peer + shift) % ranks;
            }
        }
        (Step::Send { ranges, .. } | Step::Receive { ranges, .. }, Kind::OtherChunks) => {
            let at = random.below(ranges.len());
            nudge(&mut ranges[at], random);
        }
        (Step::Copy { from, to }, Kind::OtherPeer | Kind::OtherChunks) => {
            nudge(if kind == Kind::OtherPeer { from } else { to }, random);
        }
        (Step::Reduce { from, to, .. }, Kind::OtherPeer | Kind::OtherChunks) => {
            let at = random.below(from.len());
            let is_to = kind == Kind::OtherChunks;
            nudge(if is_to { to } else { &mut from[at] }, random);
        }
        (Step::Receive { sources, .. }, Kind::OtherOperands) => {
            match sources.iter().position(|source| *source == Source::Own) {
                Some(own) => drop(sources.remove(own)),
                None => sources.push(Source::Own),
            }
        }
        (Step::Reduce { from, .. }, Kind::OtherOperands) => drop(from.pop()),
        (Step::Send { ranges, .. } | Step::Receive { ranges, .. }, Kind::OtherOrder) => {
            ranges.reverse();
        }
        (Step::Reduce { from, .. }, Kind::OtherOrder) => from.reverse(),
        (Step::Receive { sources, .. }, Kind::OtherFlags) if random.below(2) == 0 => {
            sources.reverse()
        }
        (Step::Receive { completes, .. } | Step::Reduce { completes, .. }, Kind::OtherFlags) => {
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
fn interpreter_distinguishes_right_wrong_and_hanging_plans() {
    let plans = random_plans((Collective::AllReduce, Algorithm::Ring), &mut Random(7));
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
