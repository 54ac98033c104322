//! Distinguishes the process that created a value from its forked children.
//!
//! A forked child has a copy of its parent's memory and a single thread. It must not touch values
//! that the parent shares with other processes, or that another thread of the parent may have
//! locked. So code that creates such a value stores its [`Generation`] with the value and checks it
//! before each use.
//!
//! A handler that the C library's `fork` runs counts the generations. A process that was created
//! without this handler, by a bare `clone`, cannot be distinguished from its parent.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Number of forks that lead from the process that began to count to this process.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// Identifies a process and distinguishes it from its ancestors by the number of forks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Generation(u64);

impl Generation {
    /// Returns the generation of this process.
    #[must_use]
    pub(crate) fn current() -> Self {
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Returns `true` if this is the process that stored the generation, and not one of its forked
    /// children.
    #[must_use]
    #[inline]
    pub(crate) fn is_current(self) -> bool {
        self == Self::current()
    }
}

/// Ensures that children that are forked from now on have a different generation from their parent.
///
/// # Errors
/// Returns the operating system's error if there is not enough memory.
pub(crate) fn count_forks() -> io::Result<()> {
    static IS_COUNTED: AtomicBool = AtomicBool::new(false);
    // Miri has no processes. If two threads register the handler at the same time, each fork is
    // counted twice, which is harmless.
    if cfg!(miri) || IS_COUNTED.load(Ordering::Relaxed) {
        return Ok(());
    }
    // SAFETY: `in_child` may be called in any forked child: it changes an atomic of static lifetime
    // and does nothing else.
    match unsafe { libc::pthread_atfork(None, None, Some(in_child)) } {
        0 => IS_COUNTED.store(true, Ordering::Relaxed),
        error => return Err(io::Error::from_raw_os_error(error)),
    }
    Ok(())
}

/// Counts the fork. This function runs in every forked child, on its only thread, before `fork`
/// returns.
extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}
