//! Defines the `Work` class, which represents a call in flight.

use crate::end::Sender;
use crate::error;
use crate::fork::Home;
use crate::interrupt::{self, LOOK};
use crate::queue::Queue;
use crate::timeout::duration;
use pyo3::prelude::*;
use ringtree::{Error, ErrorKind, Result};
use ringtree_foreign::Pending;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// A call in flight. `wait()` returns once the call has completed, and raises its error if it
/// failed.
#[pyclass(frozen, module = "ringtree")]
pub(crate) struct Work {
    pending: Arc<Pending>,
    /// The queue that contains the call. Empty if ringtree's own threads run the call.
    queue: Weak<Queue>,
    /// The sender, if the call is a receive from any rank.
    sender: Option<Sender>,
    home: Home,
}

impl Work {
    pub(crate) fn new(pending: Arc<Pending>) -> Self {
        Self {
            pending,
            queue: Weak::new(),
            sender: None,
            home: Home::here(),
        }
    }

    /// Returns this work, which stores the sender of its message in `sender`.
    pub(crate) fn received_from(mut self, sender: Option<Sender>) -> Self {
        self.sender = sender;
        self
    }

    pub(crate) fn queued(pending: Arc<Pending>, queue: &Arc<Queue>) -> Self {
        let mut work = Self::new(pending);
        work.queue = Arc::downgrade(queue);
        work
    }

    /// Waits until the call has completed or `end` has passed, and checks for signals in the
    /// meantime. Does not hold the interpreter's lock while it waits. Returns `None` if `end` has
    /// passed.
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
                // If a wait without a timeout is interrupted, the communicator fails, as it does if
                // a blocking call is interrupted. If the wait has a timeout, the call stays in
                // flight.
                if left.is_none() {
                    // Another thread may close the communicator in the meantime. This thread is
                    // then the last owner of the queue and leaves the group, which means waiting
                    // for other ranks.
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
    /// Waits until the call has completed, and raises its error if it failed.
    pub(crate) fn finish(&self, py: Python<'_>) -> PyResult<()> {
        self.wait(py, None)
    }
}

#[pymethods]
impl Work {
    /// Wait until the call has completed. Raise its error if it failed. After this, the call's
    /// buffers can be used again.
    ///
    /// `timeout` limits how long to wait, in seconds. If it expires, DeadlineError is raised and
    /// the call remains in flight.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        self.home.check(py)?;
        interrupt::raise()?;
        let timeout = timeout.map(|seconds| duration(py, seconds)).transpose()?;
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let outcome = self.wait_until(py, end)?;
        interrupt::raise()?;
        let late = || {
            let seconds = timeout.unwrap_or_default().as_secs_f64();
            Error::new(
                ErrorKind::Deadline,
                format!("the call did not complete within {seconds} s and is still in flight"),
            )
        };
        outcome
            .unwrap_or_else(|| Err(late()))
            .map_err(|error| error::raised(py, &error))
    }

    /// Return True if the call has succeeded or failed, or False if it is still in flight. After
    /// True is returned, `wait` does not block.
    fn is_finished(&self, py: Python<'_>) -> PyResult<bool> {
        self.done(py)
    }

    /// The rank that sent the message of a `start_recv_any` for which `wait` has returned. None
    /// for all other calls, and until `wait` has returned.
    #[getter]
    fn source(&self) -> Option<usize> {
        self.sender.as_ref()?.get().copied()
    }

    /// Same as `is_finished`.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        self.home.check(py)?;
        Ok(py.detach(|| self.pending.is_finished()))
    }
}

impl Drop for Work {
    /// Lets the call complete in the background. Dropping the operation takes one of ringtree's
    /// locks. Another thread may hold that lock while it waits for the interpreter's lock, so this
    /// thread must not hold the interpreter's lock. In a forked child, the other thread does not
    /// exist, so nothing is dropped.
    fn drop(&mut self) {
        if !self.home.is_here() {
            std::mem::forget(Arc::clone(&self.pending));
        } else if let Some(operation) = self.pending.take_operation() {
            interrupt::drop_detached(operation);
        }
    }
}
