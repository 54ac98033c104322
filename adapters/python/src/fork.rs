//! Forked children, in which none of their parent's threads is there, and no call ends.

use crate::error::usage;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicU32, Ordering};

/// Forks between the first process of the program and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The process in which something was made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Home(u32);

impl Home {
    /// This process.
    pub(crate) fn here() -> Self {
        Self(FORKS.load(Ordering::Relaxed))
    }

    pub(crate) fn is_here(self) -> bool {
        self == Self::here()
    }

    /// # Errors
    /// `UsageError`: this process is a child of that one.
    pub(crate) fn check(self, py: Python<'_>) -> PyResult<()> {
        match self.is_here() {
            true => Ok(()),
            false => Err(usage(
                py,
                "this process was forked from the one that joined, whose calls it cannot make: \
                 start it by 'spawn', or let it join ranks of its own",
            )),
        }
    }
}

/// For the package's own modules: this process is a child that has just been forked.
#[pyfunction]
pub(crate) fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}
