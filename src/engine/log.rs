//! What the collectives of a group do when, written down while someone asks for it.
//!
//! A [`Log`] is a buffer of moments that is reserved beforehand. The engine writes into it when a
//! step begins and when it has ended; what the steps are is looked up afterwards, in the program.
//! Without a log there is nothing but a test for one, where a call begins and where bytes move.

use super::cache::Prepared;
use super::program::{Action, Endpoint, ProgramStep};
use crate::protocol::call::Call;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Reads the time.
pub(crate) type Clock = Box<dyn Fn() -> Duration + Send>;

/// The moments of a group's collectives, in the order in which they came.
pub struct Log {
    clock: Clock,
    /// When the engine began the attempt that is under way.
    tried_at: Duration,
    calls: Vec<Begun>,
    calls_max: usize,
    moments: Vec<Moment>,
    moments_max: usize,
    /// Steps that have begun, whether there was room for them or not.
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

/// What was written down.
#[derive(Debug, Default)]
pub struct Recording {
    /// The calls, in their order.
    pub calls: Vec<CallRecord>,
    /// Steps of these or of other calls for which there was no room, or of which not both ends were
    /// seen.
    pub dropped: u64,
}

/// A call that was written down.
#[derive(Debug)]
pub struct CallRecord {
    /// The call, with its number.
    pub call: Call,
    /// When this rank began it.
    pub began: Duration,
    /// What the rank did, in the order of the plan.
    pub steps: Vec<StepRecord>,
}

/// A step that was written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepRecord {
    /// The plan's round, from 0.
    pub round: usize,
    /// What it was.
    pub what: What,
    /// Bytes of each message, or of what a local step wrote.
    pub bytes: usize,
    /// When the engine began the attempt that moved the first bytes.
    pub began: Duration,
    /// When the last bytes had moved: a send's were with the link, a receive's in their place.
    pub ended: Duration,
}

/// What a step did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// Sent the same bytes to these ranks.
    Send(Vec<usize>),
    /// Stored a message, or reduced several.
    Receive(Vec<usize>),
    /// Copied or reduced bytes of this rank.
    Local,
}

impl Log {
    /// A log with room for so many steps, and as many calls.
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

    /// A call begins.
    pub fn call(&mut self, sequence: u64, prepared: &Arc<Prepared>) {
        if self.calls.len() < self.calls_max {
            self.calls.push(Begun {
                sequence,
                prepared: Arc::clone(prepared),
                at: (self.clock)(),
            });
        }
    }

    /// The engine tries to move the first bytes of a step.
    pub fn tries(&mut self) {
        self.tried_at = (self.clock)();
    }

    /// Bytes of a step of call `sequence` have moved: its first, its last, or others.
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

    /// Looks up what was written down.
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

/// A completion is left out: it is what its readers record as their receives.
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
mod tests {
    use super::*;
    use crate::dtype::Dtype;
    use crate::engine::cache::MessageEnd;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A log whose clock ticks a second at each look.
    fn log(steps_max: usize) -> Log {
        let ticks = AtomicU64::new(0);
        let clock = move || Duration::from_secs(ticks.fetch_add(1, Ordering::Relaxed));
        Log::new(Box::new(clock), steps_max)
    }

    fn prepared() -> Arc<Prepared> {
        Arc::new(Prepared::message(0, MessageEnd::To(1), (3, Dtype::F32), 0).unwrap())
    }

    #[test]
    fn a_step_lasts_from_the_attempt_that_moved_something_to_its_last_byte() {
        let mut log = log(1);
        log.call(7, &prepared());
        log.tries(); // in vain
        log.tries();
        log.moved(7, 0, true, false);
        log.moved(7, 0, false, false);
        log.moved(7, 0, false, true);
        let Recording { calls, dropped } = log.finish();
        assert_eq!((calls[0].call.sequence, dropped), (7, 0));
        let step = StepRecord {
            round: 0,
            what: What::Send(vec![1]),
            bytes: 12,
            began: Duration::from_secs(2),
            ended: Duration::from_secs(3),
        };
        assert_eq!(calls[0].steps, [step]);
    }

    #[test]
    fn a_full_log_grows_no_further_and_counts_what_it_lacks() {
        let mut log = log(3);
        let room = (log.calls.capacity(), log.moments.capacity());
        for sequence in 1..=5 {
            log.call(sequence, &prepared());
            log.tries();
            log.moved(sequence, 0, true, true);
        }
        assert_eq!((log.calls.capacity(), log.moments.capacity()), room);
        let Recording { calls, dropped } = log.finish();
        assert_eq!((calls.len(), dropped), (3, 2));
        assert!(calls.iter().all(|call| call.steps.len() == 1));
    }

    #[test]
    fn a_step_that_is_still_under_way_is_not_shown_as_done() {
        let mut log = log(4);
        log.call(1, &prepared());
        log.tries();
        log.moved(1, 0, true, false);
        let Recording { calls, dropped } = log.finish();
        assert_eq!((calls[0].steps.len(), dropped), (0, 1));
    }
}
