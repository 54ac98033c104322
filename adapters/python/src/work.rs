//! Calls under way, as Python holds them.

use crate::error;
use crate::interrupt;
use pyo3::prelude::*;
use ringtree::{Error, Result};
use ringtree_foreign::Pending;
use std::time::{Duration, Instant};

/// Between two looks at whether the user has interrupted a thread that waits.
const LOOK: Duration = Duration::from_millis(50);

/// A call under way: `wait()` returns when it has ended, and raises its error.
#[pyclass(frozen, module = "ringtree")]
pub(crate) struct Work(Pending);

impl Work {
    pub(crate) fn new(pending: Pending) -> Self {
        Self(pending)
    }

    /// Waits until `end`, in turns; the interpreter's lock is not held.
    fn wait_until(&self, py: Python<'_>, end: Option<Instant>) -> PyResult<Option<Result<()>>> {
        loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let outcome = py.detach(|| {
                if left.is_none() {
                    self.0.wait_in_operation();
                }
                self.0.wait_at_most(left.unwrap_or(LOOK).min(LOOK))
            });
            if outcome.is_some() || left == Some(Duration::ZERO) {
                return Ok(outcome);
            }
            py.check_signals()?;
        }
    }
}

impl Work {
    /// Waits for the end, and raises the call's error.
    pub(crate) fn finish(&self, py: Python<'_>) -> PyResult<()> {
        self.wait(py, None)
    }
}

#[pymethods]
impl Work {
    /// Waits for the call to end; its buffers can be used again then.
    ///
    /// `timeout`, in seconds, is how long this waits: the call itself goes on after it.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let end = match timeout {
            Some(seconds) => Some(Instant::now() + duration(seconds)?),
            None => None,
        };
        let outcome = self.wait_until(py, end)?;
        interrupt::raise()?;
        let late = || {
            let seconds = timeout.unwrap_or_default();
            Error::deadline(format!(
                "the call has not ended within {seconds} s; it goes on"
            ))
        };
        outcome
            .unwrap_or_else(|| Err(late()))
            .map_err(|error| error::raised(py, &error))
    }

    /// Whether the call has ended, well or not.
    fn done(&self, py: Python<'_>) -> bool {
        py.detach(|| self.0.has_ended())
    }
}

/// Seconds as Python gives them.
pub(crate) fn duration(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|error| {
        pyo3::exceptions::PyValueError::new_err(format!("{seconds} s is no time to wait: {error}"))
    })
}
