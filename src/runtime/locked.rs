//! Defines the locked engine. When the engine is unlocked, the [`Host`] receives the user code that
//! is due.
//!
//! A thread that also holds the polling token does not pass on user code until it has freed the
//! token, because a [`Host`] that has no thread for user code runs the code in place.

use super::host::Host;
use super::user_code::{Foreign, defer, hold, holds_one, release};
use crate::engine::{Engine, Ticket};
use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

/// The engine, and the wakers of tasks that are waiting for its operations without blocking a
/// thread.
#[derive(Default)]
pub(super) struct Watched {
    engine: Engine,
    /// Wakers of tasks, each with the operation in flight that the task is waiting for.
    wakers: Vec<(Ticket, Waker)>,
    /// `true` if operations were abandoned and may still be in flight.
    has_abandoned: bool,
}

impl Watched {
    /// Returns `true` if user code is due.
    #[inline]
    fn is_due(&mut self) -> bool {
        if self.wakers.is_empty() && !self.has_abandoned {
            return false;
        }
        let engine = &mut self.engine;
        engine.has_released_memory() || self.wakers.iter().any(|one| engine.ended(one.0).0)
    }

    /// Removes and returns the wakers for operations that have ended, and the memory of abandoned
    /// operations that have ended.
    fn take_due(&mut self) -> Foreign {
        let engine = &mut self.engine;
        let released_memory = engine.released_memory();
        self.has_abandoned = engine.has_abandoned();
        let has_ended = |one: &mut (Ticket, Waker)| engine.ended(one.0).0;
        let due = self.wakers.extract_if(.., has_ended);
        Foreign {
            wakers: due.map(|(_, waker)| waker).collect(),
            released_memory,
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

    /// Returns `true` if user code is due. In that case, this thread must free the token.
    #[inline]
    pub(super) fn is_due(&mut self) -> bool {
        self.watched().is_due()
    }

    /// Records that an operation was abandoned.
    pub(super) fn abandoned(&mut self) {
        self.watched().has_abandoned = true;
    }

    /// Unlocks the engine, sleeps until `changed` is signaled or `at_most` has elapsed, and locks
    /// the engine again.
    pub(super) fn wait(&mut self, changed: &Condvar, at_most: Duration) {
        if let Some(watched) = self.0.take() {
            let woken = changed.wait_timeout(watched, at_most);
            self.0 = Some(woken.unwrap_or_else(PoisonError::into_inner).0);
        }
    }

    /// Sets the waker for an operation, or removes it if `waker` is `None`. Returns a waker that is
    /// no longer needed. Drop that waker only after the engine has been unlocked.
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
    /// Unlocks the engine. Dropping the returned value passes the user code that is due on to the
    /// [`Host`]. Drop it after this thread has freed the token and has woken other threads.
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
        let due = if holds_one() { self.take_due() } else { None };
        self.0 = None;
        release();
        if is_due && due.is_none() {
            defer();
        }
    }
}

/// User code that is due. Dropping this value passes the code to the [`Host`].
pub(super) struct Due<'a>(Option<Foreign>, &'a dyn Host);

impl Drop for Due<'_> {
    #[cold]
    fn drop(&mut self) {
        if let Some(code) = self.0.take() {
            self.1.run_in_background(code);
        }
    }
}
