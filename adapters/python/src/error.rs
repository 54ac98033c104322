//! The library's errors as Python's.

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use ringtree::{Error, ErrorKind};

/// The exception for an error: the class of its kind, which `ringtree/errors.py` has.
pub(crate) fn raised(py: Python<'_>, error: &Error) -> PyErr {
    exception(py, error).unwrap_or_else(|instead| instead)
}

fn exception(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let class = py
        .import("ringtree.errors")?
        .getattr(class_of(error.kind()))?;
    let exception = class.call1((error.to_string(),))?;
    let operation = error.collective().map(|one| one.name());
    let missing = PyTuple::new(py, error.missing())?;
    exception.setattr("rank", error.rank())?;
    exception.setattr("peer", error.peer())?;
    exception.setattr("operation", operation)?;
    exception.setattr("sequence", error.sequence())?;
    exception.setattr("missing", missing)?;
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
