//! A start beside the program's own work.

use super::Communicator;
use crate::control::cancel::Cancel;
use crate::error::{Error, Result};
use crate::sys::generation::{Generation, count_forks};
use std::fmt;
use std::thread::JoinHandle;

type Thread = JoinHandle<Result<Communicator>>;

/// A start under way, from [`Builder::connect_async`](super::builder::Builder::connect_async).
///
/// Dropping it cancels the start and waits for its thread: no thread and no descriptor is left.
///
/// ```
/// use ringtree::{Communicator, UniqueId};
///
/// # fn main() -> ringtree::Result<()> {
/// let id = UniqueId::on("127.0.0.1")?;
/// let builder = |rank| Communicator::builder().rank(rank).world_size(2).unique_id(&id);
/// let mut joining = [builder(0).connect_async(), builder(1).connect_async()];
/// while joining.iter_mut().any(|one| !one.is_ready()) {
///     std::thread::yield_now(); // load data, draw a progress bar ...
/// }
/// let worlds = joining.map(|one| one.wait());
/// assert_eq!(worlds[1].as_ref().unwrap().rank(), 1);
///
/// let alone = builder(0).connect_async();
/// alone.cancel();
/// let error = alone.wait().unwrap_err();
/// assert!(error.to_string().contains("cancelled"), "{error}");
/// # Ok(()) }
/// ```
#[must_use = "dropping it cancels the start"]
pub struct Joining {
    /// None once its result was taken.
    thread: Option<Result<Thread>>,
    cancel: Cancel,
    made_in: Generation,
}

impl Joining {
    pub(super) fn start(
        cancel: Cancel,
        connect: impl FnOnce() -> Result<Communicator> + Send + 'static,
    ) -> Self {
        let builder = std::thread::Builder::new().name("ringtree-join".to_owned());
        let thread = count_forks().and_then(|()| builder.spawn(connect));
        let thread = thread.map_err(|error| Error::io("starting the joining thread", &error));
        Self {
            thread: Some(thread),
            cancel,
            made_in: Generation::current(),
        }
    }

    /// Whether the start has ended, one way or the other: then neither [`Joining::poll`] nor
    /// [`Joining::wait`] waits.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let goes_on = matches!(&self.thread, Some(Ok(thread)) if !thread.is_finished());
        !(goes_on && self.made_in.is_current())
    }

    /// The communicator or why there is none, once the start has ended; `None` while it goes on,
    /// and after the result was taken.
    ///
    /// ```
    /// use ringtree::Communicator;
    /// let mut joining = Communicator::builder().connect_async(); // a world of one rank
    /// let comm = loop {
    ///     if let Some(end) = joining.poll() {
    ///         break end.unwrap();
    ///     }
    ///     std::thread::yield_now();
    /// };
    /// assert_eq!(comm.world_size(), 1);
    /// ```
    #[must_use]
    pub fn poll(&mut self) -> Option<Result<Communicator>> {
        match self.is_ready() {
            true => self.take(),
            false => None,
        }
    }

    /// Waits for the start to end.
    ///
    /// # Errors
    /// As [`Builder::connect`](super::builder::Builder::connect); [`Error::join`] after
    /// [`Joining::cancel`], and [`Error::usage`] if [`Joining::poll`] has given the result.
    pub fn wait(mut self) -> Result<Communicator> {
        let taken = || Err(Error::usage("the result of this start was taken by `poll`"));
        self.take().unwrap_or_else(taken)
    }

    /// Cancels the start, unless it has ended: it ends within moments with an error, or, where a
    /// name is being resolved or a store asked, when that returns. If this rank has met rank 0,
    /// the other ranks end at once with one line that says which rank cancelled; else they miss
    /// this rank at the end of their timeout.
    pub fn cancel(&self) {
        if self.made_in.is_current() {
            self.cancel.cancel();
        }
    }

    fn take(&mut self) -> Option<Result<Communicator>> {
        let end = self.thread.take()?.and_then(|thread| {
            if !self.made_in.is_current() {
                return Err(Error::usage(
                    "this process was forked from one that joins; the start is its parent's: a \
                     child that is to be a rank starts by itself",
                ));
            }
            let panicked = |_| Err(Error::system("the thread of a start panicked"));
            thread.join().unwrap_or_else(panicked)
        });
        Some(end)
    }
}

impl Drop for Joining {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.cancel();
            drop(self.take());
        }
    }
}

impl fmt::Debug for Joining {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Joining({:?})", self.cancel)
    }
}
