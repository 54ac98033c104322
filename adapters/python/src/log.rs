//! Passes ringtree's events to Python's `logging`.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use ringtree::internal::events::set_receiver;
use std::sync::Arc;

/// Passes all events from now on to the logger `ringtree`. If neither that logger nor its parents
/// have a handler, the library prints the events itself, as `RINGTREE_LOG` specifies.
pub(crate) fn forward() {
    set_receiver(Some(Arc::new(|level, rank, text| {
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
    extra.set_item("rank", rank)?;
    let options = PyDict::new(py);
    options.set_item("extra", extra)?;
    let arguments = (logging.getattr(level)?, "%s", text);
    logger.call_method("log", arguments, Some(&options))?;
    Ok(true)
}
