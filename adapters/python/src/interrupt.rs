//! Handles Ctrl-C while a call is waiting.
//!
//! Python records a signal and runs its handler when the main thread checks for signals. While the
//! main thread is waiting in a call, ringtree checks for signals through [`is_interrupted`]. If the
//! handler raises an exception, this module stores the exception until the call has completed. If
//! no call follows, because the program only released an object, the main thread raises the
//! exception between two of its instructions.

use crate::sys::{Raise, raise_soon};
use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Interval at which a waiting thread checks for an interrupt.
pub(crate) const LOOK: Duration = Duration::from_millis(50);

/// The exception that a signal handler raised during a call.
static RAISED: Mutex<Option<PyErr>> = Mutex::new(None);
/// `true` if `RAISED` has an exception. Successful calls check this instead of locking `RAISED`.
static IS_RAISED: AtomicBool = AtomicBool::new(false);

/// Checks for signals. Returns `true` if a handler has raised an exception in this thread.
pub(crate) fn is_interrupted() -> bool {
    // Only the main thread of a process runs Python's signal handlers.
    if rustix::thread::gettid() != rustix::process::getpid() {
        return false;
    }
    let checked = Python::try_attach(|py| py.check_signals());
    match checked {
        Some(Err(error)) => {
            let mut raised = RAISED.lock().unwrap_or_else(PoisonError::into_inner);
            let before = raised.replace(error);
            drop(raised);
            // Drop the exception without holding the lock, because finalizers of its objects may
            // make calls.
            drop(before);
            IS_RAISED.store(true, Ordering::Release);
            true
        }
        // Without an interpreter, no signal can be detected.
        Some(Ok(())) | None => false,
    }
}

/// Raises the exception, if any, that a signal handler raised during a call of the main thread.
///
/// # Errors
/// Returns that exception.
pub(crate) fn raise() -> PyResult<()> {
    if !IS_RAISED.load(Ordering::Acquire) || rustix::thread::gettid() != rustix::process::getpid() {
        return Ok(());
    }
    IS_RAISED.store(false, Ordering::Release);
    match RAISED.lock().unwrap_or_else(PoisonError::into_inner).take() {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// A source that supplies the exception in `RAISED`.
struct Interrupt;

impl Raise for Interrupt {
    fn raise() -> PyResult<()> {
        raise()
    }
}

/// Drops `value` without holding the interpreter's lock. Dropping it may involve waiting for other
/// ranks. If a signal handler raises an exception in the meantime, the exception is raised soon
/// after, because an object's destructor cannot raise it.
pub(crate) fn drop_detached<T: Send>(value: T) {
    // Without an interpreter, this drops the closure and, with it, the value.
    let _ = Python::try_attach(|py| {
        // An exception may be what releases the object. Signal handlers must not run while it is
        // set.
        let passing = PyErr::take(py);
        py.detach(|| drop(value));
        if IS_RAISED.load(Ordering::Acquire) {
            // If this fails, the next call raises the exception.
            raise_soon::<Interrupt>();
        }
        if let Some(passing) = passing {
            passing.restore(py);
        }
    });
}
