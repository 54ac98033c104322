//! Defines the timing data for the buckets in a step.

use std::time::Duration;

/// Timing of one bucket in a step. All times are measured on this rank's clock,
/// [`Communicator::clock`].
///
/// [`Communicator::clock`]: crate::Communicator::clock
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BucketStatistics {
    /// Size of the bucket's gradients, in bytes.
    pub bytes: usize,
    /// Number of parameters in the bucket.
    pub parameters: usize,
    /// Duration of the backward pass for this bucket. It is measured from the time at which the
    /// previous bucket became full (or, for the first bucket, the time at which the backward pass
    /// started) until this bucket became full.
    pub backward: Duration,
    /// Time at which the communication began.
    pub launched_at: Duration,
    /// Time at which the communication completed.
    pub ended_at: Duration,
    /// Time that [`DataParallel::wait`](super::DataParallel::wait) spent waiting for this bucket.
    /// This is the part of the communication that the backward pass did not hide.
    pub exposed: Duration,
}
