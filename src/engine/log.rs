//! Records, on request, when the steps of a group's collectives run.
//!
//! A [`Log`] is a buffer of timestamps that is allocated in advance. The engine writes to it when a
//! step begins and when it ends. All other details of the steps are taken from their programs
//! afterwards. If there is no log, the only cost is to check for one when a call begins and when
//! bytes move.

use super::cache::Prepared;
use super::program::{Action, Endpoint, ProgramStep};
use crate::protocol::call::Call;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// A function that returns the current time.
pub(crate) type Clock = Box<dyn Fn() -> Duration + Send>;

/// The recorded events of a group's collectives, in chronological order.
pub struct Log {
    clock: Clock,
    /// The time of the engine's last attempt to move the first bytes of a step.
    tried_at: Duration,
    calls: Vec<Begun>,
    calls_max: usize,
    moments: Vec<Moment>,
    moments_max: usize,
    /// Number of steps that have begun, including steps that were not recorded.
    steps_begun: u64,
}

struct Begun {
    sequence: u64,
    prepared: Arc<Prepared>,
    at: Duration,
}

#[derive(Clone, Copy)]
struct Moment {
    sequence: u64,
    step: usize,
    is_end: bool,
    at: Duration,
}

/// A finished recording.
#[derive(Debug, Default)]
pub struct Recording {
    /// The recorded calls, in order.
    pub calls: Vec<CallRecord>,
    /// Number of steps that are missing, either because the log was full or because only their
    /// start or only their end was recorded. They may belong to calls other than those in `calls`.
    pub dropped: u64,
}

/// A recorded call.
#[derive(Debug)]
pub struct CallRecord {
    /// The call, including its sequence number.
    pub call: Call,
    /// The time at which this rank began the call.
    pub began: Duration,
    /// This rank's steps, in plan order.
    pub steps: Vec<StepRecord>,
}

/// A recorded step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepRecord {
    /// Round of the plan, counted from 0.
    pub round: usize,
    /// The kind of the step, with its peers.
    pub what: What,
    /// Number of bytes in each message, or number of bytes that a local step wrote.
    pub bytes: usize,
    /// The time at which the engine began the attempt that moved the first bytes.
    pub began: Duration,
    /// The time at which the last bytes had moved. By then, a send has passed them to the link, and
    /// a receive has stored or reduced them.
    pub ended: Duration,
}

/// The kind of a step, with its peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A send of the same bytes to these ranks.
    Send(Vec<usize>),
    /// A receive of one message from each of these ranks. The messages were stored or reduced.
    Receive(Vec<usize>),
    /// A copy or reduction of this rank's bytes.
    Local,
}

impl Log {
    /// Creates a log with space for `steps_max` steps and the same number of calls.
    #[must_use]
    pub fn new(clock: Clock, steps_max: usize) -> Self {
        let (calls_max, moments_max) = (steps_max, 2 * steps_max);
        Self {
            clock,
            tried_at: Duration::ZERO,
            calls: Vec::with_capacity(calls_max),
            calls_max,
            moments: Vec::with_capacity(moments_max),
            moments_max,
            steps_begun: 0,
        }
    }

    /// Records the start of a call.
    pub fn call(&mut self, sequence: u64, prepared: &Arc<Prepared>) {
        if self.calls.len() < self.calls_max {
            self.calls.push(Begun {
                sequence,
                prepared: Arc::clone(prepared),
                at: (self.clock)(),
            });
        }
    }

    /// Records that the engine is about to try to move the first bytes of a step.
    pub fn tries(&mut self) {
        self.tried_at = (self.clock)();
    }

    /// Records that bytes of a step of call `sequence` have moved. They include the step's first
    /// bytes if `is_first` is `true`, and its last bytes if `is_last` is `true`.
    pub fn moved(&mut self, sequence: u64, step: usize, is_first: bool, is_last: bool) {
        if is_first {
            self.steps_begun += 1;
            self.write(sequence, step, false, self.tried_at);
        }
        if is_last {
            let now = (self.clock)();
            self.write(sequence, step, true, now);
        }
    }

    fn write(&mut self, sequence: u64, step: usize, is_end: bool, at: Duration) {
        if self.moments.len() < self.moments_max {
            self.moments.push(Moment {
                sequence,
                step,
                is_end,
                at,
            });
        }
    }

    /// Ends the recording and adds the details of the steps, which come from the calls' programs.
    #[must_use]
    pub fn finish(self) -> Recording {
        let mut begins = HashMap::new();
        let mut times: HashMap<u64, Vec<(usize, [Duration; 2])>> = HashMap::new();
        for Moment {
            sequence,
            step,
            is_end,
            at,
        } in self.moments
        {
            if !is_end {
                begins.insert((sequence, step), at);
            } else if let Some(began) = begins.remove(&(sequence, step)) {
                times.entry(sequence).or_default().push((step, [began, at]));
            }
        }
        let mut kept = 0;
        let record = |begun: Begun| {
            let mut times = times.remove(&begun.sequence).unwrap_or_default();
            kept += times.len() as u64;
            times.sort_unstable_by_key(|(step, _)| *step);
            let steps = &begun.prepared.program.steps;
            let step = |(step, times): (usize, _)| record_of(steps.get(step)?, times);
            CallRecord {
                call: begun.prepared.call.numbered(begun.sequence),
                began: begun.at,
                steps: times.into_iter().filter_map(step).collect(),
            }
        };
        let calls = self.calls.into_iter().map(record).collect();
        Recording {
            calls,
            dropped: self.steps_begun.saturating_sub(kept),
        }
    }
}

/// Returns the record of a step. Returns `None` for completions, because their readers record
/// receives.
fn record_of(step: &ProgramStep, [began, ended]: [Duration; 2]) -> Option<StepRecord> {
    let peers = |ends: &[Endpoint]| ends.iter().map(|one| one.peer).collect();
    let what = match &step.action {
        Action::Send { to, .. } => What::Send(peers(to)),
        Action::Store(from) => What::Receive(peers(std::slice::from_ref(from))),
        Action::Reduce { from, .. } => What::Receive(peers(from)),
        Action::Copy(_) | Action::Fold { .. } => What::Local,
        Action::Complete { .. } => return None,
    };
    Some(StepRecord {
        round: step.round,
        what,
        bytes: step.bytes,
        began,
        ended,
    })
}

#[cfg(test)]
mod tests;
