//! Where the threads of this process are blocked, as its peers and rank 0 of the world are told,
//! and on rank 0 what is concluded from it (`protocol::deadlock`).
//!
//! *May import* what the room may.

use super::group::Group;
use super::{Engine, Ticket};
use crate::limits::{CALLERS_STATED_MAX, PATIENT, STALL_WARNING_DEFAULT, WAITS_STATED_MAX};
use crate::protocol::call::{Call, Needs};
use crate::protocol::deadlock::{Answer, Caller, Judge, Question, Standing, Wait};
use crate::protocol::founding::{Notice, RELAY};
use crate::protocol::message::Elsewhere;
use crate::protocol::session::To;
use std::time::Duration;

/// The group of all ranks, which has a name of its own.
const WORLD: u32 = 0;

/// The threads that have called a group.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Callers {
    /// The last; 0 before the first call.
    last: u64,
    are_several: bool,
}

impl Callers {
    #[inline]
    pub(super) fn note(&mut self, thread: u64) {
        if self.last != thread {
            self.are_several = self.last != 0;
            self.last = thread;
        }
    }

    /// The thread that made all calls, if one did.
    fn only(self) -> Option<u64> {
        (self.last != 0 && !self.are_several).then_some(self.last)
    }
}

/// What the passing of time brought to light in a group.
#[derive(Clone, Debug)]
pub(super) struct Alarm {
    /// A call that has waited this long is warned of; never, if that is zero.
    pub(super) after: Duration,
    /// Whether peers were told of a wait, so that rank 0 of the world is to be told, too.
    pub(super) is_due: bool,
    /// The warning.
    pub(super) line: Option<String>,
}

impl Default for Alarm {
    fn default() -> Self {
        Self {
            after: STALL_WARNING_DEFAULT,
            is_due: false,
            line: None,
        }
    }
}

/// For so many blocked threads there is room beforehand.
const BLOCKED_AT_ONCE: usize = 8;

/// The blocked threads of this process.
#[derive(Default)]
pub(super) struct Standings {
    /// Each with what it waits for.
    blocked: Vec<(u64, Ticket)>,
    is_due: bool,
    questions: Vec<Question>,
    judge: Judge,
    /// After how many calls the last warning was given.
    warned_at: Option<u64>,
    warning: Option<String>,
    /// What groups that come are told.
    warns_after: Option<Duration>,
}

impl Standings {
    pub(super) fn prepare(&mut self, group: &mut Group) {
        // So that a call which waits for long allocates nothing.
        self.blocked.reserve(BLOCKED_AT_ONCE);
        if let Some(after) = self.warns_after {
            group.alarm.after = after;
        }
    }
}

impl Engine {
    /// From now on the process warns of calls that have waited so long; never, if that is zero.
    pub fn warn_after(&mut self, time: Duration) {
        self.standings.warns_after = Some(time);
        self.groups().for_each(|group| group.alarm.after = time);
    }

    /// Thread number `thread` waits for an operation, or no longer does.
    #[inline]
    pub fn waits_in(&mut self, thread: u64, ticket: Ticket, waits: bool) {
        let blocked = &mut self.standings.blocked;
        let known = blocked.iter().position(|one| *one == (thread, ticket));
        match known {
            None if waits => blocked.push((thread, ticket)),
            Some(at) if !waits => drop(blocked.swap_remove(at)),
            _ => {}
        }
    }

    /// A warning that the program's user is to be shown.
    pub fn take_warning(&mut self) -> Option<String> {
        self.standings.warning.take()
    }

    /// Whether rank 0 of the world is to be told where the threads of this process are blocked.
    #[must_use]
    pub fn owes_standing(&self) -> bool {
        self.standings.is_due || self.is_asked()
    }

    /// Whether it has asked for that.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        !self.standings.questions.is_empty()
    }

    /// Tells rank 0 of the world where the threads of this process are blocked. `is_settled`: no
    /// task of the process, and no thread that is not blocked in a call, is about to make one.
    pub fn tell_standing(&mut self, is_settled: bool) {
        let standing = self.standing();
        let questions = std::mem::take(&mut self.standings.questions);
        // Another thread's call may end, and the thread go on.
        let is_settled = is_settled && self.standings.blocked.len() == 1;
        let is_due = std::mem::take(&mut self.standings.is_due);
        if is_due && questions.is_empty() && !standing.waits.is_empty() {
            let stands = Notice::Stands(standing.clone(), None);
            self.founding.say(To::Rank(RELAY), &stands);
        }
        for question in questions {
            let group = self.group(question.group);
            let answer = Answer {
                round: question.round,
                is_absent: is_settled && group.is_some_and(|group| group.is_absent(&question)),
            };
            let stands = Notice::Stands(standing.clone(), Some(answer));
            self.founding.say(To::Rank(RELAY), &stands);
        }
    }

    /// A notice about blocked threads came from a rank of the world.
    pub(super) fn noticed(&mut self, from: usize, notice: Notice) {
        match notice {
            Notice::Stands(standing, answer) => {
                self.standings.judge.stands(from, standing, answer);
            }
            Notice::Asks(question) if from == RELAY => self.standings.questions.push(question),
            Notice::Deadlock { groups, error } if from == RELAY => {
                for number in groups {
                    if let Some(group) = self.group(number) {
                        let error = group.members().of_the_world(error.clone());
                        group.explain(error);
                    }
                }
            }
            Notice::Left => self.standings.judge.forget(from),
            _ => {}
        }
    }

    /// A rank of the world is gone.
    pub(super) fn forget_standing(&mut self, rank: usize) {
        self.standings.judge.forget(rank);
    }

    /// Time has passed over the groups.
    pub(super) fn look_at_waits(&mut self, now: Duration) {
        let (epoch, standings) = (self.epoch(), &mut self.standings);
        for (_, group) in &mut self.groups {
            standings.is_due |= std::mem::take(&mut group.alarm.is_due);
            if let Some(line) = group.alarm.line.take()
                && standings.warned_at != Some(epoch)
            {
                standings.warned_at = Some(epoch);
                standings.warning = Some(line);
            }
        }
        for (to, notice) in self.standings.judge.tick(now) {
            self.founding.say(to, &notice);
            if to == To::All {
                // This process may end as soon as it is told, so the others are told before.
                self.founding.say(To::Rank(RELAY), &notice);
            }
        }
    }

    /// Whether this process, which is rank 0 of the world then, finds out if ranks wait for each
    /// other.
    pub(super) fn suspects_deadlock(&self) -> bool {
        self.standings.judge.suspects()
    }

    /// A call of another group than `number` in which a thread is blocked: the thread that calls
    /// that group, if it is blocked.
    pub(super) fn elsewhere(&self, number: u32) -> Option<Elsewhere> {
        let mut groups = self.groups.iter();
        let caller = groups.find(|(each, _)| *each == number)?.1.callers.last;
        let others = self.standings.blocked.iter();
        let mut others: Vec<_> = others.filter(|one| one.1.group != number).collect();
        others.sort_by_key(|(thread, _)| *thread != caller);
        others.into_iter().find_map(|(_, ticket)| {
            let (group, title) = self.titled(ticket.group)?;
            let (call, _) = group.blocked_in(*ticket)?;
            Some(Elsewhere { title, call })
        })
    }

    fn epoch(&self) -> u64 {
        let made = |(_, group): &(u32, Group)| {
            let (collectives, messages) = group.session.calls_made();
            collectives.wrapping_add(messages)
        };
        self.groups.iter().map(made).fold(0, u64::wrapping_add)
    }

    fn titled(&self, number: u32) -> Option<(&Group, String)> {
        let (_, group) = self.groups.iter().find(|(each, _)| *each == number)?;
        let title = match group.session.title() {
            Some(name) => format!("{name:?}"),
            None if number == WORLD => "the communicator of all ranks".to_owned(),
            None => format!(
                "an unnamed communicator of {} ranks",
                group.members().count()
            ),
        };
        Some((group, title))
    }

    fn standing(&self) -> Standing {
        let blocked = self.standings.blocked.iter();
        let waits = blocked.filter_map(|(thread, ticket)| {
            let (group, title) = self.titled(ticket.group)?;
            let (call, needs) = group.blocked_in(*ticket)?;
            Some(Wait {
                thread: *thread,
                group: ticket.group,
                title,
                call,
                needs: needs?,
            })
        });
        let waits: Vec<Wait> = waits.take(WAITS_STATED_MAX).collect();
        let callers = self.groups.iter().filter_map(|(number, group)| {
            let thread = group.callers.only()?;
            waits.iter().find(|wait| wait.thread == thread)?;
            Some(Caller {
                group: *number,
                calls: group.session.calls_made().0,
                thread,
            })
        });
        Standing {
            epoch: self.epoch(),
            callers: callers.take(CALLERS_STATED_MAX).collect(),
            waits,
        }
    }
}

impl Group {
    /// A thread of this process makes a call.
    #[inline]
    pub fn called_by(&mut self, thread: u64) {
        self.callers.note(thread);
    }

    /// From now on messages call the communicator so.
    pub fn rename(&mut self, name: String) {
        self.session.rename(name);
    }

    /// What the program calls the communicator.
    #[must_use]
    pub fn title(&self) -> Option<&str> {
        self.session.title()
    }

    /// The call of an operation that is under way, and which ranks of the world it needs unless it
    /// is patient, both in the world's numbers.
    fn blocked_in(&self, ticket: Ticket) -> Option<(Call, Option<Needs>)> {
        let queue = match ticket.order {
            super::group::Order::Collectives => &self.collectives,
            super::group::Order::Pairs => &self.pairs,
        };
        let slot = queue.slots.get(ticket.slot);
        let slot = slot.filter(|slot| slot.result.is_none())?;
        let call = slot.call()?;
        let needs = match slot.message_end() {
            None => call.needs(self.rank, self.members().count()),
            Some(end) => end.needs(),
        };
        let needs = match needs {
            Needs::Rank(rank) => Needs::Rank(self.members().world_rank(rank)),
            others => others,
        };
        let call = Call {
            root: self.members().world_rank(call.root),
            ..call
        };
        Some((call, (slot.timeout != PATIENT).then_some(needs)))
    }

    /// Whether this rank has not made the call that a question is about.
    fn is_absent(&self, question: &Question) -> bool {
        if !question.is_message {
            return self.session.calls_made().0 < question.sequence;
        }
        let receiver = self.members().rank_of(question.by as usize);
        receiver.is_some_and(|receiver| self.numbers.sent_to(receiver) < question.sequence)
    }
}
