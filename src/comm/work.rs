//! Handles of operations under way.

use super::Core;
use crate::dtype::Element;
use crate::engine::Ticket;
use crate::error::{Error, Result};
use crate::sys::memory::Region;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

/// An operation under way that owns its buffer. It goes on by itself; [`Work::wait`] gives the
/// buffer back. Dropping it lets the operation finish and the buffer go.
///
/// It keeps its communicator's group alive: the goodbye waits for the last handle.
#[must_use = "the result of the operation comes from `wait`"]
pub struct Work<T> {
    core: Arc<Core>,
    ticket: Option<Ticket>,
    element: PhantomData<T>,
}

impl<T: Element> Work<T> {
    pub(super) fn new(core: Arc<Core>, ticket: Ticket) -> Self {
        Self {
            core,
            ticket: Some(ticket),
            element: PhantomData,
        }
    }

    /// Waits for the operation and returns the buffer.
    ///
    /// # Errors
    /// Any of [`Error`]; the buffer is lost then, its contents being unspecified.
    pub fn wait(self) -> Result<Vec<T>> {
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
        self.ticket
            .is_none_or(|ticket| self.core.parts.runtime.has_ended(ticket))
    }

    /// As `wait`, with the moment of the end on the rank's clock.
    pub(crate) fn wait_timed(mut self) -> Result<(Vec<T>, Duration)> {
        let taken = Error::usage("the operation was waited for already");
        let ticket = self.ticket.take().ok_or(taken)?;
        let runtime = &self.core.parts.runtime;
        let (_, ended_at) = runtime.ended(ticket);
        let (memory, result) = runtime.wait(ticket);
        let ended_at = ended_at.unwrap_or_else(|| runtime.now());
        result?;
        let other = Error::usage("the operation's buffer is of another type");
        memory
            .output
            .and_then(Region::into_vector)
            .map(|buffer| (buffer, ended_at))
            .ok_or(other)
    }
}

impl<T> Drop for Work<T> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.core.parts.runtime.abandon(ticket);
        }
    }
}
