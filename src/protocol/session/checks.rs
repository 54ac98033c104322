//! Checks calls before they begin. A collective begins only when all ranks have made the same one,
//! and a send begins only when its receive has been posted.

use super::Session;
use crate::error::Error;
use crate::limits::CALLS_AHEAD_MAX;
use crate::protocol::call::Call;
use crate::protocol::message::Message;
use std::collections::{BTreeMap, BTreeSet};

/// The calls that ranks have reported, if calls are checked.
#[derive(Debug, Default)]
pub(super) struct Checks {
    /// Sequence number up to which all ranks have made the same collectives.
    agreed: u64,
    /// On the coordinator: sequence number of each rank's last collective.
    made: BTreeMap<usize, u64>,
    /// On the coordinator: collectives that other ranks have made but the coordinator has not made
    /// yet.
    ahead: Vec<(usize, Call)>,
    /// Sequence number of the last receive that each peer has posted for a message from this rank,
    /// indexed by peer.
    posted: BTreeMap<usize, u64>,
    /// Peers on which a receive from any rank is waiting for a message.
    takes_any: BTreeSet<usize>,
    /// `true` if this rank last reported that it has a receive from any rank that is waiting.
    says_any: bool,
}

impl Session {
    /// Enables call checking. Every rank must do this before any rank makes its first call.
    pub fn check_calls(&mut self) {
        self.checks.get_or_insert_default();
    }

    /// Returns `true` if calls are checked.
    #[inline]
    #[must_use]
    pub fn checks_calls(&self) -> bool {
        self.checks.is_some()
    }

    /// Returns the ranks that still have to make `call` before it may begin. The list is empty if
    /// the call may begin. A rank other than the coordinator knows only that the coordinator has
    /// not announced the call, so it returns the coordinator.
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

    /// Reports to the coordinator that this rank has made `call`.
    pub(super) fn send_entered(&mut self, call: Call) {
        let Some(checks) = &mut self.checks else {
            return;
        };
        // A call on a device enters once per piece, but is reported only once.
        let last = checks.made.insert(self.rank, call.sequence);
        if last == Some(call.sequence) {
            return;
        }
        if self.rank != self.coordinator {
            return self.send(self.coordinator, Message::Entered(call));
        }
        let is_due = |one: &mut (usize, Call)| one.1.sequence <= call.sequence;
        let due: Vec<_> = checks.ahead.extract_if(.., is_due).collect();
        for (peer, theirs) in due {
            self.compare_entered(peer, theirs);
        }
        self.agree_on_calls();
    }

    /// Reports this rank's last collective to a new coordinator.
    pub(super) fn repeat_entered(&mut self) {
        let last = self.calls.last().filter(|_| self.checks_calls());
        if let Some(call) = last {
            if self.rank == self.coordinator {
                self.agree_on_calls();
            } else {
                self.send(self.coordinator, Message::Entered(call));
            }
        }
    }

    /// Processes the report that `from` has made `call`. This rank is the coordinator or will
    /// become the coordinator.
    pub(super) fn receive_entered(&mut self, from: usize, call: Call) {
        let made = self.collectives_made;
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
                "other ranks have made more than {CALLS_AHEAD_MAX} checked calls that rank {} has \
                 not made; wait for calls in flight before you start more calls",
                self.rank
            )));
        }
        self.agree_on_calls();
    }

    pub(super) fn receive_all_entered(&mut self, number: u64) {
        if let Some(checks) = &mut self.checks {
            checks.agreed = checks.agreed.max(number);
        }
    }

    /// If this rank is the coordinator, notifies all ranks of the sequence number up to which all
    /// of them have made the same calls.
    fn agree_on_calls(&mut self) {
        let decides = self.rank == self.coordinator && !self.has_error();
        let Some(checks) = self.checks.as_mut().filter(|_| decides) else {
            return;
        };
        // A rank that has left makes no further calls.
        let made = |rank| match self.departed.get(&rank) {
            Some(departed) => Some(departed.calls),
            None => checks.made.get(&rank).copied(),
        };
        let made: Option<Vec<u64>> = (0..self.members.count()).map(made).collect();
        let least = made.and_then(|made| made.into_iter().min());
        if let Some(least) = least.filter(|least| *least > checks.agreed) {
            checks.agreed = least;
            self.send_all(Message::AllEntered(least));
        }
    }

    /// Sets whether a receive from any rank is waiting for a message. Notifies all ranks if this
    /// has changed.
    pub fn waits_for_any(&mut self, waits: bool) {
        if let Some(checks) = self.checks.as_mut().filter(|one| one.says_any != waits) {
            checks.says_any = waits;
            self.send_all(Message::PostedAny(waits));
        }
    }

    pub(super) fn receive_posted_any(&mut self, peer: usize, waits: bool) {
        match &mut self.checks {
            Some(checks) if waits => checks.takes_any.insert(peer),
            Some(checks) => checks.takes_any.remove(&peer),
            None => false,
        };
    }

    /// Records that `peer` has posted the receive for a message from this rank.
    pub(super) fn receive_posted(&mut self, peer: usize, call: Call) {
        let Some(checks) = &mut self.checks else {
            return;
        };
        checks.posted.insert(peer, call.sequence);
        self.compare_posted(peer, call);
    }
}
