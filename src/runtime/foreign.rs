//! The locked engine, and the one place where the library calls code that is not its own while
//! operations are under way: it wakes tasks, drops buffers whose operations were abandoned, and
//! asks whether the user has interrupted a thread.
//!
//! Such code may do anything: call the library again, wait for another thread, take long. So it
//! runs on a thread that holds neither the engine's lock nor the polling token, and what falls due
//! under the lock on a thread that nobody waits for ([`Host::run_apart`]). It is handed on when the
//! lock is given back, or the token, if the thread holds that too, because a host without such a
//! thread runs it where it falls due.

use super::Runtime;
use super::host::Host;
use crate::engine::group::Memory;
use crate::engine::{Engine, Ticket};
use crate::sys::generation::Generation;
use std::cell::Cell;
use std::io::Write;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

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

/// The engine, and the tasks that wait for its operations without blocking a thread.
#[derive(Default)]
pub(super) struct Watched {
    engine: Engine,
    /// Operations under way that a task waits for.
    wakers: Vec<(Ticket, Waker)>,
    /// Whether operations were left to end by themselves.
    has_abandoned: bool,
}

impl Watched {
    /// Whether foreign code is to be run.
    #[inline]
    fn is_due(&mut self) -> bool {
        if self.wakers.is_empty() && !self.has_abandoned {
            return false;
        }
        let engine = &mut self.engine;
        engine.has_let_go() || self.wakers.iter().any(|one| engine.ended(one.0).0)
    }

    /// The wakers of the operations that have ended, and the memory of those that were abandoned.
    fn take_due(&mut self) -> Foreign {
        let engine = &mut self.engine;
        let let_go = engine.let_go();
        self.has_abandoned = engine.has_abandoned();
        let has_ended = |one: &mut (Ticket, Waker)| engine.ended(one.0).0;
        let due = self.wakers.extract_if(.., has_ended);
        Foreign {
            wakers: due.map(|(_, waker)| waker).collect(),
            let_go,
        }
    }
}

/// The locked engine.
pub(super) struct Locked<'a>(Option<MutexGuard<'a, Watched>>, &'a dyn Host);

impl<'a> Locked<'a> {
    #[inline]
    pub(super) fn new(watched: MutexGuard<'a, Watched>, host: &'a dyn Host) -> Self {
        hold();
        Self(Some(watched), host)
    }

    #[inline]
    fn watched(&mut self) -> &mut Watched {
        self.0.as_mut().expect("invariant: locked until dropped")
    }

    /// Whether foreign code is to be run, for which this thread has to give back the token.
    #[inline]
    pub(super) fn is_due(&mut self) -> bool {
        self.watched().is_due()
    }

    /// An operation was left to end by itself.
    pub(super) fn abandoned(&mut self) {
        self.watched().has_abandoned = true;
    }

    /// Unlocks the engine and sleeps until `changed` is signalled, or for `at_most`; then locks it.
    pub(super) fn wait(&mut self, changed: &Condvar, at_most: Duration) {
        if let Some(watched) = self.0.take() {
            let woken = changed.wait_timeout(watched, at_most);
            self.0 = Some(woken.unwrap_or_else(PoisonError::into_inner).0);
        }
    }

    /// From now on `waker` is woken when the operation has ended, instead of any other; none is, if
    /// there is none. Returns one that is of no more use, to be dropped once the engine is
    /// unlocked.
    #[must_use]
    pub(super) fn watch(&mut self, ticket: Ticket, waker: Option<Waker>) -> Option<Waker> {
        let watched = self.watched();
        let known = watched.wakers.iter().position(|(one, _)| *one == ticket);
        match (known, waker) {
            (Some(at), Some(waker)) if waker.will_wake(&watched.wakers[at].1) => Some(waker),
            (Some(at), Some(waker)) => Some(std::mem::replace(&mut watched.wakers[at].1, waker)),
            (Some(at), None) => Some(watched.wakers.swap_remove(at).1),
            (None, Some(waker)) => {
                watched.wakers.push((ticket, waker));
                None
            }
            (None, None) => None,
        }
    }
}

impl Deref for Locked<'_> {
    type Target = Engine;

    #[inline]
    fn deref(&self) -> &Engine {
        let watched = self.0.as_ref();
        &watched.expect("invariant: locked until dropped").engine
    }
}

impl DerefMut for Locked<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Engine {
        &mut self.watched().engine
    }
}

impl<'a> Locked<'a> {
    /// Unlocks the engine. The value returned hands on what has fallen due when it is dropped:
    /// after the thread has given back the token and woken whom it has to.
    pub(super) fn unlock(mut self) -> Option<Due<'a>> {
        self.take_due()
    }

    fn take_due(&mut self) -> Option<Due<'a>> {
        let host = self.1;
        let watched = self.watched();
        let code = watched.is_due().then(|| watched.take_due());
        code.map(|code| Due(Some(code), host))
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        let is_due = self.is_due();
        let due = if HELD.get() == 1 {
            self.take_due()
        } else {
            None
        };
        self.0 = None;
        release();
        if is_due && due.is_none() {
            IS_DEFERRED.set(true);
        }
    }
}

/// Code of the program that has fallen due. It is handed on when this is dropped.
pub(super) struct Due<'a>(Option<Foreign>, &'a dyn Host);

impl Drop for Due<'_> {
    #[cold]
    fn drop(&mut self) {
        if let Some(code) = self.0.take() {
            self.1.run_apart(code);
        }
    }
}

/// Code of the program, which runs when this is dropped.
pub(crate) struct Foreign {
    wakers: Vec<Waker>,
    let_go: Vec<Memory>,
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
