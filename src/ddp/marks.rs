//! Records the last step that each rank has completed, and agrees on a step after a failure.

use crate::comm::Communicator;
use std::time::Duration;

/// Records that this rank has completed all steps up to `number`.
///
/// A rank sets its mark before it issues the *commit* call of a step. After the commit, the rank
/// relies on every rank having completed the step. The commit must therefore be a call that does
/// not complete on any rank before every rank has started it. A barrier has this property, and so
/// does an all-reduce of at least one element.
///
/// Marks start at 0 and never decrease. This function does not communicate. After a failure, it has
/// no effect, and the commit returns the error.
///
/// See [`agreed_mark`] for an example.
pub fn mark(comm: &Communicator, number: u64) {
    comm.mark(number);
}

/// Returns the mark that the surviving ranks agree on after a failure. This is the lowest of
/// their marks.
///
/// A step is committed if and only if every surviving rank had [marked](mark) it, even if the
/// step's commit call failed. A step whose commit call completed on any rank is always committed.
///
/// Returns `None` in the following cases:
///
/// - No answer has arrived within `at_most`. An answer takes one round trip to the lowest rank
///   that has not left, or about a second longer if a rank does not respond.
/// - Nothing has failed, or a rank that may have answered other ranks has died. In both cases, the
///   function returns immediately.
///
/// Even without an answer, a rank whose commit call completed knows that the step is committed.
/// A rank whose commit call did not complete cannot know whether the step is committed. Other
/// ranks may have received an answer, which may be either yes or no.
///
/// If the result is *above* this rank's mark, the other ranks have given up on this rank because it
/// did not respond in time. They treat a step that this rank has not completed as committed, so the
/// state of this rank is no longer usable.
///
/// ```
/// use ringtree::internal::ddp::{agreed_mark, mark};
/// use ringtree::{ReduceOp, sim::World};
/// use std::time::Duration;
///
/// let mut world = World::new(4);
/// world.network.faults.deaths = vec![(2, Duration::from_millis(1))];
/// let agreed = world.run(|comm| {
///     let mut step = 0;
///     let failed = loop {
///         let step_ends = comm.all_reduce(&mut [1.0f32; 100], ReduceOp::Sum).and_then(|()| {
///             mark(comm, step + 1);
///             comm.barrier() // the commit
///         });
///         match step_ends {
///             Ok(()) => step += 1, // update the weights
///             Err(error) => break error,
///         }
///     };
///     assert!(failed.to_string().contains("rank 2 is gone"));
///     // Whether step + 1 counts as well:
///     agreed_mark(comm, Duration::from_secs(5))
/// });
/// assert!(agreed[0].is_some());
/// assert!(agreed[1] == agreed[0] && agreed[3] == agreed[0]);
/// ```
#[must_use]
pub fn agreed_mark(comm: &Communicator, at_most: Duration) -> Option<u64> {
    comm.agreed_mark(at_most)
}
