//! Lets any number of threads wait for a call in flight.

use ringtree::comm::WorkError;
use ringtree::{Error, ErrorKind, Result, Work};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// Interval at which a thread that waits with a timeout checks the operation.
const PAUSE: Duration = Duration::from_micros(200);

/// A started call that ringtree runs on its own threads.
pub trait Operation: Send {
    /// Returns `true` if the call has completed, so that `wait` returns immediately.
    fn is_finished(&self) -> bool;

    /// Waits until the call has completed.
    ///
    /// # Errors
    /// Returns an error if the call failed.
    fn wait(self: Box<Self>) -> Result<()>;
}

impl<B: Send + 'static> Operation for Work<B> {
    fn is_finished(&self) -> bool {
        Work::is_finished(self)
    }

    fn wait(self: Box<Self>) -> Result<()> {
        let end = Work::wait(*self);
        end.map(drop).map_err(|failed: WorkError<B>| failed.error)
    }
}

/// Runs `act` and turns a panic into an error.
///
/// ```
/// use ringtree::ErrorKind;
/// let end = ringtree_foreign::catch_panic::<()>(|| panic!("no"));
/// assert!(end.is_err_and(|error| error.kind() == ErrorKind::System));
/// ```
///
/// # Errors
/// Returns the error that `act` returns, or [`ErrorKind::System`] if it panics. The panic message
/// is on standard error.
pub fn catch_panic<R>(act: impl FnOnce() -> Result<R>) -> Result<R> {
    let panicked = |_| {
        Err(Error::new(
            ErrorKind::System,
            "a call panicked; report this bug with the panic message on standard error",
        ))
    };
    catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(panicked)
}

/// The result of a call, which any number of threads can wait for.
#[derive(Debug, Default)]
pub struct Outcome {
    end: Mutex<Option<Result<()>>>,
    ended: Condvar,
}

impl Outcome {
    /// Sets the result and wakes all waiting threads.
    pub fn set(&self, end: Result<()>) {
        *lock(&self.end) = Some(end);
        self.ended.notify_all();
    }

    /// Returns the result, or `None` if the call is still in flight.
    #[must_use]
    pub fn get(&self) -> Option<Result<()>> {
        lock(&self.end).clone()
    }

    /// Waits until the result is set, and returns it. Returns `None` if `at_most` elapses first.
    #[must_use]
    pub fn wait(&self, at_most: Option<Duration>) -> Option<Result<()>> {
        let is_missing = |end: &mut Option<Result<()>>| end.is_none();
        let held = lock(&self.end);
        let held = match at_most {
            Some(at_most) => {
                let waited = self.ended.wait_timeout_while(held, at_most, is_missing);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            None => {
                let waited = self.ended.wait_while(held, is_missing);
                waited.unwrap_or_else(PoisonError::into_inner)
            }
        };
        held.clone()
    }
}

/// A call in flight.
///
/// Any number of threads may wait for the call, even at the same time. Waiting again after the call
/// has completed returns the same result.
///
/// ```
/// use ringtree::ReduceOp;
/// use ringtree_foreign::Pending;
/// let ends = ringtree::simulate(2, |comm| {
///     let work = comm.start_all_reduce(vec![1.0f32], ReduceOp::Sum)?;
///     let pending = Pending::from_operation(Box::new(work));
///     pending.wait()?;
///     assert!(pending.is_finished());
///     pending.wait()
/// });
/// assert_eq!(ends, [Ok(()), Ok(())]);
/// ```
pub struct Pending {
    outcome: Arc<Outcome>,
    /// The operation. `None` if a thread is waiting in it, or if another thread sets the outcome.
    operation: Mutex<Option<Box<dyn Operation>>>,
    /// The thread that is waiting in the operation.
    waiting: Mutex<Option<ThreadId>>,
}

impl Pending {
    /// Creates a call whose result another thread sets in `outcome`.
    #[must_use]
    pub fn from_outcome(outcome: Arc<Outcome>) -> Self {
        Self {
            outcome,
            operation: Mutex::new(None),
            waiting: Mutex::new(None),
        }
    }

    /// Creates a call that ringtree's own threads run.
    #[must_use]
    pub fn from_operation(operation: Box<dyn Operation>) -> Self {
        Self {
            outcome: Arc::default(),
            operation: Mutex::new(Some(operation)),
            waiting: Mutex::new(None),
        }
    }

    /// Returns `true` if the call has succeeded or failed.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        let operation = lock(&self.operation);
        match &*operation {
            Some(operation) => operation.is_finished(),
            None => self.outcome.get().is_some(),
        }
    }

    /// Waits until the call has completed.
    ///
    /// # Errors
    /// Returns an error if the call failed, or [`ErrorKind::Usage`] if this is called from a signal
    /// handler that interrupted its thread while the thread was waiting for this call.
    pub fn wait(&self) -> Result<()> {
        self.wait_in_operation();
        self.check_nested()?;
        let end = self.outcome.wait(None);
        end.expect("invariant: a wait without a timeout returns a result")
    }

    /// Waits until one of the calls has completed, and returns the index of the first that has.
    /// Returns `None` if `at_most` elapses first or if there are no calls. All other calls
    /// continue.
    ///
    /// ```
    /// use ringtree_foreign::Pending;
    /// use std::time::Duration;
    /// let ends = ringtree::simulate(2, |comm| {
    ///     let peer = 1 - comm.rank();
    ///     let pending = |work| Pending::from_operation(Box::new(work));
    ///     let later = pending(comm.start_recv(vec![0u8], peer)?);
    ///     let moment = Some(Duration::from_millis(1));
    ///     assert_eq!(Pending::wait_any(&[&later], moment), None);
    ///     let sooner = pending(comm.start_all_gather(vec![0u8; 2])?);
    ///     sooner.wait()?; // simulated ranks run only while one of them waits in a call
    ///     assert_eq!(Pending::wait_any(&[&later, &sooner], None), Some(1));
    ///     comm.send(&[1u8], peer)?;
    ///     later.wait()
    /// });
    /// assert_eq!(ends, [Ok(()), Ok(())]);
    /// ```
    #[must_use]
    pub fn wait_any(calls: &[&Self], at_most: Option<Duration>) -> Option<usize> {
        let start = Instant::now();
        loop {
            let finished = calls.iter().position(|call| call.is_finished());
            let passed = start.elapsed();
            if finished.is_some() || calls.is_empty() || at_most.is_some_and(|most| passed >= most)
            {
                return finished;
            }
            // The first pauses are short, because most calls complete quickly.
            let left = at_most.map_or(PAUSE, |most| most.saturating_sub(passed));
            std::thread::sleep(PAUSE.min(passed).min(left));
        }
    }

    /// Takes the operation if ringtree's own threads run the call and no thread is waiting in it.
    ///
    /// If the caller drops the operation, the call completes in the background. No thread can wait
    /// for it afterwards.
    #[must_use]
    pub fn take_operation(&self) -> Option<Box<dyn Operation>> {
        lock(&self.operation).take()
    }

    /// Waits until the operation has completed, and returns `true`. Returns `false` immediately if
    /// another thread is waiting in the operation or if there is no operation.
    pub fn wait_in_operation(&self) -> bool {
        let taken = self.take_operation();
        let is_mine = taken.is_some();
        if let Some(operation) = taken {
            *lock(&self.waiting) = Some(std::thread::current().id());
            self.outcome.set(catch_panic(|| operation.wait()));
            *lock(&self.waiting) = None;
        }
        is_mine
    }

    /// Returns an error if this thread is already waiting in the operation. A signal handler runs
    /// inside the wait that it interrupts, and the wait resumes only after the handler returns.
    fn check_nested(&self) -> Result<()> {
        let is_nested = *lock(&self.waiting) == Some(std::thread::current().id());
        match is_nested && self.outcome.get().is_none() {
            true => Err(Error::new(
                ErrorKind::Usage,
                "a signal handler cannot wait for a call that its thread is already waiting for: \
                 return from the handler first",
            )),
            false => Ok(()),
        }
    }

    /// Waits at most `at_most` for the result. The limit holds even if other threads are waiting for
    /// the same call. May return `None` before the time is up.
    ///
    /// Returns [`ErrorKind::Usage`] if this is called from a signal handler that interrupted its
    /// thread while the thread was waiting for this call.
    #[must_use]
    pub fn wait_at_most(&self, at_most: Duration) -> Option<Result<()>> {
        if let Err(nested) = self.check_nested() {
            return Some(Err(nested));
        }
        let end = Instant::now() + at_most;
        while lock(&self.operation).is_some() {
            if self.is_finished() {
                self.wait_in_operation();
            } else if Instant::now() >= end {
                return None;
            } else {
                std::thread::sleep(PAUSE);
            }
        }
        let left = end.saturating_duration_since(Instant::now());
        self.outcome.wait(Some(left))
    }
}

impl std::fmt::Debug for Pending {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Pending({:?})", self.outcome.get())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
