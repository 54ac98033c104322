//! Handles of operations under way.

use super::Handle;
use crate::engine::Ticket;
use crate::engine::group::End;
use crate::error::{Error, Result};
use crate::sys::memory::{Claim, Region};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// An operation under way that owns its buffer, which may be a `Vec`, a `Box<[T]>`, a
/// [`SharedBuffer`](crate::SharedBuffer) or any other [`Buffer`](crate::Buffer) that threads may
/// hand on. The operation goes on by itself; [`Work::wait`] gives the buffer back. Dropping the
/// `Work` lets the operation finish and the buffer go.
///
/// It is a [`Future`] too, for any executor: the thread that ends the operation rings the waker.
/// An executor that drops the future detaches the operation, which cannot be cancelled.
///
/// It keeps its communicator's group alive: the goodbye waits for the last handle.
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
///     // `block_on` stands for the executor that the program has.
///     block_on(async {
///         let sum = comm.all_reduce_async(vec![1.0f32; 4], ReduceOp::Sum)?.await?;
///         Ok::<_, ringtree::Error>(sum)
///     })
/// });
/// assert_eq!(sums[0], Ok(vec![2.0; 4]));
/// ```
#[must_use = "the result of the operation comes from `wait`"]
pub struct Work<B> {
    core: Handle,
    /// Until the buffer was given back.
    under_way: Option<(Ticket, Claim<B>)>,
}

/// An operation that failed, with the buffer that it was given, whose content is unspecified. The
/// operator `?` makes an [`Error`] of it.
///
/// ```
/// use ringtree::{Error, ReduceOp};
/// let ends = ringtree::simulate(2, |comm| {
///     comm.fail(&Error::system("the disk is full"));
///     let work = comm.all_reduce_async(vec![1u8; 9], ReduceOp::Sum);
///     let failed = work.and_then(ringtree::Work::wait).unwrap_err();
///     assert!(failed.error.to_string().contains("the disk is full"));
///     failed.buffer.len()
/// });
/// assert_eq!(ends, [9, 9]);
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Failed<B> {
    /// Why it failed.
    pub error: Error,
    /// The buffer.
    pub buffer: B,
}

impl<B> From<Failed<B>> for Error {
    fn from(failed: Failed<B>) -> Self {
        failed.error
    }
}

impl<B> fmt::Display for Failed<B> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(formatter)
    }
}

/// The error, without the buffer, which may be large.
impl<B> fmt::Debug for Failed<B> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(formatter)
    }
}

impl<B> std::error::Error for Failed<B> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl<B: 'static> Work<B> {
    /// The operation of this ticket, whose memory is a region that holds a `B`.
    pub(super) fn new(core: Handle, ticket: Ticket, claim: Claim<B>) -> Self {
        Self {
            core,
            under_way: Some((ticket, claim)),
        }
    }

    /// Waits for the operation and returns the buffer.
    ///
    /// # Errors
    /// Any of [`Error`], with the buffer, whose contents are unspecified then.
    pub fn wait(self) -> Result<B, Failed<B>> {
        self.wait_timed().map(|(buffer, _)| buffer)
    }

    /// Whether the operation has ended, so that `wait` would return at once; what is under way
    /// advances meanwhile.
    ///
    /// ```
    /// use ringtree::ReduceOp;
    /// let ends = ringtree::simulate(2, |comm| {
    ///     let work = comm.all_reduce_async(vec![1.0f32], ReduceOp::Sum)?;
    ///     while !work.has_ended() {
    ///         ringtree::sim::simulate::sleep(comm, std::time::Duration::from_millis(1));
    ///     }
    ///     work.wait()
    /// });
    /// assert_eq!(ends, vec![Ok(vec![2.0]); 2]);
    /// ```
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let under_way = self
            .under_way
            .as_ref()
            .zip(self.core.parts.runtime.get().ok());
        under_way.is_none_or(|((ticket, _), runtime)| runtime.has_ended(*ticket))
    }

    /// As `wait`, with the moment of the end on the rank's clock.
    pub(crate) fn wait_timed(mut self) -> Result<(B, Duration), Failed<B>> {
        let (ticket, claim) = self.take();
        let runtime = match self.core.parts.runtime.get() {
            Ok(runtime) => runtime,
            Err(error) => return Err(refused(claim, error)),
        };
        runtime.forget_waker(ticket);
        let (_, ended_at) = runtime.ended(ticket);
        let end = runtime.wait(ticket);
        let ended_at = ended_at.unwrap_or_else(|| runtime.now());
        given_back(end).map(|buffer| (buffer, ended_at))
    }

    fn take(&mut self) -> (Ticket, Claim<B>) {
        let under_way = self.under_way.take();
        under_way.expect("a `Work` must not be polled after it was ready")
    }
}

/// What a forked child gets of its parent's operation.
fn refused<B>(claim: Claim<B>, error: Error) -> Failed<B> {
    let buffer = claim.take().expect("invariant: a forked child is refused");
    Failed { error, buffer }
}

/// The buffer of an operation that has ended.
fn given_back<B: 'static>((memory, result): End) -> Result<B, Failed<B>> {
    let buffer = release(memory.input.or(memory.output));
    match result {
        Ok(()) => Ok(buffer),
        Err(error) => Err(Failed { error, buffer }),
    }
}

/// The buffer that a region holds.
pub(super) fn release<B: 'static>(region: Option<Region>) -> B {
    let buffer = region.and_then(Region::release);
    buffer.expect("invariant: an operation returns the region that it was given")
}

impl<B: 'static> Future for Work<B> {
    type Output = Result<B, Failed<B>>;

    /// # Panics
    /// If it was ready before.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (ticket, claim) = self.take();
        let runtime = match self.core.parts.runtime.get() {
            Ok(runtime) => runtime,
            Err(error) => return Poll::Ready(Err(refused(claim, error))),
        };
        let end = runtime.poll_for(ticket, context.waker());
        match end {
            Some(end) => Poll::Ready(given_back(end)),
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
