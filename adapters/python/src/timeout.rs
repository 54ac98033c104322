//! Converts timeouts between Python's seconds and ringtree's handles.

use crate::error;
use pyo3::prelude::*;
use ringtree::Communicator;
use std::time::Duration;

/// The timeout of calls that have none.
pub(crate) const NO_TIMEOUT: Duration = Duration::MAX;

/// Returns a handle whose calls have this timeout, which may be [`NO_TIMEOUT`].
pub(crate) fn timed(comm: &Communicator, timeout: Duration) -> Communicator {
    match timeout {
        NO_TIMEOUT => comm.without_timeout(),
        _ => comm.with_timeout(timeout),
    }
}

/// Converts seconds from Python.
///
/// # Errors
/// Returns a `UsageError` if the number is negative, not finite or too large.
pub(crate) fn duration(py: Python<'_>, seconds: f64) -> PyResult<Duration> {
    let refused = |error| error::usage(py, format!("{seconds} s is not a valid timeout: {error}"));
    Duration::try_from_secs_f64(seconds).map_err(refused)
}

/// Converts the timeout of a communicator from seconds, which may be infinite.
///
/// # Errors
/// Returns the same errors as [`duration`].
pub(crate) fn timeout_of(py: Python<'_>, seconds: f64) -> PyResult<Duration> {
    match seconds {
        f64::INFINITY => Ok(NO_TIMEOUT),
        _ => duration(py, seconds),
    }
}
