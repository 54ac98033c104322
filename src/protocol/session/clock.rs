//! Collectives in which ranks wait without a deadline of their own: when their clock starts.

use super::{Session, To};
use crate::limits::{CALLS_REMEMBERED, PATIENT};
use crate::protocol::message::{Clock, Message};

impl Session {
    /// This rank has waited a while in the collective of that number, and has no deadline.
    pub fn is_patient_in(&mut self, sequence: u64) {
        if self.patient.contains(&sequence) {
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

    /// `from` says that a rank waits without a deadline. The coordinator tells all, once.
    pub(super) fn someone_is_patient(&mut self, from: usize, sequence: u64) {
        let counts = self.rank == self.coordinator || from == self.coordinator;
        // Ranks wait in different calls at once, so each number counts for itself.
        if !counts || !self.patient.insert(sequence) {
            return;
        }
        if self.patient.len() > CALLS_REMEMBERED {
            self.patient.pop_first();
        }
        if self.rank == self.coordinator {
            let told = Message::Patient(sequence);
            self.outbox.push_back((To::All, told));
        }
        self.offer_clock(sequence);
    }

    /// Tells that this rank has made the call of that number with a timeout, if it has.
    pub(super) fn offer_clock(&mut self, sequence: u64) {
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
            self.clock_offered(self.rank, clock);
        } else if !self.clocks.contains_key(&sequence) {
            let told = Message::Clock(clock);
            self.outbox.push_back((To::Rank(self.coordinator), told));
        }
    }

    /// A clock that a rank starts: the first one that the coordinator hears of counts.
    pub(super) fn clock_offered(&mut self, from: usize, clock: Clock) {
        let counts = self.rank == self.coordinator || from == self.coordinator;
        if !counts || self.clocks.contains_key(&clock.sequence) {
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
