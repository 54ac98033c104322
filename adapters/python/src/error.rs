//! Converts ringtree's errors to Python exceptions.

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use ringtree::{Error, ErrorKind};
use std::fmt::Display;

/// Creates the exception for an error. The class depends on the kind of error: see
/// `ringtree/errors.py`.
pub(crate) fn raised(py: Python<'_>, error: &Error) -> PyErr {
    exception(py, error).unwrap_or_else(|instead| instead)
}

/// Creates a `UsageError`.
pub(crate) fn usage(py: Python<'_>, line: impl Display) -> PyErr {
    raised(py, &Error::new(ErrorKind::Usage, line.to_string()))
}

/// Creates a `BufferUsageError` for a buffer that a call cannot use. This exception is also a
/// `TypeError` and a `BufferError`.
pub(crate) fn unsuitable(py: Python<'_>, line: impl Display) -> PyErr {
    let made = of_class(py, "BufferUsageError", &line.to_string());
    made.map_or_else(|instead| instead, PyErr::from_value)
}

/// Creates a `BufferUsageError` for an object whose memory is not accessible because of `error`.
pub(crate) fn bufferless(object: &Bound<'_, PyAny>, error: &PyErr) -> PyErr {
    let py = object.py();
    let module = py.import("ringtree.errors");
    let made = module.and_then(|all| all.call_method1("_bufferless", (object, error.value(py))));
    made.map_or_else(|instead| instead, PyErr::from_value)
}

/// Returns `true` if `error` is a `ringtree.Error`, and `false` for other exceptions, such as
/// `KeyboardInterrupt`.
pub(crate) fn is_own(py: Python<'_>, error: &PyErr) -> bool {
    let class = py
        .import("ringtree.errors")
        .and_then(|all| all.getattr("Error"));
    class.is_ok_and(|class| error.is_instance(py, &class))
}

fn of_class<'py>(py: Python<'py>, name: &str, line: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import("ringtree.errors")?.getattr(name)?.call1((line,))
}

fn exception(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let exception = of_class(py, class_of(error.kind()), &error.to_string())?;
    let operation = error.collective().map(|one| one.name());
    let missing = PyTuple::new(py, error.missing())?;
    exception.setattr("rank", error.rank())?;
    exception.setattr("peer", error.peer())?;
    exception.setattr("operation", operation)?;
    exception.setattr("sequence", error.sequence())?;
    exception.setattr("missing", missing)?;
    exception.setattr("missing_count", error.missing_count())?;
    exception.setattr("elapsed", error.elapsed().map(|time| time.as_secs_f64()))?;
    Ok(PyErr::from_value(exception))
}

fn class_of(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Usage => "UsageError",
        ErrorKind::Configuration => "ConfigurationError",
        ErrorKind::Join => "JoinError",
        ErrorKind::Mismatch => "MismatchError",
        ErrorKind::PeerLost => "PeerLostError",
        ErrorKind::Deadline => "DeadlineError",
        ErrorKind::Protocol => "ProtocolError",
        _ => "Error",
    }
}
