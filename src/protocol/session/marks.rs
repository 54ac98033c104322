//! Determines the agreed mark: the last training step that counts after the group has failed.

use super::{Session, To};
use crate::limits::MARKS_GRACE;
use crate::protocol::message::Message;
use std::collections::BTreeMap;
use std::time::Duration;

/// The state of the agreed mark on this rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agreement {
    /// To this rank's knowledge, the agreed mark has not been decided yet.
    Pending,
    /// The agreed mark. It is the same on every rank that learns it.
    Reached(u64),
    /// There is no agreed mark: either the group has not failed, or a coordinator died that may
    /// already have notified other ranks.
    Unreachable,
}

/// The mark of this rank and, on the coordinator, the marks of the other ranks.
#[derive(Debug, Default)]
pub(super) struct Marks {
    own: u64,
    told: BTreeMap<usize, u64>,
    /// The time of the first tick after the first error.
    since: Option<Duration>,
    agreed: Option<u64>,
}

impl Session {
    /// Sets the mark of this rank, which has completed everything up to `number`. After a failure,
    /// the mark no longer changes.
    pub fn mark(&mut self, number: u64) {
        if self.first_error.is_none() {
            self.marks.own = self.marks.own.max(number);
        }
    }

    /// Returns the mark of this rank. After a failure, this is the mark that the rank has reported.
    #[must_use]
    pub fn own_mark(&self) -> u64 {
        self.marks.own
    }

    /// Returns the state of the agreed mark.
    #[must_use]
    pub fn agreement(&self) -> Agreement {
        match self.marks.agreed {
            Some(number) => Agreement::Reached(number),
            None if self.has_error() && self.may_follow(self.coordinator) => Agreement::Pending,
            None => Agreement::Unreachable,
        }
    }

    /// Returns `true` if `rank` may decide as the coordinator. In that case, no lower rank can have
    /// made a decision that this rank does not know, because all of them have left, and the
    /// decision of a rank arrives before its goodbye.
    fn may_follow(&self, rank: usize) -> bool {
        let has_died = |rank: &usize| self.lost.contains(rank) && !self.departed.contains_key(rank);
        !(0..=rank).any(|rank| has_died(&rank))
    }

    /// Returns `true` if this rank is the coordinator and has not decided the agreed mark, which
    /// the other ranks are waiting for.
    #[must_use]
    pub fn gathers_marks(&self) -> bool {
        self.rank == self.coordinator
            && self.first_error.is_some()
            && self.marks.agreed.is_none()
            && self.may_follow(self.rank)
    }

    /// Reports the mark of this rank, which has failed. The mark is now frozen.
    pub(super) fn tell_mark(&mut self) {
        let own = self.marks.own;
        if self.rank == self.coordinator {
            self.told(self.rank, own);
        } else if self.may_follow(self.coordinator) {
            self.outbox
                .push_back((To::Rank(self.coordinator), Message::Mark(own)));
        }
    }

    /// Processes the decision of the coordinator `from` that the agreed mark is `number`.
    pub(super) fn agreed(&mut self, from: usize, number: u64) {
        if self.first_error.is_some() && self.may_follow(from) {
            self.marks.agreed.get_or_insert(number);
        }
    }

    /// Processes the report that `from` has failed with the mark `number`. Only the first report
    /// from a rank counts.
    pub(super) fn told(&mut self, from: usize, number: u64) {
        self.marks.told.entry(from).or_insert(number);
        self.agree_if_all_told();
    }

    /// Decides the agreed mark if every rank has reported its mark, has left or is lost.
    pub(super) fn agree_if_all_told(&mut self) {
        let has_told = |rank: &usize| {
            self.marks.told.contains_key(rank)
                || self.lost.contains(rank)
                || self.departed.contains_key(rank)
        };
        if self.gathers_marks() && (0..self.members.count()).all(|rank| has_told(&rank)) {
            self.agree();
        }
    }

    /// Decides the agreed mark without the silent ranks if [`MARKS_GRACE`] has elapsed.
    pub(super) fn agree_in_time(&mut self, now: Duration) {
        if self.gathers_marks() && now >= *self.marks.since.get_or_insert(now) + MARKS_GRACE {
            self.agree();
        }
    }

    fn agree(&mut self) {
        // The coordinator's own mark is among them.
        let least = self.marks.told.values().copied().min();
        let number = least.unwrap_or(self.marks.own);
        self.marks.agreed = Some(number);
        self.outbox.push_back((To::All, Message::Agreed(number)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sessions of a group in which one rank has died, with their unsent messages.
    struct Ranks(Vec<Session>);

    impl Ranks {
        /// Creates ranks with these marks. Only the coordinator knows that the last rank died.
        fn with_marks(marks: &[u64]) -> Self {
            let mut sessions: Vec<_> = (0..marks.len())
                .map(|rank| Session::new(rank, marks.len()))
                .collect();
            for (session, mark) in sessions.iter_mut().zip(marks) {
                session.mark(*mark);
            }
            sessions[0].control_lost(marks.len() - 1, "killed");
            Self(sessions)
        }

        /// Delivers all messages except those to and from the `silent` ranks.
        fn talk(&mut self, silent: &[usize]) {
            let mut was_said = true;
            while was_said {
                was_said = false;
                for from in 0..self.0.len() {
                    while let Some((to, message)) = self.0[from].next_message() {
                        was_said = true;
                        for at in (0..self.0.len()).filter(|at| !silent.contains(at)) {
                            let is_meant = to == To::Rank(at) || to == To::All && at != from;
                            if is_meant && !silent.contains(&from) {
                                self.0[at].receive(from, message.clone());
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn the_least_mark_of_the_living_is_agreed() {
        let mut ranks = Ranks::with_marks(&[7, 6, 7, 2]);
        assert_eq!(
            ranks.0[1].agreement(),
            Agreement::Unreachable,
            "it knows of no failure"
        );
        ranks.talk(&[3]);
        for session in &ranks.0[..3] {
            assert_eq!(session.agreement(), Agreement::Reached(6));
        }
    }

    #[test]
    fn a_mark_made_after_the_failure_does_not_count() {
        let mut ranks = Ranks::with_marks(&[7, 6, 7, 2]);
        let Some((To::All, first_error)) = ranks.0[0].next_message() else {
            panic!("nothing broadcast")
        };
        ranks.0[1].receive(0, first_error);
        ranks.0[1].mark(7);
        assert_eq!(ranks.0[1].own_mark(), 6);
        ranks.0[2].control_lost(0, "killed");
        assert_eq!(ranks.0[2].agreement(), Agreement::Unreachable);
    }

    #[test]
    fn a_silent_rank_is_given_up_and_sees_that_it_was() {
        let mut ranks = Ranks::with_marks(&[7, 6, 7, 2]);
        ranks.talk(&[1, 3]);
        assert!(ranks.0[0].gathers_marks());
        assert_eq!(ranks.0[2].agreement(), Agreement::Pending);
        ranks.0[0].tick(Duration::from_secs(5));
        ranks.0[0].tick(Duration::from_secs(5) + MARKS_GRACE);
        let Some((To::All, agreed)) = ranks.0[0].next_message() else {
            panic!("nothing agreed")
        };
        // It resumes now and reports a mark that changes nothing.
        let error = ranks.0[0].first_error().cloned().unwrap();
        ranks.0[1].receive(0, Message::FirstError(error));
        for rank in 1..3 {
            ranks.0[rank].receive(0, agreed.clone());
        }
        ranks.talk(&[3]);
        for session in &ranks.0[..3] {
            assert_eq!(session.agreement(), Agreement::Reached(7));
        }
        assert!(ranks.0[1].own_mark() < 7);
    }

    #[test]
    fn ranks_that_die_or_leave_meanwhile_are_not_waited_for() {
        let mut ranks = Ranks::with_marks(&[7, 5, 6, 7, 2]);
        ranks.talk(&[1, 2, 4]);
        ranks.0[0].control_lost(1, "killed");
        assert!(ranks.0[0].gathers_marks());
        ranks.0[0].receive(
            2,
            Message::Goodbye {
                calls: 9,
                failed_beside: None,
            },
        );
        assert_eq!(ranks.0[0].agreement(), Agreement::Reached(7));
    }

    #[test]
    fn only_the_coordinator_agrees() {
        let mut ranks = Ranks::with_marks(&[7, 6, 7, 2]);
        ranks.0[1].control_lost(0, "killed");
        ranks.0[1].receive(2, Message::Mark(7));
        ranks.0[1].receive(2, Message::Agreed(7));
        ranks.0[1].tick(Duration::from_secs(9));
        assert_eq!(ranks.0[1].agreement(), Agreement::Unreachable);
    }
}
