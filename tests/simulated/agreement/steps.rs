//! Tests that all survivors of a failure agree on which step still counts.

use super::run_timed;
use crate::long::short_or_long;
use proptest::prelude::*;
use ringtree::internal::limits::MARKS_GRACE;
use ringtree::internal::sim::SplitMix64;
use ringtree::plan::{Collective, REGISTRY};
use ringtree::sim::{Faults, World};
use ringtree::{Communicator, Error, ErrorKind, ReduceOp, Result};
use ringtree_kit::checkers::{agreement, exact, no_hang, order, same_error};
use ringtree_kit::cluster::{Cluster, Moment, Outcome};
use ringtree_kit::script::{Call, Script, Step};
use std::time::Duration;

// ---- scripted ranks, killed at any moment ----

/// Returns a script of a few training steps, each with concurrent buckets, a mark and a commit.
fn training(chance: &mut SplitMix64) -> Vec<Step> {
    let mut all_reduces = REGISTRY
        .iter()
        .filter(|entry| entry.collectives.contains(&Collective::AllReduce));
    let count = all_reduces.clone().count() as u64;
    let algorithm = all_reduces
        .nth(chance.below(count) as usize)
        .map(|entry| entry.algorithm);
    let all_reduce = |count: u64| Call {
        algorithm,
        ..Call::new(Collective::AllReduce, count as usize)
    };
    let commit = match chance.below(2) {
        0 => Step::Barrier,
        _ => Step::Call(all_reduce(1 + chance.below(4))),
    };
    let mut steps = Vec::new();
    for number in 1..=2 + chance.below(3) {
        for _ in 0..1 + chance.below(3) {
            steps.push(Step::Start(0, all_reduce(1 + chance.below(150))));
        }
        steps.extend([
            Step::Compute(Duration::from_micros(chance.below(100))),
            Step::Wait(0),
            Step::Mark(number),
            commit,
        ]);
    }
    steps
}

/// Returns a world with random delays, small windows, and partial reads and writes.
fn faulty_world(world_size: usize, seed: u64) -> World {
    let mut world = World::new(world_size);
    world.network.seed = seed;
    world.network.window_bytes = 40 + SplitMix64::new(!seed).below(500) as usize;
    world.network.faults = Faults {
        delay_max: Duration::from_micros(200),
        short_io: true,
        ..Faults::default()
    };
    world
}

/// Returns a random moment in the undisturbed run of `rank`.
fn moment(quiet: &Outcome, rank: usize, chance: &mut SplitMix64) -> Moment {
    let calls = quiet.records.iter().filter(|one| one.rank == rank).count() as u64;
    let end_ns = quiet.end().as_nanos() as u64;
    match chance.below(3) {
        0 => Moment::Time(Duration::from_nanos(chance.below(end_ns + 1))),
        1 => Moment::BytesSent(chance.below(quiet.bytes_sent[rank] + 1)),
        _ => Moment::CallsMade(1 + chance.below(calls)),
    }
}

/// The number of histories with each outcome, to show that a test covers the relevant cases.
#[derive(Debug, Default)]
struct Tally {
    histories: usize,
    /// A survivor had passed a commit that failed on another survivor.
    passed: usize,
    /// No survivor had passed the commit, but all had completed the step.
    completed: usize,
    /// Some survivors had completed the step, and others had not.
    undone: usize,
    /// No survivor learned the agreed mark.
    unknown: usize,
}

impl Tally {
    fn add(&mut self, outcome: &Outcome) {
        self.histories += 1;
        let survivors = || (0..outcome.kills.len()).filter(|rank| outcome.kills[*rank].is_none());
        let failed = outcome
            .survivors()
            .any(|one| matches!(one.result, Some(Err(_))));
        let Some(agreed) = survivors().find_map(|rank| outcome.agreed[rank]) else {
            self.unknown += usize::from(failed);
            return;
        };
        let at_mark = || outcome.survivors().filter(|one| one.mark == agreed);
        // The commit is the first call after a mark.
        let commit = at_mark().map(|one| one.sequence).min();
        let has_passed = |wanted: bool| {
            let mut ends = at_mark().filter(|one| Some(one.sequence) == commit);
            ends.any(|one| (one.result == Some(Ok(()))) == wanted)
        };
        let furthest = survivors().map(|rank| outcome.marks[rank]).max();
        if furthest > Some(agreed) {
            self.undone += 1;
        } else if agreed > 0 && has_passed(false) {
            self.passed += usize::from(has_passed(true));
            self.completed += usize::from(!has_passed(true));
        }
    }
}

fn check(outcome: &Outcome, what: impl FnOnce() -> String) {
    let holds = agreement::check(outcome)
        .and_then(|()| agreement::check_is_lowest(outcome))
        .and_then(|()| exact::check(outcome))
        .and_then(|()| order::check(outcome))
        .and_then(|()| no_hang::check(outcome, Duration::from_secs(2)))
        .and_then(|()| same_error::check(outcome))
        .and_then(|()| check_duration(outcome));
    assert_eq!(holds, Ok(()), "{}", what());
}

/// Checks that the run ends soon after the last kill, before any wait for marks times out.
fn check_duration(outcome: &Outcome) -> std::result::Result<(), String> {
    let last_kill = outcome.kills.iter().flatten().max();
    let limit = last_kill.map(|kill| *kill + MARKS_GRACE / 2);
    match outcome.end() {
        end if limit.is_some_and(|limit| end > limit) => {
            Err(format!("the run lasted until {end:?}"))
        }
        _ => Ok(()),
    }
}

/// Returns the number of histories to run. `RINGTREE_TEST_LONG=1` multiplies it by 100.
fn times(histories: u64) -> u64 {
    short_or_long(histories, histories * 100)
}

/// Runs a training script in which each of `victims` is killed at a random moment.
fn run_with_kills(world: World, victims: &[usize], chance: &mut SplitMix64) -> Outcome {
    let script = Script::same(world.world_size, training(chance));
    let mut cluster = Cluster::new(world);
    let quiet = cluster.run(&script).unwrap();
    for victim in victims {
        cluster.kill(*victim, moment(&quiet, *victim, chance));
    }
    cluster.run(&script).unwrap()
}

#[test]
fn survivors_agree_if_any_rank_except_0_is_killed() {
    let mut tally = Tally::default();
    for world_size in (2..=9).chain([17, 32]) {
        for seed in 0..times(if world_size < 10 { 100 } else { 12 }) {
            let mut chance = SplitMix64::new(seed << 8 | world_size as u64);
            let victim = 1 + chance.below(world_size as u64 - 1) as usize;
            let outcome = run_with_kills(faulty_world(world_size, seed), &[victim], &mut chance);
            check(&outcome, || format!("{world_size} ranks, seed {seed}"));
            tally.add(&outcome);
        }
    }
    let Tally {
        passed,
        completed,
        undone,
        unknown,
        ..
    } = tally;
    assert!(passed > 30 && completed > 30 && undone > 30, "{tally:?}");
    assert_eq!(unknown, 0, "rank 0 survived");
}

#[test]
fn survivors_agree_if_a_rank_is_killed_at_any_byte() {
    let mut tally = Tally::default();
    for world_size in 2..=5 {
        let steps = training(&mut SplitMix64::new(world_size as u64));
        let script = Script::same(world_size, steps);
        let cluster = Cluster::new(faulty_world(world_size, 1));
        let quiet = cluster.run(&script).unwrap();
        for victim in 1..world_size {
            // Advance by a quarter of a frame's header, which has 32 bytes.
            for bytes in (0..quiet.bytes_sent[victim]).step_by(8) {
                let mut cluster = cluster.clone();
                cluster.kill(victim, Moment::BytesSent(bytes));
                let outcome = cluster.run(&script).unwrap();
                check(&outcome, || {
                    format!("{victim} of {world_size} at byte {bytes}")
                });
                tally.add(&outcome);
            }
        }
    }
    assert!(
        tally.passed > 0 && tally.completed > 0 && tally.undone > 0,
        "{tally:?}"
    );
}

#[test]
fn survivors_agree_if_any_two_ranks_are_killed() {
    let mut tally = Tally::default();
    for seed in 0..times(300) {
        let mut chance = SplitMix64::new(seed);
        let world_size = 3 + chance.below(7) as usize;
        let [one, other] = [0; 2].map(|_| chance.below(world_size as u64) as usize);
        let outcome = run_with_kills(faulty_world(world_size, seed), &[one, other], &mut chance);
        check(&outcome, || format!("{world_size} ranks, seed {seed}"));
        tally.add(&outcome);
    }
    assert!(
        tally.passed > 5 && tally.completed > 5 && tally.undone > 5,
        "{tally:?}"
    );
    assert!(tally.unknown > 5, "{tally:?}");
}

/// The second rank dies while the survivors of the first death are agreeing on a mark.
#[test]
fn survivors_agree_if_a_rank_is_killed_during_the_agreement() {
    let mut tally = Tally::default();
    for seed in 0..times(300) {
        let mut chance = SplitMix64::new(seed);
        let world_size = 3 + chance.below(7) as usize;
        let script = Script::same(world_size, training(&mut chance));
        let mut cluster = Cluster::new(faulty_world(world_size, seed));
        let quiet = cluster.run(&script).unwrap();
        let first = 1 + chance.below(world_size as u64 - 1) as usize;
        cluster.kill(first, moment(&quiet, first, &mut chance));
        let one_kill = cluster.run(&script).unwrap();
        let Some(kill) = one_kill.kills[first] else {
            continue;
        };
        let second = chance.below(world_size as u64) as usize;
        if second == first {
            continue;
        }
        let after = Duration::from_micros(chance.below(1200));
        cluster.kill(second, Moment::Time(kill + after));
        let outcome = cluster.run(&script).unwrap();
        check(&outcome, || format!("{world_size} ranks, seed {seed}"));
        tally.add(&outcome);
    }
    assert!(
        tally.histories > 200 && tally.undone > 5 && tally.unknown > 5,
        "{tally:?}"
    );
}

#[test]
fn ranks_excluded_for_their_silence_learn_the_same_mark() {
    let (mut excluded, mut agreed) = (0, 0);
    for seed in 0..times(150) {
        let mut chance = SplitMix64::new(seed);
        let world_size = 2 + chance.below(7) as usize;
        let mut world = faulty_world(world_size, seed);
        world.network.faults.stall_probability = 0.03;
        world.network.faults.stall_max = Duration::from_secs(4);
        let victim = 1 + chance.below(world_size as u64 - 1) as usize;
        let outcome = run_with_kills(world, &[victim], &mut chance);
        let holds = agreement::check(&outcome)
            .and_then(|()| no_hang::check(&outcome, Duration::from_secs(60)));
        assert_eq!(holds, Ok(()), "{world_size} ranks, seed {seed}");
        let ends = outcome.marks.iter().zip(&outcome.agreed);
        for (mark, learned) in ends.filter_map(|(mark, learned)| Some((*mark, (*learned)?))) {
            agreed += 1;
            excluded += usize::from(learned > mark);
        }
    }
    assert!(excluded > 0 && agreed > 300, "{excluded} of {agreed}");
}

// ---- the training loop of a program ----

const PARAMETERS: usize = 60;

/// The final state of a rank's training.
#[derive(Clone, Debug, PartialEq)]
struct End {
    /// Number of steps by which the weights were updated.
    updates: u64,
    weights: Vec<f32>,
    /// `true` if the gradients of one more step are complete, but this rank did not learn whether
    /// the step counts.
    is_in_doubt: bool,
}

/// Sums the gradients of one step in three concurrent buckets.
fn gradients(comm: &Communicator, step: u64) -> Result<Vec<f32>> {
    let own: Vec<_> = (0..PARAMETERS)
        .map(|at| (at as u64 * step % 7 + comm.rank() as u64) as f32)
        .collect();
    let buckets: Vec<_> = own
        .chunks(PARAMETERS / 3)
        .map(|bucket| Ok(comm.start_all_reduce(bucket.to_vec(), ReduceOp::Sum)?))
        .collect::<Result<_>>()?;
    let sums = buckets.into_iter().map(|bucket| Ok(bucket.wait()?));
    Ok(sums.collect::<Result<Vec<_>>>()?.concat())
}

/// Trains until a call fails. Then updates the weights once more if that step counts.
fn train(comm: &Communicator) -> End {
    let mut weights = vec![0.0f32; PARAMETERS];
    let update = |weights: &mut [f32], sums: &[f32]| {
        weights
            .iter_mut()
            .zip(sums)
            .for_each(|(one, sum)| *one -= 0.1 * sum);
    };
    let timeout = Duration::from_secs(5);
    for step in 1.. {
        let Ok(sums) = gradients(comm, step) else {
            assert!(
                ringtree::internal::ddp::agreed_mark(comm, timeout)
                    .is_none_or(|agreed| agreed < step)
            );
            return End {
                updates: step - 1,
                weights,
                is_in_doubt: false,
            };
        };
        ringtree::internal::ddp::mark(comm, step);
        if comm.barrier().is_ok() {
            update(&mut weights, &sums);
            continue;
        }
        let agreed = ringtree::internal::ddp::agreed_mark(comm, timeout);
        let counts = agreed == Some(step);
        assert!(agreed.is_none_or(|agreed| (step - 1..=step).contains(&agreed)));
        if counts {
            update(&mut weights, &sums);
        }
        return End {
            updates: step - u64::from(!counts),
            weights,
            is_in_doubt: agreed.is_none(),
        };
    }
    unreachable!("the loop has no end")
}

fn survivors(world: &World, victim: usize, at: Duration) -> Vec<End> {
    let mut world = world.clone();
    world.network.faults.deaths = vec![(victim, at)];
    let (mut ends, took) = run_timed(&world, train);
    assert!(took < at + Duration::from_secs(7), "it took {took:?}");
    ends.remove(victim);
    ends
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(short_or_long(48, 960)))]

    #[test]
    fn survivors_end_with_the_same_weights(
        world_size in 2usize..9,
        victim in 0usize..9,
        at_us in 0u64..2000,
        seed: u64,
        delay_us in 0u64..200,
    ) {
        let mut world = World::new(world_size);
        world.network.seed = seed;
        world.network.faults.delay_max = Duration::from_micros(delay_us);
        let victim = victim % world_size;
        let ends = survivors(&world, victim, Duration::from_micros(at_us));
        let furthest = ends.iter().max_by_key(|end| end.updates).unwrap();
        for end in &ends {
            if victim != 0 {
                prop_assert_eq!(end, furthest);
            } else if end.is_in_doubt {
                prop_assert!(end.updates + 1 >= furthest.updates);
            } else {
                prop_assert_eq!(&end.weights, &furthest.weights);
            }
        }
    }
}

#[test]
fn rank_0_stays_until_the_others_know_the_agreed_mark() {
    let mut world = World::new(4);
    world.network.faults.deaths = vec![(2, Duration::from_millis(1))];
    let agreed = world.run(|comm| {
        for step in 1.. {
            ringtree::internal::ddp::mark(comm, step);
            if comm.barrier().is_err() {
                break;
            }
        }
        // Rank 0 does not ask for the mark but ends immediately, like a program that returns
        // errors.
        (comm.rank() != 0)
            .then(|| ringtree::internal::ddp::agreed_mark(comm, Duration::from_secs(5)))
    });
    assert!(
        matches!(agreed[1], Some(Some(step)) if step > 1),
        "{agreed:?}"
    );
    assert_eq!(agreed[1], agreed[3]);
}

#[test]
fn abort_on_one_rank_ends_the_step_on_every_rank() {
    let ends = ringtree::simulate(4, |comm| {
        let cause = Error::new(ErrorKind::System, "the loss of rank 3 is not a number");
        for step in 1..=5 {
            comm.all_reduce(&mut [1.0f32; 50], ReduceOp::Sum)?;
            if comm.rank() == 3 && step == 3 {
                comm.abort(&cause);
            }
            ringtree::internal::ddp::mark(comm, step);
            let Err(error) = comm.barrier() else {
                continue;
            };
            assert_eq!(error, cause);
            return Ok(ringtree::internal::ddp::agreed_mark(
                comm,
                Duration::from_secs(5),
            ));
        }
        Ok::<_, Error>(None)
    });
    // Rank 3 either marked step 3 while the verdict on its abort was pending, or received the
    // verdict first.
    assert!(ends[0] == Ok(Some(2)) || ends[0] == Ok(Some(3)), "{ends:?}");
    assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
}
