//! Runs jobs in order on one thread.

use crate::timeout::timed;
use ringtree::{Communicator, Result};
use ringtree_foreign::{Outcome, catch_panic};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The operation that a job runs. When it returns, it must have released all of the program's
/// objects.
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
    /// `true` if the thread has run all jobs and accepts no more.
    pub(crate) have_ended: bool,
}

/// The state that the callers and the thread share.
pub(crate) struct Queue {
    pub(crate) comm: Communicator,
    /// Number of jobs that are queued or running. Calls check it without locking `jobs`.
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

    /// Makes the communicator fail because the user interrupted the thread that was waiting for a
    /// queued job. Otherwise, other ranks would wait for this rank. ringtree does the same if its
    /// caller is interrupted while waiting in a call.
    pub(crate) fn interrupted(&self) {
        let rank = self.comm.rank();
        let line = format!("the user interrupted rank {rank} while it was waiting for other ranks");
        self.comm
            .abort(&ringtree::internal::errors::lost(rank, line));
    }

    /// Runs jobs until the queue is closed and empty.
    pub(crate) fn work(&self) {
        while let Some(job) = self.next() {
            let comm = timed(&self.comm, job.timeout);
            let end = catch_panic(|| (job.act)(&comm));
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
