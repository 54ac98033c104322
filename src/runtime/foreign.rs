//! The one place where the library calls code that is not its own while operations are under way:
//! it wakes tasks, drops buffers whose operations were abandoned, and asks whether the user has
//! interrupted a thread.
//!
//! Such code may do anything: call the library again, wait for another thread, take long. So it
//! runs on a thread that holds neither the engine's lock nor the polling token, and what falls due
//! under the lock runs on a thread that nobody waits for.

use super::Runtime;
use crate::engine::group::Memory;
use crate::sys::generation::Generation;
use std::cell::Cell;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

thread_local! {
    /// Locked engines and tokens that this thread holds.
    static HELD: Cell<u32> = const { Cell::new(0) };
    /// Whether this thread has left something to be run to a later unlock.
    static IS_DEFERRED: Cell<bool> = const { Cell::new(false) };
}

/// This thread takes an engine's lock or a token.
#[inline]
pub(super) fn hold() {
    HELD.set(HELD.get() + 1);
}

/// This thread gives one of them back.
#[inline]
pub(super) fn release() {
    HELD.set(HELD.get() - 1);
}

/// Whether this thread holds just one of them.
#[inline]
pub(super) fn holds_one() -> bool {
    HELD.get() == 1
}

/// Something is left to be run at a later unlock by this thread.
pub(super) fn defer() {
    IS_DEFERRED.set(true);
}

/// Calls code of the program; `None` if it panicked, which is told by then. The thread may be the
/// library's own, or wait in a call whose memory the engine has: a panic must not unwind it. A
/// child that the code has forked ends here, for the call is its parent's and gives it no memory
/// back.
pub(super) fn call<R>(code: impl FnOnce() -> R) -> Option<R> {
    debug_assert_eq!(HELD.get(), 0, "this code may call the library again");
    let process = Generation::current();
    let outcome = catch_unwind(AssertUnwindSafe(code)).ok();
    if !process.is_current() {
        let why = "a child that was forked while its parent's call waits cannot return into it";
        // It ends without standard error as well.
        let _ = writeln!(std::io::stderr(), "ringtree: {why}; aborting");
        std::process::abort();
    }
    outcome
}

/// Code of the program, which runs when this is dropped.
pub(crate) struct Foreign {
    pub(super) wakers: Vec<Waker>,
    pub(super) let_go: Vec<Memory>,
}

impl Drop for Foreign {
    fn drop(&mut self) {
        for waker in self.wakers.drain(..) {
            call(|| waker.wake());
        }
        for memory in self.let_go.drain(..) {
            call(|| drop(memory));
        }
    }
}

/// While it is there, its thread runs no code of the program; what falls due meanwhile runs when it
/// is dropped.
pub(crate) struct Quiet<'a>(pub(super) &'a Runtime);

impl Drop for Quiet<'_> {
    #[inline]
    fn drop(&mut self) {
        release();
        if IS_DEFERRED.replace(false) {
            drop(self.0.lock_beside_poller());
        }
    }
}
