//! Determines the agreed mark: the last training step that counts after the group has failed.

use super::Session;
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
    /// made a decision that this rank does not know of, because all of them have left, and the
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
    pub(super) fn send_mark(&mut self) {
        let own = self.marks.own;
        if self.rank == self.coordinator {
            self.receive_mark(self.rank, own);
        } else if self.may_follow(self.coordinator) {
            self.send(self.coordinator, Message::Mark(own));
        }
    }

    /// Processes the decision of the coordinator `from` that the agreed mark is `number`.
    pub(super) fn receive_agreed_mark(&mut self, from: usize, number: u64) {
        if self.first_error.is_some() && self.may_follow(from) {
            self.marks.agreed.get_or_insert(number);
        }
    }

    /// Processes the report that `from` has failed with the mark `number`. Only the first report
    /// from a rank counts.
    pub(super) fn receive_mark(&mut self, from: usize, number: u64) {
        self.marks.told.entry(from).or_insert(number);
        self.agree_if_all_reported();
    }

    /// Decides the agreed mark if every rank has reported its mark, has left or is lost.
    pub(super) fn agree_if_all_reported(&mut self) {
        let has_told = |rank: &usize| {
            self.marks.told.contains_key(rank)
                || self.lost.contains(rank)
                || self.departed.contains_key(rank)
        };
        if self.gathers_marks() && (0..self.members.count()).all(|rank| has_told(&rank)) {
            self.agree();
        }
    }

    /// Determines the agreed mark without the silent ranks if [`MARKS_GRACE`] has elapsed.
    pub(super) fn agree_in_time(&mut self, now: Duration) {
        if self.gathers_marks() && now >= *self.marks.since.get_or_insert(now) + MARKS_GRACE {
            self.agree();
        }
    }

    fn agree(&mut self) {
        // These marks include the coordinator's own.
        let least = self.marks.told.values().copied().min();
        let number = least.unwrap_or(self.marks.own);
        self.marks.agreed = Some(number);
        self.send_all(Message::Agreed(number));
    }
}

#[cfg(test)]
mod tests;
