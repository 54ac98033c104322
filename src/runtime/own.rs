//! A runtime as the process that made it has it, and no forked child.
//!
//! In a forked child the control thread is missing, another thread may have locked the engine for
//! ever, and what the links write is the parent's. So a child reaches no runtime but one that it
//! has made itself: whatever a communicator does begins here, before anything is locked.

use super::Runtime;
use super::host::Host;
use crate::error::{Error, Result};
use crate::sys::generation::Generation;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A runtime for the process that made it.
#[derive(Clone)]
pub(crate) struct OwnRuntime {
    runtime: Arc<Runtime>,
    made_in: Generation,
    /// Of the world.
    rank: usize,
}

impl OwnRuntime {
    /// The runtime of this rank of the world.
    pub(crate) fn new(rank: usize, host: Box<dyn Host>) -> Self {
        Self {
            runtime: Arc::new(Runtime::new(host)),
            made_in: Generation::current(),
            rank,
        }
    }

    /// Whether this process is a child that was forked from the one that made it.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        !self.made_in.is_current()
    }

    /// # Errors
    /// [`Error::usage`] in a forked child.
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
            "this process was forked from rank {} after it had joined; a forked child makes no \
             calls: make them in the rank itself, or let the child start a program of its own",
            self.rank
        ))
    }

    /// For what must not keep it.
    pub(crate) fn downgrade(&self) -> Weak<Runtime> {
        Arc::downgrade(&self.runtime)
    }

    /// The time on this host's clock, which a child has, too.
    pub(crate) fn now(&self) -> Duration {
        self.runtime.now()
    }

    /// Whether both are one.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.runtime, &other.runtime)
    }
}
