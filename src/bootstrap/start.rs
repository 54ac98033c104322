//! Holds the values that a program provides for its join in addition to the environment.

use super::store::Store;
use super::unique_id::UniqueId;
use crate::control::cancel::Cancel;
use std::fmt;
use std::sync::Arc;

/// Values that a program provides for its join. All are unset by default.
#[derive(Clone, Default)]
pub(crate) struct Start {
    /// The store through which the ranks receive the unique ID.
    pub(crate) store: Option<Arc<dyn Store>>,
    /// The unique ID, which reserves its port while ranks join.
    pub(super) id: Option<UniqueId>,
    /// Cancels the join.
    pub(crate) cancel: Cancel,
    /// Interrupts a waiting call.
    pub(crate) interrupt: Option<Interrupt>,
}

/// A function that returns `true` if the user has interrupted the calling thread.
pub(crate) type Interrupt = Arc<dyn Fn() -> bool + Send + Sync>;

impl fmt::Debug for Start {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (has_store, has_interrupt) = (self.store.is_some(), self.interrupt.is_some());
        let fields = (has_store, &self.id, &self.cancel, has_interrupt);
        write!(formatter, "Start{fields:?}")
    }
}
