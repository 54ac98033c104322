//! Collectives in which ranks wait without a deadline of their own: when their clock starts.

use super::{Session, To};
use crate::limits::{CALLS_REMEMBERED, PATIENT, PLACES_MAX};
use crate::protocol::message::{Clock, Message};

impl Session {
    /// This rank has waited a while in the collective of that number, and has no deadline.
    pub fn is_patient_in(&mut self, sequence: u64) {
        if self.patient.get(&sequence) == Some(&self.coordinator) {
            return;
        }
        if self.rank == self.coordinator {
            self.someone_is_patient(self.rank, sequence);
        } else {
            let told = Message::Patient(sequence);
            self.outbox.push_back((To::Rank(self.coordinator), told));
        }
    }

    /// The clock of that collective, once this rank knows of one.
    #[must_use]
    pub fn clock(&self, sequence: u64) -> Option<Clock> {
        self.clocks.get(&sequence).copied()
    }

    /// A rank waits without a deadline, as `from` says, which may be the coordinator or takes this
    /// rank for it. The coordinator tells all, once.
    pub(super) fn someone_is_patient(&mut self, from: usize, sequence: u64) {
        // Ranks wait in different calls at once, so each number counts for itself.
        let before = self.patient.insert(sequence, self.coordinator);
        let is_new = before != Some(self.coordinator);
        if self.patient.len() > CALLS_REMEMBERED {
            self.patient.pop_first();
        }
        if self.rank == self.coordinator {
            self.tell_clock(if is_new { To::All } else { To::Rank(from) }, sequence);
        }
        self.offer_clock(from, sequence);
    }

    /// There is a new coordinator: what the one before was told may be lost.
    pub(super) fn repeat_clocks(&mut self) {
        let numbers = self.patient.keys().rev().copied();
        let latest: Vec<u64> = numbers.take(PLACES_MAX).collect();
        for sequence in latest {
            if self.rank == self.coordinator {
                self.tell_clock(To::All, sequence);
            }
            self.offer_clock(self.coordinator, sequence);
        }
    }

    /// As the coordinator, sends `to` the number of a collective that a rank waits in, and the
    /// clock of that collective if it is known.
    fn tell_clock(&mut self, to: To, sequence: u64) {
        self.outbox.push_back((to, Message::Patient(sequence)));
        let clock = self.clock(sequence).map(Message::Clock);
        self.outbox.extend(clock.map(|clock| (to, clock)));
    }

    /// Offers `to` the timeout of call number `sequence`, if this rank has made that call with one.
    pub(super) fn offer_clock(&mut self, to: usize, sequence: u64) {
        let timeout = self.calls.timeout(sequence);
        let Some(timeout) = timeout.filter(|timeout| *timeout != PATIENT) else {
            return;
        };
        let clock = Clock {
            sequence,
            // A rank fits 32 bits (`limits::WORLD_SIZE_MAX`).
            rank: self.rank as u32,
            timeout,
        };
        if self.rank == self.coordinator {
            self.clock_offered(clock);
        } else if to != self.rank {
            self.outbox.push_back((To::Rank(to), Message::Clock(clock)));
        }
    }

    /// A clock that a rank starts: the first one that this rank learns of counts.
    pub(super) fn clock_offered(&mut self, clock: Clock) {
        if self.clocks.contains_key(&clock.sequence) {
            return;
        }
        if self.clocks.len() == CALLS_REMEMBERED {
            self.clocks.pop_first();
        }
        self.clocks.insert(clock.sequence, clock);
        if self.rank == self.coordinator {
            self.outbox.push_back((To::All, Message::Clock(clock)));
        }
    }
}
