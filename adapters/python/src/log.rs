//! Passes ringtree's events to Python's `logging`.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use ringtree::internal::events::set_receiver;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Maximum time that an exiting program waits for its logger.
const STOP_MAX: Duration = Duration::from_secs(5);

/// Number of events that threads are passing to the logger. A thread increments it before it reads
/// `IS_STOPPED`.
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);
/// `true` if the interpreter is about to exit.
static IS_STOPPED: AtomicBool = AtomicBool::new(false);

/// Forgets the threads of the parent process, in a newly forked child.
pub(crate) fn forked() {
    UNDER_WAY.store(0, Ordering::SeqCst);
}

/// Passes all events from now on to the logger `ringtree`. If neither that logger nor its parents
/// have a handler, the library prints the events itself, as `RINGTREE_LOG` specifies.
pub(crate) fn forward() {
    set_receiver(Some(Arc::new(|level, rank, text| {
        let _under_way = UnderWay::new();
        if IS_STOPPED.load(Ordering::SeqCst) {
            return false;
        }
        let log = |py: Python<'_>| {
            log(py, level, rank, text).unwrap_or_else(|error| {
                error.write_unraisable(py, None);
                false
            })
        };
        // Without an interpreter, there is no logger.
        Python::try_attach(log).unwrap_or(false)
    })));
}

/// Stop passing events to `logging`, and wait until no thread is passing one. Internal to the
/// package.
#[pyfunction]
pub(crate) fn stop_log(py: Python<'_>) {
    // An exiting interpreter ends threads that wait for its lock in Python code, and this would
    // abort the program.
    IS_STOPPED.store(true, Ordering::SeqCst);
    py.detach(|| {
        let end = Instant::now() + STOP_MAX;
        while UNDER_WAY.load(Ordering::SeqCst) > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

/// Counts an event that is being passed, as long as it exists.
struct UnderWay;

impl UnderWay {
    fn new() -> Self {
        UNDER_WAY.fetch_add(1, Ordering::SeqCst);
        Self
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        UNDER_WAY.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Returns `true` if the logger has a handler, which then has received the event.
fn log(py: Python<'_>, level: &str, rank: Option<usize>, text: &str) -> PyResult<bool> {
    let logging = py.import("logging")?;
    let logger = logging.call_method1("getLogger", ("ringtree",))?;
    if !logger.call_method0("hasHandlers")?.is_truthy()? {
        return Ok(false);
    }
    let level = match level {
        "error" => "ERROR",
        "warn" => "WARNING",
        "info" => "INFO",
        _ => "DEBUG",
    };
    let extra = PyDict::new(py);
    // A program may set the attribute `rank` of all records itself.
    extra.set_item("ringtree_rank", rank)?;
    let options = PyDict::new(py);
    options.set_item("extra", extra)?;
    let arguments = (logging.getattr(level)?, "%s", text);
    logger.call_method("log", arguments, Some(&options))?;
    Ok(true)
}
