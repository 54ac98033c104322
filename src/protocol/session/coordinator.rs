//! Elects the coordinator of a group, which decides the first error.

use super::{Awaited, GONE, Session};
use crate::error::Error;
use crate::protocol::group_creation::RELAY;
use crate::protocol::message::Message;

impl Session {
    /// Records that the control connection of `peer` was closed. Every rank of the group sees this
    /// or learns of it from the relay. Unless its goodbye arrived earlier, `peer` has died. The
    /// coordinator broadcasts the death, and the other ranks wait for this broadcast. If the relay
    /// or the coordinator itself died, each rank decides on its own which rank died first.
    pub fn control_lost(&mut self, peer: usize, why: &str) {
        let decides = [self.rank, self.coordinator].contains(&peer)
            || self.rank == self.coordinator
            || self.members.world_rank(peer) == RELAY;
        if !decides {
            self.note_ended(peer, why);
            return;
        }
        let mut before = self.ended.iter().filter(|one| one.was_before);
        let first = before.find(|one| peer != self.rank && !self.departed.contains_key(&one.peer));
        let first = first.filter(|_| self.rank != self.coordinator);
        match first.map(|one| (one.peer, one.why.clone())) {
            Some((first, why)) => {
                self.lost.insert(peer);
                self.declare_lost(first, &why, true);
            }
            None => self.declare_lost(peer, why, true),
        }
    }

    /// Fails because `peer` has died, unless it had said goodbye. `is_public` must be `true` if the
    /// other ranks see the death themselves.
    pub(super) fn declare_lost(&mut self, peer: usize, why: &str, is_public: bool) {
        self.lost.insert(peer);
        self.expect_no_goodbye(peer);
        if self.departed.contains_key(&peer) {
            return;
        }
        let call = self.calls.last().filter(|_| self.inside);
        let mut error = self.lost_error(peer, GONE, call.as_ref(), why);
        if !is_public && let Some(pending) = self.pending.take() {
            // The pending error is older, and may be the reason why that rank ended.
            error = pending.error;
        }
        match is_public && self.rank != self.coordinator {
            true => self.conclude(error),
            false => self.broadcast(error),
        }
        self.elect();
        self.agree_if_all_reported();
    }

    /// Elects the lowest rank that has neither left nor died as the coordinator. Repeats to a new
    /// coordinator everything that its predecessor has not answered.
    pub(super) fn elect(&mut self) {
        let is_absent = |rank: &usize| self.departed.contains_key(rank) || self.lost.contains(rank);
        let mut others = self.coordinator..self.rank;
        let next = others.find(|rank| !is_absent(rank)).unwrap_or(self.rank);
        if next == self.coordinator {
            return;
        }
        self.coordinator = next;
        self.repeat_clocks();
        self.repeat_entered();
        for at in 0..self.ended.len() {
            self.send_ended(self.ended[at].peer);
        }
        if self.first_error.is_some() {
            self.send_mark();
        } else if let Some(pending) = &mut self.pending
            && std::mem::take(&mut pending.reported)
        {
            self.report();
        }
    }

    /// Reports this rank's pending error to the coordinator, once.
    pub(super) fn report(&mut self) {
        let Some(pending) = self.pending.as_mut().filter(|one| !one.reported) else {
            return;
        };
        pending.reported = true;
        pending.since = None;
        let error = pending.error.clone();
        match self.rank == self.coordinator {
            true => self.broadcast(error),
            false => self.send(self.coordinator, Message::Report(error)),
        }
    }

    /// Sends the first error to `from` if the message from that rank shows that it does not know
    /// the error. The rank that decided the error may have ended before all ranks received it.
    pub(super) fn answer_with_first_error(&mut self, from: usize, message: &Message) {
        let does_not_know = matches!(
            message,
            Message::Waiting(_)
                | Message::Counts(..)
                | Message::Asking
                | Message::Report(_)
                | Message::Ended(_)
                | Message::UntimedWait(_)
        );
        if let Some(error) = self.first_error.as_ref().filter(|_| does_not_know) {
            self.send(from, Message::FirstError(error.clone()));
        }
    }

    /// Processes an error that another rank reports to this rank. If this rank does not consider
    /// itself the coordinator, it does not know yet that all lower ranks have left.
    pub(super) fn receive_report(&mut self, error: Error) {
        if self.rank == self.coordinator {
            self.broadcast(error);
        } else {
            self.set_pending(error, Awaited::Nothing);
            self.report();
        }
    }

    /// Makes `error` the first error, unless this rank already knows a first error, and broadcasts
    /// it. A rank does this if it is the coordinator, or if the coordinator has not answered in
    /// time.
    pub(super) fn broadcast(&mut self, error: Error) {
        if self.first_error.is_none() {
            self.send_all(Message::FirstError(error.clone()));
            self.conclude(error);
        }
    }

    /// Stores the first error, unless it is already known. From then on, this rank has failed, and
    /// its mark is frozen.
    pub(super) fn conclude(&mut self, error: Error) {
        if self.first_error.is_none() {
            self.first_error = Some(error);
            if self.rank != self.coordinator {
                // Only deaths of ranks that may become the coordinator still matter here.
                let own = self.rank;
                self.ended.retain(|one| one.peer < own);
            }
            self.send_mark();
        }
    }
}

#[cfg(test)]
mod tests;
