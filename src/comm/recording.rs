//! What the collectives of a communicator do when, and what they are predicted to do.
//!
//! *May import* what the room may.

use super::Communicator;
use crate::plan::Request;
use crate::plan::cost::{Schedule, schedule};
use crate::plan::tuning::TuningTable;
use crate::protocol::call::{Call, Medium, Split};

pub(crate) use crate::engine::log::{CallRecord, Recording, StepRecord, What};

/// What it takes to predict a call message by message; the same on all ranks.
#[derive(Debug)]
pub(crate) struct Question {
    request: Request,
    count: usize,
    element_bytes: usize,
    table: TuningTable,
}

impl Question {
    /// What each message is predicted to do when.
    ///
    /// # Errors
    /// A sentence: why that is not predicted.
    pub(crate) fn answer(&self) -> std::result::Result<Schedule, String> {
        schedule(&self.request, self.count, self.element_bytes, &self.table)
    }
}

impl Communicator {
    /// Runs `body`, and returns what the collectives of this communicator did meanwhile that it
    /// began. Nothing is written down of what another thread has written down already.
    pub(crate) fn recorded<R>(&self, body: impl FnOnce() -> R) -> (R, Recording) {
        let (runtime, group) = (self.0.parts.runtime.get(), self.0.parts.group);
        let ours = runtime.ok().filter(|one| one.start_log(group));
        let result = body();
        let recording = ours.map(|one| one.take_log(group)).unwrap_or_default();
        (result, recording)
    }

    /// What it takes to predict `call`, whose algorithm has been chosen.
    ///
    /// # Errors
    /// A sentence: why it is not predicted.
    pub(crate) fn question_of(&self, call: &Call) -> std::result::Result<Question, String> {
        if call.split != Split::Even || call.medium != Medium::Host {
            return Err("only blocks of even lengths in the host's memory are predicted".into());
        }
        let chosen = call.collective().zip(call.algorithm);
        let (collective, algorithm) = chosen.ok_or("no algorithm was chosen")?;
        let topology = self.0.parts.topology();
        Ok(Question {
            request: Request {
                collective,
                algorithm,
                world_size: topology.world_size,
                rank: 0,
                root: call.root,
                pieces: call.pieces,
                hosts: topology.hosts,
            },
            count: call.count,
            element_bytes: call.dtype.size(),
            table: self.tuning(),
        })
    }

    /// Whether [`Communicator::clock`] is the same clock in both: they are of one world.
    pub(crate) fn has_the_clock_of(&self, other: &Self) -> bool {
        self.0.parts.runtime.is(&other.0.parts.runtime)
    }

    /// Whether the ranks of both are the same, in the same order.
    pub(crate) fn has_the_ranks_of(&self, other: &Self) -> bool {
        self.0.parts.members == other.0.parts.members
    }
}
