//! Calls user code while operations are in flight: wakes tasks, drops the buffers of abandoned
//! operations, and asks whether the user has interrupted a thread. No other module of `runtime`
//! calls user code. Loggers get events from a thread of their [queue](crate::event::EventQueue).
//!
//! User code may do anything: call the library again, wait for another thread, or run for a long
//! time. So user code runs only on a thread that holds neither the engine's lock nor the polling
//! token. User code that becomes due while a thread holds the lock runs on a thread that no call
//! waits for.

use super::Runtime;
use crate::engine::group::Memory;
use crate::sys::generation::Generation;
use std::cell::Cell;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

thread_local! {
    /// Number of engine locks, polling tokens and guards that this thread holds.
    static HELD: Cell<u32> = const { Cell::new(0) };
    /// `true` if this thread has deferred user code to a later unlock.
    static IS_DEFERRED: Cell<bool> = const { Cell::new(false) };
}

/// Records that this thread has acquired an engine's lock, a token or a guard.
#[inline]
pub(super) fn hold() {
    HELD.set(HELD.get() + 1);
}

/// Records that this thread has released an engine's lock, a token or a guard.
#[inline]
pub(super) fn release() {
    HELD.set(HELD.get() - 1);
}

/// Returns `true` if this thread holds exactly one lock, token or guard.
#[inline]
pub(super) fn holds_one() -> bool {
    HELD.get() == 1
}

/// Defers user code to a later unlock by this thread.
pub(super) fn defer() {
    IS_DEFERRED.set(true);
}

/// Calls user code. Returns `None` if the code panicked, in which case the panic hook has run. The
/// panic must not unwind this thread, which may belong to the library or may be waiting in a call
/// whose memory the engine owns. If the code has forked a child and the child returns here, aborts
/// the child, because the call belongs to the parent and returns no memory to the child.
pub(super) fn call<R>(code: impl FnOnce() -> R) -> Option<R> {
    debug_assert_eq!(HELD.get(), 0, "code of the program may call the library");
    let process = Generation::current();
    let outcome = catch_unwind(AssertUnwindSafe(code)).ok();
    if !process.is_current() {
        let why = "a child that was forked in a callback cannot return to its parent's call";
        // Ignore a failure to write, so that the child is aborted even if standard error is closed.
        let _ = writeln!(std::io::stderr(), "ringtree: {why}; aborting");
        std::process::abort();
    }
    outcome
}

/// User code that runs when this value is dropped.
pub(crate) struct Foreign {
    pub(super) wakers: Vec<Waker>,
    pub(super) released_memory: Vec<Memory>,
}

impl Drop for Foreign {
    fn drop(&mut self) {
        for waker in self.wakers.drain(..) {
            call(|| waker.wake());
        }
        for memory in self.released_memory.drain(..) {
            call(|| drop(memory));
        }
    }
}

/// A guard that keeps its thread from running user code as long as the guard exists. User code that
/// becomes due in the meantime runs when the guard is dropped.
pub(crate) struct UserCodeGuard<'a>(pub(super) &'a Runtime);

impl Drop for UserCodeGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        release();
        if IS_DEFERRED.replace(false) {
            drop(self.0.lock_while_polled());
        }
    }
}
