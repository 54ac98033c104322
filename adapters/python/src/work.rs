//! Calls under way, as Python holds them.

use crate::error;
use crate::fork::Home;
use crate::interrupt::{self, LOOK};
use crate::queue::Queue;
use pyo3::prelude::*;
use ringtree::{Error, Result};
use ringtree_foreign::Pending;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// A call under way: `wait()` returns when it has ended, and raises its error.
#[pyclass(frozen, module = "ringtree")]
pub(crate) struct Work {
    pending: Arc<Pending>,
    /// Where it was queued; nowhere if the library carries it out.
    queue: Weak<Queue>,
    home: Home,
}

impl Work {
    pub(crate) fn new(pending: Pending) -> Self {
        Self {
            pending: Arc::new(pending),
            queue: Weak::new(),
            home: Home::here(),
        }
    }

    pub(crate) fn queued(pending: Pending, queue: &Arc<Queue>) -> Self {
        let mut work = Self::new(pending);
        work.queue = Arc::downgrade(queue);
        work
    }

    /// Waits until `end`, in turns; the interpreter's lock is not held.
    fn wait_until(&self, py: Python<'_>, end: Option<Instant>) -> PyResult<Option<Result<()>>> {
        loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let outcome = py.detach(|| {
                if left.is_none() {
                    self.pending.wait_in_operation();
                }
                self.pending.wait_at_most(left.unwrap_or(LOOK).min(LOOK))
            });
            if outcome.is_some() || left == Some(Duration::ZERO) {
                return Ok(outcome);
            }
            py.check_signals().inspect_err(|_| {
                // As in a call that waits by itself. Who gave a time to wait leaves the call to go on.
                if left.is_none() {
                    // Another thread may close the communicator meanwhile. The last owner of the
                    // queue leaves the group, which waits for other ranks.
                    py.detach(|| {
                        if let Some(queue) = self.queue.upgrade() {
                            queue.interrupted();
                        }
                    });
                }
            })?;
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
        self.home.check(py)?;
        let timeout = timeout.map(|seconds| duration(py, seconds)).transpose()?;
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let outcome = self.wait_until(py, end)?;
        interrupt::raise()?;
        let late = || {
            let seconds = timeout.unwrap_or_default().as_secs_f64();
            Error::deadline(format!(
                "the call has not ended within {seconds} s; it goes on"
            ))
        };
        outcome
            .unwrap_or_else(|| Err(late()))
            .map_err(|error| error::raised(py, &error))
    }

    /// Whether the call has ended, well or not.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        self.home.check(py)?;
        Ok(py.detach(|| self.pending.has_ended()))
    }
}

impl Drop for Work {
    /// A call under way ends by itself. The library's lock, which that takes, may be held by a
    /// thread that waits for the interpreter's; in a forked child, by a thread that is not there.
    fn drop(&mut self) {
        if !self.home.is_here() {
            std::mem::forget(Arc::clone(&self.pending));
        } else if let Some(operation) = self.pending.take_operation() {
            // Without an interpreter this drops the operation all the same.
            let _ = Python::try_attach(|py| py.detach(|| drop(operation)));
        }
    }
}

/// Seconds as Python gives them.
pub(crate) fn duration(py: Python<'_>, seconds: f64) -> PyResult<Duration> {
    let refused = |error| error::usage(py, format!("{seconds} s is no time to wait: {error}"));
    Duration::try_from_secs_f64(seconds).map_err(refused)
}
