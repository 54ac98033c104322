//! Where the time of a step went.

use std::time::Duration;

/// One bucket's part of a step. Moments are on this rank's clock, [`Communicator::clock`].
///
/// [`Communicator::clock`]: crate::Communicator::clock
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BucketStatistics {
    /// Bytes of the gradients.
    pub bytes: usize,
    /// How many parameters' gradients these are.
    pub parameters: usize,
    /// Backward time that went into it: from when the bucket before it was full (or backward
    /// began) until it was full itself.
    pub backward: Duration,
    /// When its communication began.
    pub launched_at: Duration,
    /// When its communication had ended.
    pub ended_at: Duration,
    /// How long the trainer waited for it with nothing else to do: communication that backward
    /// did not hide.
    pub exposed: Duration,
}

impl BucketStatistics {
    /// How long its communication took, hidden or not.
    #[must_use]
    pub fn communication(&self) -> Duration {
        self.ended_at.saturating_sub(self.launched_at)
    }
}
