//! Calls under way, as Python holds them.

use crate::error;
use crate::interrupt;
use pyo3::prelude::*;
use ringtree::{Error, Failed, Result};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Between two looks at whether the user has interrupted a thread that waits.
const LOOK: Duration = Duration::from_millis(50);
/// Between two looks at an operation whose waiter has a time of its own.
const PAUSE: Duration = Duration::from_micros(200);

/// A call that the library's own threads carry out.
pub(crate) trait Operation: Send {
    fn has_ended(&self) -> bool;
    fn wait(self: Box<Self>) -> Result<()>;
}

impl<B: Send + 'static> Operation for ringtree::Work<B> {
    fn has_ended(&self) -> bool {
        ringtree::Work::has_ended(self)
    }

    fn wait(self: Box<Self>) -> Result<()> {
        (*self)
            .wait()
            .map(drop)
            .map_err(|failed: Failed<B>| failed.error)
    }
}

/// How a call ended, for everybody who wants to know.
#[derive(Default)]
pub(crate) struct Outcome {
    end: Mutex<Option<Result<()>>>,
    ended: Condvar,
}

impl Outcome {
    pub(crate) fn set(&self, end: Result<()>) {
        *self.lock() = Some(end);
        self.ended.notify_all();
    }

    pub(crate) fn get(&self) -> Option<Result<()>> {
        self.lock().clone()
    }

    /// Waits for the end, `at_most` so long.
    pub(crate) fn wait(&self, at_most: Duration) -> Option<Result<()>> {
        let is_missing = |end: &mut Option<Result<()>>| end.is_none();
        let waited = self
            .ended
            .wait_timeout_while(self.lock(), at_most, is_missing);
        let (end, _) = waited.unwrap_or_else(PoisonError::into_inner);
        end.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Result<()>>> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call under way: `wait()` returns when it has ended, and raises its error.
#[pyclass(frozen, module = "ringtree")]
pub(crate) struct Work {
    outcome: Arc<Outcome>,
    /// None once a thread waits in it, or where another thread sets the outcome.
    operation: Mutex<Option<Box<dyn Operation>>>,
}

impl Work {
    /// A call whose end another thread sets.
    pub(crate) fn of_outcome(outcome: Arc<Outcome>) -> Self {
        Self {
            outcome,
            operation: Mutex::new(None),
        }
    }

    /// A call that the library carries out.
    pub(crate) fn of_operation(operation: Box<dyn Operation>) -> Self {
        Self {
            outcome: Arc::default(),
            operation: Mutex::new(Some(operation)),
        }
    }

    fn operation(&self) -> MutexGuard<'_, Option<Box<dyn Operation>>> {
        self.operation
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn has_ended(&self) -> bool {
        let operation = self.operation();
        match &*operation {
            Some(operation) => operation.has_ended(),
            None => self.outcome.get().is_some(),
        }
    }

    /// Waits in the operation itself, if no other thread does.
    fn wait_in_operation(&self) -> bool {
        let taken = self.operation().take();
        let is_mine = taken.is_some();
        if let Some(operation) = taken {
            self.outcome.set(operation.wait());
        }
        is_mine
    }

    /// Waits until `end`, in turns; the interpreter's lock is not held.
    fn wait_until(&self, py: Python<'_>, end: Option<Instant>) -> PyResult<Option<Result<()>>> {
        loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let outcome = py.detach(|| {
                if left.is_none() {
                    self.wait_in_operation();
                } else if self.operation().is_some() {
                    match self.has_ended() {
                        true => drop(self.wait_in_operation()),
                        false => std::thread::sleep(PAUSE),
                    }
                    return self.outcome.get();
                }
                self.outcome.wait(left.unwrap_or(LOOK).min(LOOK))
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
        py.detach(|| self.has_ended())
    }
}

/// Seconds as Python gives them.
pub(crate) fn duration(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|error| {
        pyo3::exceptions::PyValueError::new_err(format!("{seconds} s is no time to wait: {error}"))
    })
}
