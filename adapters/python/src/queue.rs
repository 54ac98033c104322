//! The jobs that one thread carries out for their callers, in order.

use ringtree::{Communicator, Error, Result};
use ringtree_foreign::{Outcome, unpanicked};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What is queued: it holds nothing of the program's any more when it returns.
pub(crate) type Act = Box<dyn FnOnce(&Communicator) -> Result<()> + Send>;

pub(crate) struct Job {
    pub(crate) act: Act,
    pub(crate) timeout: Duration,
    pub(crate) outcome: Arc<Outcome>,
}

#[derive(Default)]
pub(crate) struct Jobs {
    pub(crate) waiting: VecDeque<Job>,
    pub(crate) is_closed: bool,
    /// The thread has carried out all of them, and takes no more.
    pub(crate) have_ended: bool,
}

/// What the callers and the thread share.
pub(crate) struct Queue {
    pub(crate) comm: Communicator,
    /// Jobs that are queued or under way: what a call asks that finds none.
    pub(crate) unfinished: AtomicUsize,
    pub(crate) jobs: Mutex<Jobs>,
    pub(crate) changed: Condvar,
}

impl Queue {
    pub(crate) fn new(comm: Communicator) -> Self {
        Self {
            comm,
            unfinished: AtomicUsize::new(0),
            jobs: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The user has interrupted the thread that waits for what is queued: no rank waits for it any
    /// more. The library does the same where its caller waits in a call.
    pub(crate) fn interrupted(&self) {
        let rank = self.comm.rank();
        let line = format!("rank {rank} was interrupted by its user while it waited");
        self.comm
            .fail(&Error::peer_lost(rank, line).with_rank(rank));
    }

    pub(crate) fn work(&self) {
        while let Some(job) = self.next() {
            let comm = self.comm.with_timeout(job.timeout);
            let end = unpanicked(|| (job.act)(&comm));
            self.unfinished.fetch_sub(1, Ordering::Release);
            job.outcome.set(end);
        }
        self.lock().have_ended = true;
        self.changed.notify_all();
    }

    fn next(&self) -> Option<Job> {
        let mut jobs = self.lock();
        loop {
            if let Some(job) = jobs.waiting.pop_front() {
                return Some(job);
            }
            if jobs.is_closed {
                return None;
            }
            jobs = self
                .changed
                .wait(jobs)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}
