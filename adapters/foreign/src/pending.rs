//! A call under way, for which any number of threads wait.

use ringtree::{Error, Failed, Result, Work};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// Between two looks at an operation whose waiter has a time of its own.
const PAUSE: Duration = Duration::from_micros(200);

/// A call that the library's own threads carry out.
pub trait Operation: Send {
    /// Whether `wait` would return at once.
    fn has_ended(&self) -> bool;

    /// Waits for the end.
    ///
    /// # Errors
    /// The call's.
    fn wait(self: Box<Self>) -> Result<()>;
}

impl<B: Send + 'static> Operation for Work<B> {
    fn has_ended(&self) -> bool {
        Work::has_ended(self)
    }

    fn wait(self: Box<Self>) -> Result<()> {
        let end = Work::wait(*self);
        end.map(drop).map_err(|failed: Failed<B>| failed.error)
    }
}

/// Runs `act`; a panic becomes an error.
///
/// ```
/// let end = ringtree_foreign::unpanicked::<()>(|| panic!("no"));
/// assert!(end.is_err_and(|error| error.is_system()));
/// ```
///
/// # Errors
/// Those of `act`; [`Error::system`] after a panic, whose own words are on standard error.
pub fn unpanicked<R>(act: impl FnOnce() -> Result<R>) -> Result<R> {
    let panicked = |_| {
        Err(Error::system(
            "a call panicked: report it, with what standard error says",
        ))
    };
    catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(panicked)
}

/// How a call ended, for everybody who wants to know.
#[derive(Debug, Default)]
pub struct Outcome {
    end: Mutex<Option<Result<()>>>,
    ended: Condvar,
}

impl Outcome {
    /// It ended so; all waiting threads are told.
    pub fn set(&self, end: Result<()>) {
        *lock(&self.end) = Some(end);
        self.ended.notify_all();
    }

    /// The end, if it has come.
    #[must_use]
    pub fn get(&self) -> Option<Result<()>> {
        lock(&self.end).clone()
    }

    /// Waits for the end, `at_most` so long if that is given.
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

/// A call under way. Any thread may wait for it, several at once, and again after its end.
///
/// ```
/// use ringtree::ReduceOp;
/// use ringtree_foreign::Pending;
/// let ends = ringtree::simulate(2, |comm| {
///     let work = comm.all_reduce_async(vec![1.0f32], ReduceOp::Sum)?;
///     let pending = Pending::of_operation(Box::new(work));
///     pending.wait()?;
///     assert!(pending.has_ended());
///     pending.wait()
/// });
/// assert_eq!(ends, [Ok(()), Ok(())]);
/// ```
pub struct Pending {
    outcome: Arc<Outcome>,
    /// None once a thread waits in it, or where another thread sets the outcome.
    operation: Mutex<Option<Box<dyn Operation>>>,
    /// The thread that waits in it.
    waiting: Mutex<Option<ThreadId>>,
}

impl Pending {
    /// A call whose end another thread sets.
    #[must_use]
    pub fn of_outcome(outcome: Arc<Outcome>) -> Self {
        Self {
            outcome,
            operation: Mutex::new(None),
            waiting: Mutex::new(None),
        }
    }

    /// A call that the library carries out.
    #[must_use]
    pub fn of_operation(operation: Box<dyn Operation>) -> Self {
        Self {
            outcome: Arc::default(),
            operation: Mutex::new(Some(operation)),
            waiting: Mutex::new(None),
        }
    }

    /// Whether the call has ended, well or not.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let operation = lock(&self.operation);
        match &*operation {
            Some(operation) => operation.has_ended(),
            None => self.outcome.get().is_some(),
        }
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// The call's; [`Error::usage`] in a signal's handler that interrupted this wait.
    pub fn wait(&self) -> Result<()> {
        self.wait_in_operation();
        self.check_nested()?;
        let end = self.outcome.wait(None);
        end.expect("invariant: without a time it waits until there is an end")
    }

    /// The operation, if the library carries the call out and no thread waits in it: who drops it
    /// lets it end by itself, and no call can wait for it any more.
    #[must_use]
    pub fn take_operation(&self) -> Option<Box<dyn Operation>> {
        lock(&self.operation).take()
    }

    /// Waits in the operation itself, if no other thread does, and returns whether it did.
    pub fn wait_in_operation(&self) -> bool {
        let taken = self.take_operation();
        let is_mine = taken.is_some();
        if let Some(operation) = taken {
            *lock(&self.waiting) = Some(std::thread::current().id());
            self.outcome.set(unpanicked(|| operation.wait()));
            *lock(&self.waiting) = None;
        }
        is_mine
    }

    /// A signal's handler runs within the wait of the thread that it interrupts, which goes on only
    /// when the handler returns.
    fn check_nested(&self) -> Result<()> {
        let is_nested = *lock(&self.waiting) == Some(std::thread::current().id());
        match is_nested && self.outcome.get().is_none() {
            true => Err(Error::usage(
                "this thread waits for this call already, and was interrupted by the handler that \
                 waits for it again: let the handler return first",
            )),
            false => Ok(()),
        }
    }

    /// Waits for the end, `at_most` so long, while other threads may do the same; it may return
    /// earlier, with nothing. In a signal's handler that interrupted a wait for the same call the
    /// end is [`Error::usage`].
    #[must_use]
    pub fn wait_at_most(&self, at_most: Duration) -> Option<Result<()>> {
        if let Err(nested) = self.check_nested() {
            return Some(Err(nested));
        }
        let end = Instant::now() + at_most;
        while lock(&self.operation).is_some() {
            if self.has_ended() {
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
