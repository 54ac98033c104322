//! Defines handles for operations that are in flight and own their buffers.

use super::Handle;
use crate::engine::Ticket;
use crate::engine::group::{End, Memory};
use crate::error::{Error, Result};
use crate::runtime::Runtime;
use crate::sys::memory::Claim;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// An operation that is in flight and owns its buffer.
///
/// The buffer can be a `Vec`, a `Box<[T]>`, a [`SharedBuffer`](crate::comm::SharedBuffer) or any
/// other [`Buffer`](crate::Buffer) that is `Send`. The operation advances in the background.
/// [`Work::wait`] returns the buffer. If the `Work` is dropped, the operation still completes, and
/// then its buffer is dropped. To lend buffers to a call instead, use
/// [`Communicator::scope`](crate::Communicator::scope).
///
/// `Work` is also a [`Future`] and works with any executor. When the operation completes, the task
/// that is awaiting it is woken. Dropping the future does not cancel the operation, which then
/// completes in the background.
///
/// `Work` keeps its communicator's group alive. This rank leaves the group only after the last
/// handle has been dropped.
///
/// ```
/// use ringtree::ReduceOp;
/// # fn block_on<F: Future>(future: F) -> F::Output {
/// #     let mut future = std::pin::pin!(future);
/// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
/// #     loop {
/// #         if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut context) {
/// #             return output;
/// #         }
/// #     }
/// # }
/// let sums = ringtree::simulate(2, |comm| {
///     // `block_on` stands for the executor of the program.
///     block_on(async {
///         let sum = comm.start_all_reduce(vec![1.0f32; 4], ReduceOp::Sum)?.await?;
///         Ok::<_, ringtree::Error>(sum)
///     })
/// });
/// assert_eq!(sums[0], Ok(vec![2.0; 4]));
/// ```
#[must_use = "call `wait` to get the result of the operation"]
pub struct Work<B> {
    core: Handle,
    /// `None` once the buffer has been returned.
    under_way: Option<(Ticket, Claim<B>)>,
}

/// A failed operation and its buffer. The contents of the buffer are unspecified.
///
/// The `?` operator converts this type into an [`Error`].
///
/// ```
/// use ringtree::{Error, ErrorKind, ReduceOp};
/// let ends = ringtree::simulate(2, |comm| {
///     comm.abort(&Error::new(ErrorKind::System, "the disk is full"));
///     let work = comm.start_all_reduce(vec![1u8; 9], ReduceOp::Sum);
///     let failed = work.and_then(ringtree::Work::wait).unwrap_err();
///     assert!(failed.error.to_string().contains("the disk is full"));
///     failed.buffer.len()
/// });
/// assert_eq!(ends, [9, 9]);
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct WorkError<B> {
    /// The error that caused the operation to fail.
    pub error: Error,
    /// The buffer of the operation.
    pub buffer: B,
}

impl<B> From<WorkError<B>> for Error {
    fn from(failed: WorkError<B>) -> Self {
        failed.error
    }
}

impl<B> fmt::Display for WorkError<B> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(formatter)
    }
}

/// Prints the error but not the buffer, which may be large.
impl<B> fmt::Debug for WorkError<B> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(formatter)
    }
}

impl<B> std::error::Error for WorkError<B> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl<B> Work<B> {
    /// Calls `post` to start an operation on regions that hold a `B`. If `post` returns an error,
    /// it must leave the regions in the memory that was passed to it.
    pub(super) fn start(
        core: &Handle,
        mut memory: Memory,
        claim: Claim<B>,
        post: impl FnOnce(&mut Memory) -> Result<Ticket>,
    ) -> Result<Self, WorkError<B>> {
        match post(&mut memory) {
            Ok(ticket) => Ok(Self {
                core: core.clone(),
                under_way: Some((ticket, claim)),
            }),
            Err(error) => Err(WorkError {
                error,
                buffer: release(memory, claim),
            }),
        }
    }

    /// Waits for the operation and returns the buffer.
    ///
    /// # Errors
    /// Returns [`WorkError`], which contains the buffer and one of the [errors that all calls
    /// share](crate::Communicator#errors). The contents of the buffer are then unspecified.
    #[doc(alias("MPI_Wait"))]
    pub fn wait(self) -> Result<B, WorkError<B>> {
        self.wait_timed().map(|(buffer, _)| buffer)
    }

    /// Returns `true` if the operation has completed. If so, `wait` returns immediately.
    ///
    /// Calling this method also advances all operations in flight.
    ///
    /// ```
    /// use ringtree::ReduceOp;
    /// let ends = ringtree::simulate(2, |comm| {
    ///     let work = comm.start_all_reduce(vec![1.0f32], ReduceOp::Sum)?;
    ///     while !work.is_finished() {
    ///         ringtree::sim::sleep(comm, std::time::Duration::from_millis(1));
    ///     }
    ///     work.wait()
    /// });
    /// assert_eq!(ends, vec![Ok(vec![2.0]); 2]);
    /// ```
    #[doc(alias("MPI_Test", "is_completed"))]
    #[must_use]
    pub fn is_finished(&self) -> bool {
        let under_way = self
            .under_way
            .as_ref()
            .zip(self.core.parts.runtime.get().ok());
        under_way.is_none_or(|((ticket, _), runtime)| runtime.has_ended(*ticket))
    }

    /// Like `wait`, but also returns the time on this rank's clock at which the operation
    /// completed.
    pub(crate) fn wait_timed(self) -> Result<(B, Duration), WorkError<B>> {
        self.wait_by(|runtime, ticket| {
            let (_, ended_at) = runtime.ended(ticket);
            let end = runtime.wait(ticket);
            (end, ended_at.unwrap_or_else(|| runtime.now()))
        })
    }

    /// Waits by calling `wait`, and returns the buffer together with the other value.
    pub(super) fn wait_by<R>(
        mut self,
        wait: impl FnOnce(&Runtime, Ticket) -> (End, R),
    ) -> Result<(B, R), WorkError<B>> {
        let (ticket, claim) = self.take();
        let runtime = match self.core.parts.runtime.get() {
            Ok(runtime) => runtime,
            Err(error) => return Err(refused(claim, error)),
        };
        runtime.forget_waker(ticket);
        let (end, more) = wait(runtime, ticket);
        returned_buffer(end, claim).map(|buffer| (buffer, more))
    }

    /// Returns a handle whose `wait` does not return the buffer. The buffer is dropped when the
    /// operation completes.
    pub(super) fn without_buffer(mut self) -> Work<()>
    where
        B: 'static,
    {
        let (ticket, claim) = self.take();
        Work {
            core: self.core.clone(),
            under_way: Some((ticket, claim.without_buffer())),
        }
    }

    fn take(&mut self) -> (Ticket, Claim<B>) {
        let under_way = self.under_way.take();
        under_way.expect("a `Work` must not be polled again after it has returned `Ready`")
    }
}

/// Returns the error and the buffer for a forked child that uses an operation started by its
/// parent.
fn refused<B>(claim: Claim<B>, error: Error) -> WorkError<B> {
    let buffer = claim.take().expect("invariant: a forked child is refused");
    WorkError { error, buffer }
}

/// Returns the buffer of a completed operation, together with the error if the operation failed.
fn returned_buffer<B>((memory, result): End, claim: Claim<B>) -> Result<B, WorkError<B>> {
    let buffer = release(memory, claim);
    match result {
        Ok(()) => Ok(buffer),
        Err(error) => Err(WorkError { error, buffer }),
    }
}

/// Returns the buffer that the regions of an operation hold.
fn release<B>(memory: Memory, claim: Claim<B>) -> B {
    let buffer = claim.release(memory.input, memory.output);
    buffer.expect("invariant: an operation returns the regions that it was given")
}

impl<B> Future for Work<B> {
    type Output = Result<B, WorkError<B>>;

    /// # Panics
    /// Panics if it is called again after it has returned `Ready`.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (ticket, claim) = self.take();
        let runtime = match self.core.parts.runtime.get() {
            Ok(runtime) => runtime,
            Err(error) => return Poll::Ready(Err(refused(claim, error))),
        };
        let end = runtime.poll_for(ticket, context.waker());
        match end {
            Some(end) => Poll::Ready(returned_buffer(end, claim)),
            None => {
                self.under_way = Some((ticket, claim));
                Poll::Pending
            }
        }
    }
}

impl<B> Drop for Work<B> {
    fn drop(&mut self) {
        if let Some((ticket, _)) = self.under_way.take()
            && let Ok(runtime) = self.core.parts.runtime.get()
        {
            runtime.abandon(ticket);
        }
    }
}
