//! Guards a runtime against calls from forked children.
//!
//! In a forked child, the control thread does not exist, another thread of the parent may have left
//! the engine locked, and the links write to memory and connections of the parent. So a child can
//! use only runtimes that it has created itself. Every call on a communicator begins here, before
//! it takes any lock.

use super::Runtime;
use super::host::Host;
use crate::error::{Error, Result};
use crate::sys::generation::Generation;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A handle to a runtime. Only the process that created the runtime can use it.
#[derive(Clone)]
pub(crate) struct RuntimeHandle {
    runtime: Arc<Runtime>,
    made_in: Generation,
    /// World rank of this process.
    rank: usize,
}

impl RuntimeHandle {
    /// Creates the runtime of world rank `rank`.
    pub(crate) fn new(rank: usize, host: Box<dyn Host>) -> Self {
        Self {
            runtime: Arc::new(Runtime::new(host)),
            made_in: Generation::current(),
            rank,
        }
    }

    /// Returns `true` if this process is a forked child of the process that created the runtime.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        !self.made_in.is_current()
    }

    /// Returns the runtime.
    ///
    /// # Errors
    /// Returns `ErrorKind::Usage` in a forked child.
    #[inline]
    pub(crate) fn get(&self) -> Result<&Runtime> {
        match self.is_forked() {
            false => Ok(&self.runtime),
            true => Err(self.refusal()),
        }
    }

    #[cold]
    fn refusal(&self) -> Error {
        Error::usage(format!(
            "a forked child cannot use the communicator of its parent, rank {}; make the calls in \
             the parent, or execute a new program in the child",
            self.rank
        ))
    }

    /// Returns a reference that does not keep the runtime alive.
    pub(crate) fn downgrade(&self) -> Weak<Runtime> {
        Arc::downgrade(&self.runtime)
    }

    /// Returns the current time on the clock of the [`Host`], even in a forked child.
    pub(crate) fn now(&self) -> Duration {
        self.runtime.now()
    }

    /// Returns `true` if both handles refer to the same runtime.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.runtime, &other.runtime)
    }
}
