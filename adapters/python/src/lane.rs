//! The order of a communicator's calls, and the thread for those that the caller does not wait for.
//!
//! What its caller waits for, a call or the making of a group, runs on the caller's thread, while
//! nothing is queued before it. Calls that the library can carry out by itself are left to it. The
//! rest is queued for one thread, which is there from the first of these on. It never runs Python
//! code and never takes the interpreter's lock.

use crate::call::Call;
use crate::interrupt::{LOOK, is_interrupted};
use crate::queue::{Act, Job, Queue};
use crate::work::Work;
use ringtree::{Communicator, Error, Result};
use ringtree_foreign::{Operation, Outcome, Pending};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How far it is with what the caller waits for.
pub(crate) enum Ran<R> {
    Ended(R),
    /// Other calls come first; the result is there when the work has ended well.
    Queued(Work, Arc<Mutex<Option<R>>>),
}

/// A communicator with its order of calls.
pub(crate) struct Lane {
    shared: Arc<Queue>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Lane {
    pub(crate) fn new(comm: Communicator) -> Self {
        Self {
            shared: Arc::new(Queue::new(comm)),
            thread: Mutex::default(),
        }
    }

    pub(crate) fn comm(&self) -> &Communicator {
        &self.shared.comm
    }

    /// Whether no call is queued or under way in the thread.
    pub(crate) fn is_idle(&self) -> bool {
        self.shared.unfinished.load(Ordering::Acquire) == 0
    }

    /// Does it, in the order of calls; if other calls are queued before it, it is queued, too.
    ///
    /// # Errors
    /// Those of `act`.
    pub(crate) fn run<R: Send + 'static>(
        &self,
        act: impl FnOnce(&Communicator) -> Result<R> + Send + 'static,
        timeout: Duration,
    ) -> Result<Ran<R>> {
        if self.is_idle() {
            return act(&self.comm().with_timeout(timeout)).map(Ran::Ended);
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

    /// Starts the calls, and leaves them to other threads.
    ///
    /// # Errors
    /// The system's, if there is no thread; those of the start of a call.
    pub(crate) fn start(&self, mut calls: Vec<Call>, timeout: Duration) -> Result<Work> {
        let is_single = calls.len() == 1 && calls.iter().all(Call::can_be_posted);
        match calls.pop() {
            Some(call) if is_single && self.is_idle() => {
                let operation = call.post(&self.comm().with_timeout(timeout))?;
                Ok(Work::new(Pending::of_operation(operation)))
            }
            last => {
                calls.extend(last);
                let act = |comm: &Communicator| carry_out(calls, comm).map(drop);
                self.queue(Box::new(act), timeout)
            }
        }
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
        Ok(Work::queued(Pending::of_outcome(outcome), &self.shared))
    }

    fn have_thread(&self) -> Result<()> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let shared = Arc::clone(&self.shared);
            let builder = std::thread::Builder::new().name("ringtree-calls".to_owned());
            let started = builder.spawn(move || shared.work());
            let started = started.map_err(|error| Error::io("starting a thread", &error))?;
            *thread = Some(started);
        }
        Ok(())
    }
}

/// Carries the calls out, one after the other, and gives them back.
///
/// # Errors
/// The first call's that fails.
pub(crate) fn carry_out<C: AsMut<[Call]>>(mut calls: C, comm: &Communicator) -> Result<C> {
    let mut each = calls.as_mut().iter_mut();
    each.try_for_each(|call| call.carry_out(comm))?;
    Ok(calls)
}

impl Drop for Lane {
    /// What is queued is carried out before, unless the user interrupts it.
    fn drop(&mut self) {
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
        // It has panicked if this fails; its calls say so.
        let _ = thread.join();
    }
}

/// Messages, which have an order of their own.
impl Lane {
    /// Starts an operation of the library's.
    ///
    /// # Errors
    /// Those of `start`.
    pub(crate) fn post(
        &self,
        timeout: Duration,
        start: impl FnOnce(&Communicator) -> Result<Box<dyn Operation>>,
    ) -> Result<Work> {
        let operation = start(&self.comm().with_timeout(timeout))?;
        Ok(Work::new(Pending::of_operation(operation)))
    }
}
