//! Decides whether a rank whose process has ended left cleanly or died.

use super::{Agreement, Session};
use crate::limits::{FIRST_ERROR_GRACE, GOODBYE_GRACE};
use crate::protocol::message::Message;
use std::time::Duration;

/// A rank whose process has ended, to this rank's knowledge.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) peer: usize,
    pub(super) why: String,
    /// The time of the first tick after the end.
    since: Option<Duration>,
    /// `true` if the process ended at least [`GOODBYE_GRACE`] ago, which is too long ago to be a
    /// consequence of a death that is detected now.
    pub(super) was_before: bool,
}

impl Session {
    /// Records that the process of `peer` has ended, or that it accepts no connections. It may have
    /// left cleanly, with a goodbye that arrives later. So the coordinator waits for the goodbye,
    /// and the other ranks wait for the coordinator.
    pub fn process_ended(&mut self, peer: usize, why: &str) {
        if peer == self.rank {
            self.declare_lost(peer, why, true);
        } else if peer < self.members.count() {
            let is_new = self.note_ended(peer, why);
            let error = self.error().cloned();
            match error.filter(|_| peer == self.coordinator) {
                // The rank that succeeds the coordinator may not know the error.
                Some(error) => self.send_to_deputy(peer, Message::Report(error)),
                None if is_new => self.send_ended(peer),
                None => {}
            }
        }
    }

    /// Reports to the coordinator that the process of `peer` has ended. If `peer` is the
    /// coordinator, reports this to the rank that would succeed it.
    pub(super) fn send_ended(&mut self, peer: usize) {
        // A rank fits in 32 bits (`limits::WORLD_SIZE_MAX`).
        self.send_to_deputy(peer, Message::Ended(peer as u32));
    }

    fn send_to_deputy(&mut self, ended: usize, message: Message) {
        let deputy = self.deputy(Some(ended));
        if deputy != self.rank {
            self.send(deputy, message);
        }
    }

    /// Returns the lowest rank other than `ended` that, to this rank's knowledge, has not left and
    /// whose process has not ended.
    fn deputy(&self, ended: Option<usize>) -> usize {
        let mut ranks = self.coordinator..self.rank;
        let is_there = |rank: &usize| {
            let is_ended = self.ended.iter().any(|one| one.peer == *rank);
            !is_ended
                && Some(*rank) != ended
                && !self.departed.contains_key(rank)
                && !self.lost.contains(rank)
        };
        ranks.find(is_there).unwrap_or(self.rank)
    }

    /// Remembers that the process of `peer` has ended. Returns `false` if this was already known or
    /// does not matter, or if `peer` had left cleanly.
    pub(super) fn note_ended(&mut self, peer: usize, why: &str) -> bool {
        let is_known = self.departed.contains_key(&peer) || self.lost.contains(&peer);
        if is_known || self.ended.iter().any(|one| one.peer == peer) {
            return false;
        }
        // Once the first error is known, only the end of the coordinator, or of a rank that may
        // succeed it, matters.
        let is_irrelevant = self.agreement() != Agreement::Pending
            || self.rank != self.coordinator && peer > self.rank;
        if self.first_error.is_some() && is_irrelevant {
            return false;
        }
        self.ended.push(Ended {
            peer,
            why: why.to_owned(),
            since: None,
            was_before: false,
        });
        true
    }

    /// Returns `true` if a rank whose process has ended may still send a goodbye that matters.
    #[must_use]
    pub fn awaits_goodbyes(&self) -> bool {
        let matters = self.first_error.is_none() || self.agreement() == Agreement::Pending;
        matters && !self.ended.is_empty()
    }

    /// Stops waiting for a goodbye from `peer`, which has said goodbye or is known to be lost.
    pub(super) fn expect_no_goodbye(&mut self, peer: usize) {
        self.ended.retain(|one| one.peer != peer);
    }

    /// Declares that the rank whose process ended first has died, if its goodbye has not arrived in
    /// time. If this rank knows of a lower rank that should do this, it waits longer, and then
    /// assumes that the lower rank is stopped.
    pub(super) fn declare_ended_dead(&mut self, now: Duration) {
        let grace = match self.deputy(None) == self.rank {
            true => GOODBYE_GRACE,
            false => FIRST_ERROR_GRACE,
        };
        for one in &mut self.ended {
            let since = *one.since.get_or_insert(now);
            one.was_before = now >= since + GOODBYE_GRACE;
        }
        if let Some(Ended {
            peer, why, since, ..
        }) = self.ended.first()
            && since.is_some_and(|since| now >= since + grace)
        {
            let (peer, why) = (*peer, why.clone());
            self.declare_lost(peer, &why, false);
        }
    }
}

#[cfg(test)]
mod tests;
