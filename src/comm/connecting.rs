//! Connects to the other ranks in the background while the program does other work.

use super::Communicator;
use crate::control::cancel::Cancel;
use crate::error::{Error, Result};
use crate::lock::lock;
use crate::sys::generation::{Generation, count_forks};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;

type Thread = JoinHandle<Result<Communicator>>;

/// A connection attempt that runs in the background. It is started by
/// [`Builder::start_connect`](super::builder::Builder::start_connect). Call [`Connecting::wait`],
/// or `.await` it in an async function.
///
/// Dropping this value cancels the connection attempt and waits for its thread to exit, so no
/// thread or file descriptor is left behind.
///
/// ```
/// use ringtree::start::UniqueId;
/// use ringtree::Communicator;
///
/// # fn main() -> ringtree::Result<()> {
/// let id = UniqueId::on("127.0.0.1")?;
/// let builder = |rank| Communicator::builder().rank(rank).world_size(2).unique_id(&id);
/// let joining = [builder(0).start_connect(), builder(1).start_connect()];
/// while joining.iter().any(|one| !one.is_finished()) {
///     std::thread::yield_now(); // load data, draw a progress bar ...
/// }
/// let worlds = joining.map(|one| one.wait());
/// assert_eq!(worlds[1].as_ref().unwrap().rank(), 1);
///
/// let alone = builder(0).start_connect();
/// alone.cancel();
/// let error = alone.wait().unwrap_err();
/// assert!(error.to_string().contains("canceled"), "{error}");
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "dropping it cancels the connection attempt"]
pub struct Connecting {
    /// The thread that connects, or the error that prevented it from starting. `None` once the
    /// result has been taken.
    thread: Option<Result<Thread>>,
    ending: Arc<Mutex<Completion>>,
    cancel: Cancel,
    made_in: Generation,
}

impl Connecting {
    pub(super) fn start(
        cancel: Cancel,
        connect: impl FnOnce() -> Result<Communicator> + Send + 'static,
    ) -> Self {
        let builder = std::thread::Builder::new().name("ringtree-join".to_owned());
        let ending = Arc::default();
        let announces = CompletionGuard(Arc::clone(&ending));
        let connect = move || {
            let _announces = announces;
            connect()
        };
        let thread = count_forks().and_then(|()| builder.spawn(connect));
        let thread = thread.map_err(|error| Error::io("cannot start a thread to connect", &error));
        Self {
            thread: Some(thread),
            ending,
            cancel,
            made_in: Generation::current(),
        }
    }

    /// Returns `true` if the connection attempt has succeeded or failed. If so,
    /// [`Connecting::wait`] does not block.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        !self.made_in.is_current() || lock(&self.ending).is_reached
    }

    /// Waits until the connection attempt has ended, and returns the communicator.
    ///
    /// # Errors
    /// Returns the same errors as [`Builder::connect`](super::builder::Builder::connect). Also
    /// returns an [`Error`] of one of the following kinds:
    /// - [`ErrorKind::Join`](crate::ErrorKind::Join) after a call to [`Connecting::cancel`].
    /// - [`ErrorKind::Usage`](crate::ErrorKind::Usage) if the result has already been returned, or
    ///   if this process is a forked child.
    /// - [`ErrorKind::System`](crate::ErrorKind::System) if the thread could not be started, or if
    ///   it panicked.
    pub fn wait(mut self) -> Result<Communicator> {
        self.take()
    }

    /// Cancels the connection attempt, unless it has already ended. A canceled attempt fails almost
    /// immediately. If it is resolving a name or querying a store, it fails as soon as that
    /// operation returns.
    ///
    /// If this rank has already reached rank 0, the other ranks immediately get an error that names
    /// this rank as the one that canceled. Otherwise, the other ranks report this rank as missing
    /// when their timeout expires.
    pub fn cancel(&self) {
        if self.made_in.is_current() {
            self.cancel.cancel();
        }
    }

    fn take(&mut self) -> Result<Communicator> {
        let thread = self.thread.take().ok_or_else(|| {
            Error::usage("the result of the connection attempt has already been returned")
        })??;
        if !self.made_in.is_current() {
            return Err(Error::usage(
                "cannot use a connection attempt of the parent process in a forked child; to make \
                 the child a rank, connect it with a new builder",
            ));
        }
        let panicked = |_| Err(Error::system("the connecting thread panicked"));
        thread.join().unwrap_or_else(panicked)
    }
}

/// Returns the same errors as [`Connecting::wait`].
///
/// ```
/// # fn main() -> ringtree::Result<()> {
/// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// # runtime.block_on(async {
/// let comm = ringtree::Communicator::builder().start_connect().await?; // a world of one rank
/// assert_eq!(comm.world_size(), 1);
/// # Ok(()) }) }
/// ```
impl Future for Connecting {
    type Output = Result<Communicator>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // The program's code must not run while the lock is held. Cloning or dropping a waker can
        // run such code.
        let waker = context.waker().clone();
        let earlier = lock(&self.ending).waker.replace(waker);
        drop(earlier);
        match self.is_finished() {
            true => Poll::Ready(self.take()),
            false => Poll::Pending,
        }
    }
}

/// State that the connecting thread shares with the future: whether the attempt has ended, and the
/// waker of the task that is waiting for it to end.
#[derive(Debug, Default)]
struct Completion {
    is_reached: bool,
    waker: Option<Waker>,
}

/// A guard that, when dropped, marks the attempt as ended and wakes the waiting task. It is dropped
/// even if the connecting thread panics.
struct CompletionGuard(Arc<Mutex<Completion>>);

impl Drop for CompletionGuard {
    fn drop(&mut self) {
        let mut ending = lock(&self.0);
        ending.is_reached = true;
        let waker = ending.waker.take();
        drop(ending);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.cancel();
            drop(self.take());
        }
    }
}
