//! What a program brings to its start instead of an environment.

use super::store::Store;
use super::unique_id::UniqueId;
use crate::control::cancel::Cancel;
use std::fmt;
use std::net::TcpListener;
use std::sync::{Arc, Mutex, PoisonError};

/// What a program brings to its start: nothing by default.
#[derive(Clone, Default)]
pub(crate) struct Start {
    /// Where the ranks find the id.
    pub(crate) store: Option<Arc<dyn Store>>,
    /// Where rank 0 waits for the others, until a join has taken it.
    listener: Option<Arc<Mutex<Option<TcpListener>>>>,
    /// Kept while ranks join, for it keeps the port.
    pub(super) id: Option<UniqueId>,
    /// Ends the join early.
    pub(crate) cancel: Cancel,
    /// Ends a call that waits.
    pub(crate) interrupt: Option<Interrupt>,
}

/// Says whether the user has interrupted the thread that asks.
pub(crate) type Interrupt = Arc<dyn Fn() -> bool + Send + Sync>;

impl Start {
    /// Whether the secret is a unique id's.
    pub(super) fn has_id(&self) -> bool {
        self.id.is_some()
    }

    /// Rank 0 waits at `listener`, or nowhere in particular.
    pub(crate) fn listen_at(&mut self, listener: Option<TcpListener>) {
        self.listener = listener.map(|one| Arc::new(Mutex::new(Some(one))));
    }

    /// The listener, if there is one that no join has taken.
    pub(super) fn take_listener(&self) -> Option<TcpListener> {
        let listener = self.listener.as_ref()?.lock();
        listener.unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl fmt::Debug for Start {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            store,
            listener,
            id,
            cancel,
            interrupt,
        } = self;
        let store = store.as_ref().map(|_| "a store");
        let interrupt = interrupt.as_ref().map(|_| "an interrupt");
        write!(
            formatter,
            "Start({store:?}, {listener:?}, {id:?}, {cancel:?}, {interrupt:?})"
        )
    }
}
