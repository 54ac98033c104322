//! Ctrl-C while a call waits.
//!
//! Python notes a signal and acts on it when its main thread asks. While that thread waits in a
//! call, the library asks here; what the signal's handler raises is kept until the call has ended.

use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Between two looks at whether the user has interrupted a thread that waits.
pub(crate) const LOOK: Duration = Duration::from_millis(50);

static RAISED: Mutex<Option<PyErr>> = Mutex::new(None);
/// Whether there is one: what a call asks that has ended well.
static IS_RAISED: AtomicBool = AtomicBool::new(false);

/// Whether a signal's handler has raised something in this thread.
pub(crate) fn is_interrupted() -> bool {
    // Only the main thread of a process carries out Python's handlers.
    if rustix::thread::gettid() != rustix::process::getpid() {
        return false;
    }
    let checked = Python::try_attach(|py| py.check_signals());
    match checked {
        Some(Err(error)) => {
            let mut raised = RAISED.lock().unwrap_or_else(PoisonError::into_inner);
            let before = raised.replace(error);
            drop(raised);
            // What it refers to may have a finalizer, which may make a call.
            drop(before);
            IS_RAISED.store(true, Ordering::Release);
            true
        }
        // Without an interpreter no signal can be seen.
        Some(Ok(())) | None => false,
    }
}

/// After a call of the main thread: raises what its handler has raised meanwhile.
///
/// # Errors
/// What was raised.
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
