//! Detects forked children. A forked child does not have its parent's threads, so no call would
//! complete.

use crate::error::usage;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicU32, Ordering};

/// Number of forks between the first process of the program and this process.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The process that created an object.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Home(u32);

impl Home {
    /// Returns this process.
    pub(crate) fn here() -> Self {
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Returns `true` in the process that created the object and `false` in its forked children.
    pub(crate) fn is_here(self) -> bool {
        self == Self::here()
    }

    /// Checks that this process created the object.
    ///
    /// # Errors
    /// Returns a `UsageError` in a forked child.
    pub(crate) fn check(self, py: Python<'_>) -> PyResult<()> {
        match self.is_here() {
            true => Ok(()),
            false => Err(usage(
                py,
                "a forked child cannot use its parent's communicator; start the child with \
                 'spawn', or create a new communicator in it",
            )),
        }
    }
}

/// Record that this process is a newly forked child. Internal to the package.
#[pyfunction]
pub(crate) fn forked() {
    crate::log::forked();
    FORKS.fetch_add(1, Ordering::Relaxed);
}
