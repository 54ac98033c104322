//! Runs the calls of a communicator in order.
//!
//! If no call is queued, a call for which the caller waits runs on the caller's thread, and so does
//! the creation of a group. ringtree's own threads run those calls that they are able to run. All
//! other calls are queued for a single thread, which is started when the first of them is queued.
//! This thread never runs Python code and never acquires the interpreter's lock.

use crate::call::Call;
use crate::interrupt::{LOOK, is_interrupted};
use crate::queue::{Act, Job, Queue};
use crate::timeout::timed;
use crate::work::Work;
use ringtree::{Communicator, Error, Result};
use ringtree_foreign::{Operation, Outcome, Pending};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// Minimum number of started calls at which their list is searched for completed ones.
const STARTED_MIN: usize = 64;

/// The state of an operation that the caller waits for.
pub(crate) enum Ran<R> {
    /// The operation has completed with this result.
    Ended(R),
    /// The operation is queued after other calls. When the work has succeeded, the result is set.
    Queued(Work, Arc<Mutex<Option<R>>>),
}

/// A communicator and the order of its calls.
pub(crate) struct Lane {
    shared: Arc<Queue>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// The calls that ringtree's own threads run and that the program can still wait for.
    started: Mutex<Started>,
}

#[derive(Default)]
struct Started {
    calls: Vec<Weak<Pending>>,
    /// Number of calls at which the list is searched for calls that have completed.
    full: usize,
}

impl Lane {
    pub(crate) fn new(comm: Communicator) -> Self {
        Self {
            shared: Arc::new(Queue::new(comm)),
            thread: Mutex::default(),
            started: Mutex::default(),
        }
    }

    pub(crate) fn comm(&self) -> &Communicator {
        &self.shared.comm
    }

    /// Returns `true` if no call is queued or in flight on the thread.
    pub(crate) fn is_idle(&self) -> bool {
        self.shared.unfinished.load(Ordering::Acquire) == 0
    }

    /// Runs `act` in the order of calls. If other calls are queued, `act` is queued too.
    ///
    /// # Errors
    /// Returns the error from `act`, or [`Error::io`] if the thread cannot be started.
    pub(crate) fn run<R: Send + 'static>(
        &self,
        act: impl FnOnce(&Communicator) -> Result<R> + Send + 'static,
        timeout: Duration,
    ) -> Result<Ran<R>> {
        if self.is_idle() {
            return act(&timed(self.comm(), timeout)).map(Ran::Ended);
        }
        let result = Arc::<Mutex<Option<R>>>::default();
        let place = Arc::clone(&result);
        let act = move |comm: &Communicator| {
            let done = act(comm)?;
            *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
            Ok(())
        };
        let work = self.queue(Box::new(act), timeout)?;
        Ok(Ran::Queued(work, result))
    }

    /// Starts the calls on other threads.
    ///
    /// # Errors
    /// Returns [`Error::io`] if the thread cannot be started, or the error if a call cannot be
    /// started.
    pub(crate) fn start(&self, mut calls: Vec<Call>, timeout: Duration) -> Result<Work> {
        let is_single = calls.len() == 1 && calls.iter().all(Call::can_be_posted);
        match calls.pop() {
            Some(call) if is_single && self.is_idle() => {
                let operation = call.post(&timed(self.comm(), timeout))?;
                Ok(self.work(operation))
            }
            last => {
                calls.extend(last);
                let act = |comm: &Communicator| carry_out(calls, comm).map(drop);
                self.queue(Box::new(act), timeout)
            }
        }
    }

    /// Returns the work of a call that ringtree's own threads run.
    fn work(&self, operation: Box<dyn Operation>) -> Work {
        let pending = Arc::new(Pending::from_operation(operation));
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        let Started { calls, full } = &mut *started;
        if calls.len() >= *full {
            calls.retain(|call| call.upgrade().is_some_and(|call| !call.is_finished()));
            *full = (2 * calls.len()).max(STARTED_MIN);
        }
        calls.push(Arc::downgrade(&pending));
        drop(started);
        Work::new(pending)
    }

    fn queue(&self, act: Act, timeout: Duration) -> Result<Work> {
        self.have_thread()?;
        let outcome = Arc::<Outcome>::default();
        let job = Job {
            act,
            timeout,
            outcome: Arc::clone(&outcome),
        };
        self.shared.unfinished.fetch_add(1, Ordering::Relaxed);
        self.shared.lock().waiting.push_back(job);
        self.shared.changed.notify_all();
        let pending = Arc::new(Pending::from_outcome(outcome));
        Ok(Work::queued(pending, &self.shared))
    }

    fn have_thread(&self) -> Result<()> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let shared = Arc::clone(&self.shared);
            let builder = std::thread::Builder::new().name("ringtree-calls".to_owned());
            let started = builder.spawn(move || shared.work());
            let started = started.map_err(|error| Error::io("cannot start a thread", &error))?;
            *thread = Some(started);
        }
        Ok(())
    }
}

/// Runs the calls in sequence and returns them.
///
/// # Errors
/// Returns the error of the first call that fails.
pub(crate) fn carry_out<C: AsMut<[Call]>>(mut calls: C, comm: &Communicator) -> Result<C> {
    let mut each = calls.as_mut().iter_mut();
    each.try_for_each(|call| call.carry_out(comm))?;
    Ok(calls)
}

impl Drop for Lane {
    /// Completes the started and queued calls first, unless the user interrupts them.
    fn drop(&mut self) {
        let started = self.started.get_mut();
        let started = started.unwrap_or_else(PoisonError::into_inner);
        for call in started.calls.drain(..).filter_map(|call| call.upgrade()) {
            while call.wait_at_most(LOOK).is_none() {
                if is_interrupted() {
                    self.shared.interrupted();
                }
            }
        }
        let mut jobs = self.shared.lock();
        jobs.is_closed = true;
        self.shared.changed.notify_all();
        let thread = self.thread.get_mut();
        let Some(thread) = thread.unwrap_or_else(PoisonError::into_inner).take() else {
            return;
        };
        while !jobs.have_ended && !thread.is_finished() {
            let waited = self.shared.changed.wait_timeout(jobs, LOOK);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
            if is_interrupted() {
                self.shared.interrupted();
            }
            jobs = self.shared.lock();
        }
        drop(jobs);
        // This fails only if the thread has panicked, which its calls have reported.
        let _ = thread.join();
    }
}

/// Messages, whose order does not depend on the order of other calls.
impl Lane {
    /// Starts an operation on ringtree's own threads.
    ///
    /// # Errors
    /// Returns the error from `start`.
    pub(crate) fn post(
        &self,
        timeout: Duration,
        start: impl FnOnce(&Communicator) -> Result<Box<dyn Operation>>,
    ) -> Result<Work> {
        let operation = start(&timed(self.comm(), timeout))?;
        Ok(self.work(operation))
    }
}
