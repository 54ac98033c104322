//! Handles of operations under way.

use super::Core;
use crate::dtype::Element;
use crate::engine::Ticket;
use crate::error::{Error, Result};
use std::marker::PhantomData;
use std::sync::Arc;

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
    pub fn wait(mut self) -> Result<Vec<T>> {
        let taken = Error::Usage("the operation was waited for already".into());
        let ticket = self.ticket.take().ok_or(taken)?;
        let (region, result) = self.core.parts.runtime.wait(ticket);
        result?;
        let other = Error::Usage("the operation's buffer is of another type".into());
        region.into_vector().ok_or(other)
    }
}

impl<T> Drop for Work<T> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.core.parts.runtime.abandon(ticket);
        }
    }
}
