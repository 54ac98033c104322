//! Which process this is: the one that made something, or a child that was forked from it.
//!
//! A forked child has a copy of its parent's memory and one thread of it. What the parent shares
//! with other processes, and what its other threads had locked, is not the child's to touch. So who
//! makes such things keeps its [`Generation`], and asks it before anything else.
//!
//! A handler that the C library's `fork` runs counts the generations. A process that is made
//! without it, by a bare `clone`, cannot be told from its parent.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How many forks lie between this process and the one that began to count.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// A process, told from those that it was forked from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Generation(u64);

impl Generation {
    /// This process's.
    #[must_use]
    pub(crate) fn current() -> Self {
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Whether this process is the one that had it, and no child of that.
    #[must_use]
    #[inline]
    pub(crate) fn is_current(self) -> bool {
        self == Self::current()
    }
}

/// From now on a forked child has another generation than its parent.
///
/// # Errors
/// The system's: there is no memory for that.
pub(crate) fn count_forks() -> io::Result<()> {
    static IS_COUNTED: AtomicBool = AtomicBool::new(false);
    // Miri has no processes. A handler that two threads register counts twice, which is as good.
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

/// Runs in every forked child, on its only thread, before `fork` returns.
extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}
