//! Records the steps of collectives and their times, and predicts these times.
//!
//! *May import* the same modules as its parent.

use super::Communicator;
use crate::plan::internal::cost::{Schedule, schedule};
use crate::plan::{Request, TuningTable};
use crate::protocol::call::{Call, Medium, Split};

pub(crate) use crate::engine::log::{CallRecord, Recording, StepRecord, What};

/// All inputs for predicting the messages of a call. They are the same on all ranks.
#[derive(Debug)]
pub(crate) struct PredictionInput {
    request: Request,
    count: usize,
    element_bytes: usize,
    table: TuningTable,
}

impl PredictionInput {
    /// Predicts when each message is sent and received.
    ///
    /// # Errors
    /// Returns a message if the call cannot be predicted.
    pub(crate) fn answer(&self) -> std::result::Result<Schedule, String> {
        let answer = schedule(&self.request, self.count, self.element_bytes, &self.table);
        answer.map_err(String::from)
    }
}

impl Communicator {
    /// Runs `body`, and returns its result together with a recording of the collectives that this
    /// communicator started while `body` was running. The recording is empty if another thread is
    /// already recording.
    pub(crate) fn recorded<R>(&self, body: impl FnOnce() -> R) -> (R, Recording) {
        let (runtime, group) = (self.core.parts.runtime.get(), self.core.parts.group);
        let ours = runtime.ok().filter(|one| one.start_log(group));
        let result = body();
        let recording = ours.map(|one| one.take_log(group)).unwrap_or_default();
        (result, recording)
    }

    /// Returns the inputs for a prediction of `call`, whose algorithm has already been chosen.
    ///
    /// # Errors
    /// Returns a message if the call cannot be predicted.
    pub(crate) fn prediction_input(
        &self,
        call: &Call,
    ) -> std::result::Result<PredictionInput, String> {
        if call.split != Split::Even || call.medium != Medium::Host {
            return Err(
                "only calls with blocks of equal length in host memory can be predicted".into(),
            );
        }
        let chosen = call.collective().zip(call.algorithm);
        let (collective, algorithm) = chosen.ok_or("no algorithm was chosen")?;
        let topology = self.core.parts.topology();
        Ok(PredictionInput {
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
            table: self.table(),
        })
    }

    /// Returns `true` if both communicators have the same [clock](Communicator::clock), which is
    /// the case if they belong to the same world.
    pub(crate) fn shares_clock_with(&self, other: &Self) -> bool {
        self.core.parts.runtime.is(&other.core.parts.runtime)
    }

    /// Returns `true` if both communicators have the same ranks in the same order.
    pub(crate) fn shares_ranks_with(&self, other: &Self) -> bool {
        self.core.parts.members == other.core.parts.members
    }
}
