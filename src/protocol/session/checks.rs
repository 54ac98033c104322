//! Calls that are checked before they begin: all ranks have made the same collective, and a send's
//! receive has been posted.

use super::{Session, To};
use crate::error::Error;
use crate::limits::CALLS_AHEAD_MAX;
use crate::protocol::call::Call;
use crate::protocol::message::Message;
use std::collections::{BTreeMap, BTreeSet};

/// How far the ranks have come, where calls are checked.
#[derive(Debug, Default)]
pub(super) struct Checks {
    /// All ranks have made the same collectives up to this number.
    agreed: u64,
    /// The coordinator: the last collective that each rank has made.
    made: BTreeMap<usize, u64>,
    /// The coordinator: what ranks have made that it has not made yet.
    ahead: Vec<(usize, Call)>,
    /// The number of the last receive from this rank that each peer has posted.
    posted: BTreeMap<usize, u64>,
    /// The peers of which a receive from any rank waits for a message.
    takes_any: BTreeSet<usize>,
    /// Whether one of this rank does, as it last said.
    says_any: bool,
}

impl Session {
    /// From now on calls are checked. Each rank does this before another one's first call.
    pub fn check_calls(&mut self) {
        self.checks.get_or_insert_default();
    }

    /// Whether calls are checked.
    #[inline]
    #[must_use]
    pub fn checks_calls(&self) -> bool {
        self.checks.is_some()
    }

    /// The ranks that are to make `call` before it begins; none if it may begin. A rank other than
    /// the coordinator only knows that the coordinator has not told it so.
    #[must_use]
    pub fn unready(&self, call: &Call) -> Vec<usize> {
        let Some(checks) = &self.checks else {
            return Vec::new();
        };
        if call.is_pair() {
            let posted = checks.posted.get(&call.root).copied();
            let is_posted = posted.unwrap_or(0) >= call.sequence;
            let is_held = !is_posted && !checks.takes_any.contains(&call.root);
            let is_held = is_held && call.root != self.rank;
            return if is_held { vec![call.root] } else { Vec::new() };
        }
        if call.sequence <= checks.agreed {
            return Vec::new();
        }
        if self.rank != self.coordinator {
            return vec![self.coordinator];
        }
        let is_behind = |rank: &usize| checks.made.get(rank).copied().unwrap_or(0) < call.sequence;
        (0..self.members.count()).filter(is_behind).collect()
    }

    /// This rank has made `call`.
    pub(super) fn tell_entered(&mut self, call: Call) {
        let Some(checks) = &mut self.checks else {
            return;
        };
        // A call on a device is entered once for each of its pieces.
        let last = checks.made.insert(self.rank, call.sequence);
        if last == Some(call.sequence) {
            return;
        }
        if self.rank != self.coordinator {
            let told = Message::Entered(call);
            self.outbox.push_back((To::Rank(self.coordinator), told));
            return;
        }
        let is_due = |one: &mut (usize, Call)| one.1.sequence <= call.sequence;
        let due: Vec<_> = checks.ahead.extract_if(.., is_due).collect();
        for (peer, theirs) in due {
            self.compare_entered(peer, theirs);
        }
        self.agree_on_calls();
    }

    /// Tells a new coordinator of the last collective that this rank has made.
    pub(super) fn repeat_entered(&mut self) {
        let last = self.calls.last().filter(|_| self.checks_calls());
        if let Some(call) = last {
            if self.rank == self.coordinator {
                self.agree_on_calls();
            } else {
                let told = Message::Entered(call);
                self.outbox.push_back((To::Rank(self.coordinator), told));
            }
        }
    }

    /// Coordinator, or about to become it: `from` has made `call`.
    pub(super) fn entered(&mut self, from: usize, call: Call) {
        let made = self.made;
        let Some(checks) = &mut self.checks else {
            return;
        };
        checks.made.insert(from, call.sequence);
        if call.sequence <= made {
            self.compare_entered(from, call);
        } else if checks.ahead.len() < CALLS_AHEAD_MAX {
            checks.ahead.push((from, call));
        } else {
            self.failed(Error::protocol(format!(
                "the ranks are more than {CALLS_AHEAD_MAX} checked calls ahead of rank {}",
                self.rank
            )));
        }
        self.agree_on_calls();
    }

    pub(super) fn all_entered(&mut self, number: u64) {
        if let Some(checks) = &mut self.checks {
            checks.agreed = checks.agreed.max(number);
        }
    }

    /// Tells all ranks up to which number all have made the same calls.
    fn agree_on_calls(&mut self) {
        let decides = self.rank == self.coordinator && !self.has_error();
        let Some(checks) = self.checks.as_mut().filter(|_| decides) else {
            return;
        };
        // A rank that left makes no further call.
        let made = |rank| match self.departed.get(&rank) {
            Some(departed) => Some(departed.calls),
            None => checks.made.get(&rank).copied(),
        };
        let made: Option<Vec<u64>> = (0..self.members.count()).map(made).collect();
        let least = made.and_then(|made| made.into_iter().min());
        if let Some(least) = least.filter(|least| *least > checks.agreed) {
            checks.agreed = least;
            let told = Message::AllEntered(least);
            self.outbox.push_back((To::All, told));
        }
    }

    /// Whether a receive from any rank waits for a message: tells all if that changed.
    pub fn waits_for_any(&mut self, waits: bool) {
        if let Some(checks) = self.checks.as_mut().filter(|one| one.says_any != waits) {
            checks.says_any = waits;
            self.outbox.push_back((To::All, Message::PostedAny(waits)));
        }
    }

    pub(super) fn posted_any(&mut self, peer: usize, waits: bool) {
        match &mut self.checks {
            Some(checks) if waits => checks.takes_any.insert(peer),
            Some(checks) => checks.takes_any.remove(&peer),
            None => false,
        };
    }

    /// `peer` has posted the receive of a message of this rank.
    pub(super) fn posted(&mut self, peer: usize, call: Call) {
        let Some(checks) = &mut self.checks else {
            return;
        };
        checks.posted.insert(peer, call.sequence);
        self.compare_posted(peer, call);
    }
}
