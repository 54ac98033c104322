//! Handles Ctrl-C while a call is waiting.
//!
//! Python records a signal and runs its handler when the main thread checks for signals. While the
//! main thread is waiting in a call, ringtree checks for signals through [`is_interrupted`]. If the
//! handler raises an exception, this module stores the exception until the call has completed.

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

/// Raises the exception that a signal handler raised during a call of the main thread, if any.
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
