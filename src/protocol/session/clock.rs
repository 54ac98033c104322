//! Starts clocks for collectives in which ranks wait without a deadline.

use super::{Session, To};
use crate::limits::{CALLS_REMEMBERED, NO_TIMEOUT, PLACES_MAX};
use crate::protocol::message::{Clock, Message};

impl Session {
    /// Reports that this rank has been waiting for a while, without a deadline, in the collective
    /// with this sequence number.
    pub fn report_untimed_wait(&mut self, sequence: u64) {
        if self.untimed_waits.get(&sequence) == Some(&self.coordinator) {
            return;
        }
        if self.rank == self.coordinator {
            self.receive_untimed_wait(self.rank, sequence);
        } else {
            self.send(self.coordinator, Message::UntimedWait(sequence));
        }
    }

    /// Returns the clock of the collective with this sequence number, if this rank knows one.
    #[must_use]
    pub fn clock(&self, sequence: u64) -> Option<Clock> {
        self.clocks.get(&sequence).copied()
    }

    /// Processes the report from `from` that a rank is waiting in a collective without a deadline.
    /// Rank `from` is the coordinator, or considers this rank the coordinator. The coordinator
    /// notifies all ranks, once.
    pub(super) fn receive_untimed_wait(&mut self, from: usize, sequence: u64) {
        // Ranks can wait in different calls at the same time, so each number is stored separately.
        let before = self.untimed_waits.insert(sequence, self.coordinator);
        let is_new = before != Some(self.coordinator);
        if self.untimed_waits.len() > CALLS_REMEMBERED {
            self.untimed_waits.pop_first();
        }
        if self.rank == self.coordinator {
            self.send_clock(if is_new { To::All } else { To::Rank(from) }, sequence);
        }
        self.offer_clock(from, sequence);
    }

    /// Repeats the latest sequence numbers and clocks after the coordinator has changed, because
    /// reports to its predecessor may have been lost.
    pub(super) fn repeat_clocks(&mut self) {
        let numbers = self.untimed_waits.keys().rev().copied();
        let latest: Vec<u64> = numbers.take(PLACES_MAX).collect();
        for sequence in latest {
            if self.rank == self.coordinator {
                self.send_clock(To::All, sequence);
            }
            self.offer_clock(self.coordinator, sequence);
        }
    }

    /// Sends `to` the sequence number of a collective in which a rank is waiting without a
    /// deadline, and the clock of the collective if it is known. Only the coordinator does this.
    fn send_clock(&mut self, to: To, sequence: u64) {
        self.outbox.push_back((to, Message::UntimedWait(sequence)));
        let clock = self.clock(sequence).map(Message::Clock);
        self.outbox.extend(clock.map(|clock| (to, clock)));
    }

    /// Offers `to` the timeout of call number `sequence`, if this rank has made the call with a
    /// timeout.
    pub(super) fn offer_clock(&mut self, to: usize, sequence: u64) {
        let timeout = self.calls.timeout(sequence);
        let Some(timeout) = timeout.filter(|timeout| *timeout != NO_TIMEOUT) else {
            return;
        };
        let clock = Clock {
            sequence,
            // A rank fits in 32 bits (`limits::WORLD_SIZE_MAX`).
            rank: self.rank as u32,
            timeout,
        };
        if self.rank == self.coordinator {
            self.receive_clock(clock);
        } else if to != self.rank {
            self.send(to, Message::Clock(clock));
        }
    }

    /// Processes a clock that a rank offers. Only the first clock that this rank learns of counts.
    pub(super) fn receive_clock(&mut self, clock: Clock) {
        if self.clocks.contains_key(&clock.sequence) {
            return;
        }
        if self.clocks.len() == CALLS_REMEMBERED {
            self.clocks.pop_first();
        }
        self.clocks.insert(clock.sequence, clock);
        if self.rank == self.coordinator {
            self.send_all(Message::Clock(clock));
        }
    }
}
