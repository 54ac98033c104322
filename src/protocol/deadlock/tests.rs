//! Ranks with threads that make calls on several communicators, in random histories: what the judge
//! says of them is held against what can become of them.

use super::*;
use crate::plan::spec::Collective;
use proptest::prelude::*;
use std::collections::VecDeque;

/// What a thread does next.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A barrier of a group.
    Barrier(u32),
    /// A barrier that it does not wait for.
    Begin(u32),
    Send(u32, usize),
    Receive(u32, usize),
    /// Something outside of the library.
    Compute,
}

#[derive(Clone, Debug)]
struct Thread {
    script: VecDeque<Step>,
    /// The call that it is blocked in, and the rank whose message it waits for, if it does.
    blocked: Option<(u32, Call, Option<usize>)>,
}

#[derive(Clone, Debug, Default)]
struct Rank {
    threads: Vec<Thread>,
    /// By group: collectives made, and the threads that called it.
    made: BTreeMap<u32, u64>,
    callers: BTreeMap<u32, BTreeSet<usize>>,
    /// By group and peer.
    sent: BTreeMap<(u32, usize), u64>,
    received: BTreeMap<(u32, usize), u64>,
    calls: u64,
}

#[derive(Clone, Debug)]
struct World {
    ranks: Vec<Rank>,
}

/// Numbers that follow from a seed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(99);
        (self.0 >> 33) as usize % bound
    }
}

impl World {
    fn random(chance: &mut Chance, kinds: usize, threads_max: usize) -> Self {
        let (ranks, groups) = (2 + chance.below(3), 2 + chance.below(2));
        let rank = |own: usize, chance: &mut Chance| {
            let mut threads = Vec::new();
            for thread in 0..1 + chance.below(threads_max) {
                let mut script = VecDeque::new();
                if thread == 0 {
                    // All have called every communicator once.
                    script.extend((0..groups).map(|group| Step::Barrier(group as u32)));
                }
                for _ in 0..chance.below(6) {
                    let group = chance.below(groups) as u32;
                    let peer = (own + 1 + chance.below(ranks - 1)) % ranks;
                    script.push_back(match chance.below(kinds) {
                        0 | 1 => Step::Barrier(group),
                        2 => Step::Send(group, peer),
                        3 => Step::Receive(group, peer),
                        4 => Step::Begin(group),
                        _ => Step::Compute,
                    });
                }
                threads.push(Thread {
                    script,
                    blocked: None,
                });
            }
            Rank {
                threads,
                ..Rank::default()
            }
        };
        Self {
            ranks: (0..ranks).map(|own| rank(own, chance)).collect(),
        }
    }

    /// Whether a call of `rank` has all that it needs.
    fn can_end(&self, rank: usize, (group, call, from): &(u32, Call, Option<usize>)) -> bool {
        let made = |one: &Rank| one.made.get(group).copied().unwrap_or(0) >= call.sequence;
        match from {
            Some(from) => {
                let sent = self.ranks[*from].sent.get(&(*group, rank));
                sent.copied().unwrap_or(0) >= call.sequence
            }
            None => self.ranks.iter().all(made),
        }
    }

    /// Lets a thread do what it can; whether it did something.
    fn advance(&mut self, rank: usize, thread: usize) -> bool {
        if let Some(blocked) = self.ranks[rank].threads[thread].blocked {
            if self.can_end(rank, &blocked) {
                self.ranks[rank].threads[thread].blocked = None;
                return true;
            }
            return false;
        }
        let one = &mut self.ranks[rank];
        let Some(step) = one.threads[thread].script.pop_front() else {
            return false;
        };
        let group = match step {
            Step::Compute => return true,
            Step::Barrier(group) | Step::Begin(group) => group,
            Step::Send(group, _) | Step::Receive(group, _) => group,
        };
        one.calls += 1;
        one.callers.entry(group).or_default().insert(thread);
        let count = |numbers: &mut BTreeMap<(u32, usize), u64>, peer| {
            let number = numbers.entry((group, peer)).or_default();
            *number += 1;
            *number
        };
        let blocked = match step {
            Step::Send(_, peer) => {
                count(&mut one.sent, peer);
                None
            }
            Step::Receive(_, peer) => {
                let number = count(&mut one.received, peer);
                let call = Call::message(1, crate::Dtype::U8, rank).numbered(number);
                Some((group, call, Some(peer)))
            }
            _ => {
                let number = one.made.entry(group).or_default();
                *number += 1;
                let call = Call::new(Collective::Barrier, 1).numbered(*number);
                matches!(step, Step::Barrier(_)).then_some((group, call, None))
            }
        };
        one.threads[thread].blocked = blocked;
        true
    }

    fn threads(&self) -> Vec<(usize, usize)> {
        let threads = |rank: usize| (0..self.ranks[rank].threads.len()).map(move |one| (rank, one));
        (0..self.ranks.len()).flat_map(threads).collect()
    }

    /// Lets all go on for as long as any can.
    fn exhaust(&mut self, chance: &mut Chance) {
        let mut threads = self.threads();
        let mut idle = 0;
        while idle < threads.len() {
            let at = chance.below(threads.len() - idle);
            let (rank, thread) = threads[at];
            match self.advance(rank, thread) {
                true => idle = 0,
                false => {
                    idle += 1;
                    let last = threads.len() - idle;
                    threads.swap(at, last);
                }
            }
        }
    }

    fn standing(&self, rank: usize) -> Standing {
        let one = &self.ranks[rank];
        let threads = (1..).zip(&one.threads);
        let waits = threads.filter_map(|(number, thread)| {
            let (group, call, from) = thread.blocked?;
            Some(Wait {
                thread: number,
                group,
                title: group.to_string(),
                call,
                needs: from.map_or(Needs::All, Needs::Rank),
            })
        });
        let waits: Vec<Wait> = waits.collect();
        let callers = one.callers.iter().filter_map(|(group, threads)| {
            let only = threads.first().filter(|_| threads.len() == 1)?;
            let thread = *only as u64 + 1;
            waits.iter().find(|wait| wait.thread == thread)?;
            let calls = one.made.get(group).copied().unwrap_or(0);
            Some(Caller {
                group: *group,
                calls,
                thread,
            })
        });
        Standing {
            epoch: one.calls,
            callers: callers.collect(),
            waits,
        }
    }

    fn answer(&self, rank: usize, question: &Question) -> Answer {
        let one = &self.ranks[rank];
        let made = match question.is_message {
            true => one.sent.get(&(question.group, question.by as usize)),
            false => one.made.get(&question.group),
        };
        let is_absent = made.copied().unwrap_or(0) < question.sequence;
        // What the system and the engine say of its threads.
        let waits = |thread: &Thread| thread.blocked.is_some() || thread.script.is_empty();
        let blocked = one.threads.iter().filter(|one| one.blocked.is_some());
        let is_settled = one.threads.iter().all(waits) && blocked.count() == 1;
        Answer {
            round: question.round,
            is_absent: is_absent && is_settled,
        }
    }
}

/// One run: the world goes on while messages are on their way. Returns the story, if a deadlock is
/// told.
fn run(world: &mut World, chance: &mut Chance, turns: usize) -> Option<(Vec<u32>, Error)> {
    let count = world.ranks.len();
    let mut judge = Judge::default();
    let mut to_judge = vec![VecDeque::new(); count];
    let mut to_rank = vec![VecDeque::new(); count];
    let mut now = Duration::ZERO;
    for _ in 0..turns {
        let rank = chance.below(count);
        match chance.below(6) {
            0 => {
                let thread = chance.below(world.ranks[rank].threads.len());
                world.advance(rank, thread);
            }
            1 => {
                let standing = world.standing(rank);
                if !standing.waits.is_empty() {
                    to_judge[rank].push_back((standing, None));
                }
            }
            2 | 3 => {
                if let Some((standing, answer)) = to_judge[rank].pop_front() {
                    judge.stands(rank, standing, answer);
                }
            }
            4 => {
                if let Some(question) = to_rank[rank].pop_front() {
                    let answer = world.answer(rank, &question);
                    to_judge[rank].push_back((world.standing(rank), Some(answer)));
                }
            }
            _ => now += Duration::from_millis(chance.below(200) as u64),
        }
        for (to, notice) in judge.tick(now) {
            match (to, notice) {
                (To::Rank(rank), Notice::Asks(question)) => to_rank[rank].push_back(question),
                (To::All, Notice::Deadlock { groups, error }) => {
                    assert!(groups.len() > 1 && error.is_mismatch(), "{error}");
                    return Some((groups, error));
                }
                other => panic!("{other:?}"),
            }
        }
    }
    None
}

/// Two ranks that the story is about are blocked in calls of its groups that never end, in whatever
/// order the threads go on.
fn assert_dead(world: &World, (groups, error): &(Vec<u32>, Error), chance: &mut Chance) {
    for _ in 0..20 {
        let mut future = world.clone();
        future.exhaust(chance);
        for rank in [error.rank(), error.peer()].map(Option::unwrap) {
            let (now, then) = (&world.ranks[rank].threads, &future.ranks[rank].threads);
            let is_stuck = |(now, then): (&Thread, &Thread)| {
                let its = now.blocked.filter(|blocked| groups.contains(&blocked.0));
                its.is_some() && now.blocked == then.blocked
            };
            let is_stuck = now.iter().zip(then).any(is_stuck);
            assert!(is_stuck, "{error}; but rank {rank} goes on: {world:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn what_is_told_never_ends_by_itself(seed in any::<u64>()) {
        let mut chance = Chance(seed);
        let mut world = World::random(&mut chance, 7, 2);
        if let Some(story) = run(&mut world, &mut chance, 3000) {
            assert_dead(&world, &story, &mut chance);
        }
    }

    /// Ranks of one thread that compute for long, so that old standings and new ones mix.
    #[test]
    fn ranks_of_one_thread_that_go_on_are_not_told(seed in any::<u64>()) {
        let mut chance = Chance(seed);
        let mut world = World::random(&mut chance, 9, 1);
        if let Some(story) = run(&mut world, &mut chance, 3000) {
            assert_dead(&world, &story, &mut chance);
        }
    }

    #[test]
    fn barriers_in_which_all_ranks_are_stuck_are_told(seed in any::<u64>()) {
        let mut chance = Chance(seed);
        let mut world = World::random(&mut chance, 2, 1);
        let mut end = world.clone();
        end.exhaust(&mut chance);
        let is_stuck = |rank: &Rank| rank.threads[0].blocked.is_some();
        let told = run(&mut world, &mut chance, 20_000);
        if end.ranks.iter().all(is_stuck) {
            prop_assert!(told.is_some(), "{end:?}");
        }
        if let Some(story) = told {
            assert_dead(&world, &story, &mut chance);
        }
    }
}

#[test]
fn a_rank_that_has_gone_on_or_is_not_settled_ends_the_suspicion() {
    for changes in [false, true] {
        let standing = |group: u32, epoch| Standing {
            epoch,
            waits: vec![Wait {
                thread: 1,
                group,
                title: "a".to_owned(),
                call: Call::barrier().numbered(2),
                needs: Needs::All,
            }],
            callers: vec![Caller {
                group: 1 - group,
                calls: 1,
                thread: 1,
            }],
        };
        let mut judge = Judge::default();
        judge.stands(0, standing(0, 3), None);
        judge.stands(1, standing(1, 3), None);
        assert!(judge.tick(Duration::ZERO).is_empty());
        assert_eq!(judge.tick(SNAPSHOTS_APART).len(), 2);
        let answer = |is_absent| {
            Some(Answer {
                round: 1,
                is_absent,
            })
        };
        judge.stands(0, standing(0, 3), answer(true));
        let epoch = if changes { 4 } else { 3 };
        judge.stands(1, standing(1, epoch), answer(changes));
        assert!(judge.tick(SNAPSHOTS_APART).is_empty());
        // An answer that comes late is none to the next question.
        judge.stands(0, standing(0, 3), answer(true));
        judge.stands(1, standing(1, epoch), answer(true));
        assert!(judge.tick(SNAPSHOTS_APART).is_empty());
        assert_eq!(judge.tick(2 * SNAPSHOTS_APART).len(), 2);
        assert!(judge.tick(2 * SNAPSHOTS_APART).is_empty());
        assert!(judge.tick(5 * SNAPSHOTS_APART).is_empty());
    }
}
