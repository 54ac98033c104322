//! The engine, locked, and the tasks that wait for operations. Whatever ends an operation under the
//! lock, wakers are rung and dropped without it, because either may run the program's code, which
//! may come back here.

use crate::engine::{Engine, Ticket};
use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

/// The engine, and the tasks that wait for its operations without blocking a thread.
#[derive(Default)]
pub(super) struct Watched {
    engine: Engine,
    /// Operations under way that a task waits for.
    wakers: Vec<(Ticket, Waker)>,
    /// Wakers that are of no more use.
    discarded: Vec<Waker>,
}

impl Watched {
    /// The wakers of the operations that have ended.
    fn due(&mut self) -> Vec<Waker> {
        let engine = &mut self.engine;
        let has_ended = |one: &mut (Ticket, Waker)| engine.ended(one.0).0;
        let due = self.wakers.extract_if(.., has_ended);
        due.map(|(_, waker)| waker).collect()
    }
}

/// The locked engine.
pub(super) struct Locked<'a>(Option<MutexGuard<'a, Watched>>);

impl<'a> Locked<'a> {
    #[inline]
    pub(super) fn new(watched: MutexGuard<'a, Watched>) -> Self {
        Self(Some(watched))
    }

    /// Unlocks the engine, and rings the wakers that are due.
    #[cold]
    fn ring(&mut self) {
        let Some(mut watched) = self.0.take() else {
            return;
        };
        let (due, discarded) = (watched.due(), std::mem::take(&mut watched.discarded));
        drop(watched);
        due.into_iter().for_each(Waker::wake);
        drop(discarded);
    }

    #[inline]
    fn watched(&mut self) -> &mut Watched {
        self.0.as_mut().expect("invariant: locked until dropped")
    }

    /// Unlocks the engine and sleeps until `changed` is signalled, or for `at_most`; then locks it.
    pub(super) fn wait(&mut self, changed: &Condvar, at_most: Duration) {
        if let Some(watched) = self.0.take() {
            let woken = changed.wait_timeout(watched, at_most);
            self.0 = Some(woken.unwrap_or_else(PoisonError::into_inner).0);
        }
    }

    /// Whether a task waits for an operation.
    pub(super) fn awaits_task(&self) -> bool {
        let watched = self.0.as_ref();
        watched.is_some_and(|watched| !watched.wakers.is_empty())
    }

    /// From now on `waker` is rung when the operation has ended, instead of any other; none is, if
    /// there is none.
    pub(super) fn watch(&mut self, ticket: Ticket, waker: Option<&Waker>) {
        let watched = self.watched();
        let known = watched.wakers.iter().position(|(one, _)| *one == ticket);
        let keeps = |at: usize| waker.is_some_and(|waker| waker.will_wake(&watched.wakers[at].1));
        if known.is_some_and(keeps) {
            return;
        }
        if let Some(at) = known {
            watched.discarded.push(watched.wakers.swap_remove(at).1);
        }
        if let Some(waker) = waker {
            watched.wakers.push((ticket, waker.clone()));
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

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        let watched = self.0.as_ref();
        if watched.is_some_and(|one| !one.wakers.is_empty() || !one.discarded.is_empty()) {
            self.ring();
        }
    }
}
