#![doc = include_str!("deadlock.md")]

#[cfg(test)]
mod tests;

use super::call::{Call, Needs};
use super::founding::{Notice, list};
use super::session::To;
use crate::error::Error;
use crate::limits::{
    ANSWERS_AWAITED, CALLERS_STATED_MAX, RANKS_LISTED_MAX, SNAPSHOTS_APART, WAITS_STATED_MAX,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A call with a deadline, in which a thread is blocked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// The thread's number in its process.
    pub thread: u64,
    /// The number of the communicator's group.
    pub group: u32,
    /// The communicator, in words.
    pub title: String,
    /// The call. Its root has the world's number.
    pub call: Call,
    /// The ranks without which it cannot end here, by their numbers in the world.
    pub needs: Needs,
}

impl Wait {
    fn is_in_the_call_of(&self, other: &Self) -> bool {
        (self.group, self.call) == (other.group, other.call)
    }
}

/// A communicator of which one thread makes all calls, and is blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caller {
    /// The number of the communicator's group.
    pub group: u32,
    /// Collectives made there.
    pub calls: u64,
    /// The thread.
    pub thread: u64,
}

/// Where the threads of a process are blocked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// Calls made in all communicators.
    pub epoch: u64,
    /// One for each thread that is blocked in a call with a deadline.
    pub waits: Vec<Wait>,
    /// The communicators that only these threads have called.
    pub callers: Vec<Caller>,
}

/// What the relay asks a rank: whether it is absent from a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// The number of the question.
    pub round: u64,
    /// The call's group.
    pub group: u32,
    /// The call's number there.
    pub sequence: u64,
    /// The rank of the world that waits in it.
    pub by: u32,
    /// Whether it waits for a message of the rank that is asked, and not in a collective.
    pub is_message: bool,
}

/// The answer to a [`Question`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The number of the question.
    pub round: u64,
    /// Whether the rank is absent from the call, and no thread of it is about to make it.
    pub is_absent: bool,
}

/// A wait of a circle.
#[derive(Debug)]
struct Link {
    rank: usize,
    epoch: u64,
    wait: Wait,
    is_confirmed: bool,
}

/// A circle that may be a deadlock.
#[derive(Debug)]
struct Suspicion {
    /// Each hangs on the next, and the last on the first.
    circle: Vec<Link>,
    /// When it was found, and when its ranks were asked.
    since: Duration,
    asked: Option<Duration>,
}

/// The relay's view: what each rank has said last.
///
/// ```
/// use ringtree::plan::Collective;
/// use ringtree::protocol::call::{Call, Needs};
/// use ringtree::protocol::deadlock::{Answer, Caller, Judge, Standing, Wait};
/// use std::time::Duration;
///
/// // Rank 0 waits in communicator 2 and rank 1 in 3; each has called the other's once.
/// let standing = |group: u32| Standing {
///     epoch: 3,
///     waits: vec![Wait {
///         thread: 1,
///         group,
///         title: format!("\"{group}\""),
///         call: Call::new(Collective::AllReduce, 1).numbered(2),
///         needs: Needs::All,
///     }],
///     callers: vec![Caller { group: 5 - group, calls: 1, thread: 1 }],
/// };
/// let mut judge = Judge::default();
/// judge.stands(0, standing(2), None);
/// judge.stands(1, standing(3), None);
/// assert!(judge.tick(Duration::ZERO).is_empty());
/// let questions = judge.tick(Duration::from_secs(1));
/// assert_eq!(questions.len(), 2);
/// let answer = Some(Answer { round: 1, is_absent: true });
/// judge.stands(0, standing(2), answer);
/// judge.stands(1, standing(3), answer);
/// assert_eq!(judge.tick(Duration::from_secs(1)).len(), 1); // the story, to all
/// ```
#[derive(Debug, Default)]
pub struct Judge {
    standings: BTreeMap<usize, Standing>,
    suspicion: Option<Suspicion>,
    rounds: u64,
    has_news: bool,
}

impl Judge {
    /// Rank `from` has said where it stands, unasked or in answer to a question.
    pub fn stands(&mut self, from: usize, mut standing: Standing, answer: Option<Answer>) {
        standing.waits.truncate(WAITS_STATED_MAX);
        standing.callers.truncate(CALLERS_STATED_MAX);
        if let Some(suspicion) = &mut self.suspicion {
            let round = suspicion.asked.map(|_| self.rounds);
            let mut its = suspicion.circle.iter_mut().filter(|one| one.rank == from);
            let holds = its.all(|link| {
                let is_same = link.epoch == standing.epoch && standing.waits.contains(&link.wait);
                let answer = answer.filter(|answer| Some(answer.round) == round);
                link.is_confirmed |= answer.is_some_and(|answer| answer.is_absent);
                is_same && answer.is_none_or(|answer| answer.is_absent)
            });
            if !holds {
                self.suspicion = None;
            }
        }
        self.standings.insert(from, standing);
        self.has_news = true;
    }

    /// Rank `rank` has left or is lost.
    pub fn forget(&mut self, rank: usize) {
        self.standings.remove(&rank);
        let is_its = |one: &Suspicion| one.circle.iter().any(|link| link.rank == rank);
        self.suspicion.take_if(|one| is_its(one));
    }

    /// Whether it is finding out if ranks wait for each other.
    #[must_use]
    pub fn suspects(&self) -> bool {
        self.has_news || self.suspicion.is_some()
    }

    /// Time passes; what is to be told to whom.
    pub fn tick(&mut self, now: Duration) -> Vec<(To, Notice)> {
        let Some(suspicion) = &mut self.suspicion else {
            if std::mem::take(&mut self.has_news) {
                self.suspicion = self.circle().map(|circle| Suspicion {
                    circle,
                    since: now,
                    asked: None,
                });
            }
            return Vec::new();
        };
        let is_confirmed = suspicion.circle.iter().all(|link| link.is_confirmed);
        match suspicion.asked {
            None if now >= suspicion.since + SNAPSHOTS_APART => {
                suspicion.asked = Some(now);
                self.rounds += 1;
                self.questions()
            }
            Some(_) if is_confirmed => {
                let told = self.verdict();
                self.suspicion = None;
                self.standings.clear();
                told.into_iter().collect()
            }
            Some(asked) if now >= asked + ANSWERS_AWAITED => {
                self.suspicion = None;
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    /// Each rank of the circle is asked whether it is absent from the call before its own.
    fn questions(&self) -> Vec<(To, Notice)> {
        let Some(Suspicion { circle, .. }) = &self.suspicion else {
            return Vec::new();
        };
        let before = circle.iter().cycle().skip(circle.len() - 1);
        let asked = before.zip(circle).map(|(waiting, link)| {
            let question = Question {
                round: self.rounds,
                group: waiting.wait.group,
                sequence: waiting.wait.call.sequence,
                // A rank fits 32 bits (`limits::WORLD_SIZE_MAX`).
                by: waiting.rank as u32,
                is_message: waiting.wait.call.is_pair(),
            };
            (To::Rank(link.rank), Notice::Asks(question))
        });
        asked.collect()
    }

    /// The waits on which this one hangs, as far as the standings say.
    fn hangs_on<'a>(
        &'a self,
        (rank, wait): (usize, &'a Wait),
    ) -> impl Iterator<Item = (usize, &'a Wait)> {
        let (all, only) = match wait.needs {
            Needs::All => (Some(&self.standings), None),
            Needs::Rank(needed) => (None, self.standings.get_key_value(&needed)),
            Needs::Unknown => (None, None),
        };
        let others = all.into_iter().flatten().chain(only);
        let others = others.filter(move |(other, _)| **other != rank);
        others.filter_map(move |(other, standing)| {
            let mut callers = standing.callers.iter();
            let caller = callers.find(|caller| caller.group == wait.group)?;
            // Whether it has sent a message it is asked.
            let is_absent = wait.call.is_pair() || caller.calls < wait.call.sequence;
            let mut waits = standing.waits.iter();
            let blocked = waits.find(|one| is_absent && one.thread == caller.thread)?;
            Some((*other, blocked))
        })
    }

    /// A circle of waits of different ranks in at least two communicators, if the standings have
    /// one.
    fn circle(&self) -> Option<Vec<Link>> {
        let waits = |(rank, standing): (&usize, &Standing)| {
            let count = standing.waits.len();
            (0..count).map(|at| (*rank, at)).collect::<Vec<_>>()
        };
        let mut seen = BTreeSet::new();
        for start in self.standings.iter().flat_map(waits) {
            // The waits from the start to here, each with those on which it hangs and which are
            // still to be looked at.
            let mut path = Vec::new();
            self.step(start, &mut path, &mut seen);
            while let Some((_, rest)) = path.last_mut() {
                let Some(next) = rest.pop() else {
                    path.pop();
                    continue;
                };
                if let Some(from) = path.iter().position(|(node, _)| *node == next) {
                    let circle: Vec<_> = path[from..].iter().map(|(node, _)| *node).collect();
                    let links: Vec<Link> = circle.iter().map(|node| self.link(*node)).collect();
                    let ranks: BTreeSet<usize> = circle.iter().map(|(rank, _)| *rank).collect();
                    let is_across = |one: &Link| one.wait.group != links[0].wait.group;
                    if ranks.len() == links.len() && links.iter().any(is_across) {
                        return Some(links);
                    }
                } else {
                    self.step(next, &mut path, &mut seen);
                }
            }
        }
        None
    }

    /// Goes to `node`, unless the search was there before.
    fn step(&self, node: Node, path: &mut Vec<(Node, Vec<Node>)>, seen: &mut BTreeSet<Node>) {
        if !seen.insert(node) {
            return;
        }
        let (rank, at) = node;
        let wait = &self.standings[&rank].waits[at];
        let next = self.hangs_on((rank, wait)).map(|(other, blocked)| {
            let mut waits = self.standings[&other].waits.iter();
            let place = waits.position(|one| std::ptr::eq(one, blocked));
            (other, place.expect("invariant: it is one of its waits"))
        });
        path.push((node, next.collect()));
    }

    fn link(&self, (rank, at): Node) -> Link {
        let standing = &self.standings[&rank];
        Link {
            rank,
            epoch: standing.epoch,
            wait: standing.waits[at].clone(),
            is_confirmed: false,
        }
    }

    /// What all ranks are told of a confirmed circle.
    fn verdict(&self) -> Option<(To, Notice)> {
        let circle = &self.suspicion.as_ref()?.circle;
        let mut groups: Vec<u32> = circle.iter().map(|link| link.wait.group).collect();
        groups.sort_unstable();
        groups.dedup();
        let mut told: Vec<&Wait> = Vec::new();
        for link in circle {
            if !told.iter().any(|wait| wait.is_in_the_call_of(&link.wait)) {
                told.push(&link.wait);
            }
        }
        let who = |wait: &&Wait| {
            let ranks = self.standings.iter().filter(|(_, standing)| {
                let mut waits = standing.waits.iter();
                waits.any(|one| one.is_in_the_call_of(wait))
            });
            let ranks: Vec<usize> = ranks.map(|(rank, _)| *rank).collect();
            let (ranks, verb) = match ranks.as_slice() {
                [one] => (format!("rank {one}"), "waits"),
                several => (format!("ranks {}", list(several)), "wait"),
            };
            let from = match wait.needs {
                Needs::Rank(sender) if wait.call.is_pair() => format!(" from rank {sender}"),
                _ => String::new(),
            };
            format!("{ranks} {verb} in {}{from}, on {}", wait.call, wait.title)
        };
        let story: Vec<String> = told.iter().take(RANKS_LISTED_MAX).map(who).collect();
        let error = Error::mismatch(format!(
            "the ranks wait for each other in different communicators, so that no call can end: \
             {}; all ranks must make the same calls: look for one that only some ranks make, such \
             as under `if rank == 0`",
            story.join("; ")
        ));
        let ranks = || circle.iter().map(|link| link.rank);
        let (low, high) = (ranks().min()?, ranks().max()?);
        let error = circle[0]
            .wait
            .call
            .mark(error.with_rank(low).with_peer(high));
        Some((To::All, Notice::Deadlock { groups, error }))
    }
}

/// A rank, and which of its waits.
type Node = (usize, usize);
