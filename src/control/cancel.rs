//! Lets another thread cancel a wait during the join.

use crate::lock::lock;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Maximum time between two checks of the flag in a cancelable wait.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

type Act = Box<dyn FnOnce() + Send>;

/// A cancellation flag that all clones share. The default flag cannot be set.
#[derive(Clone, Default)]
pub(crate) struct Cancel(Option<Arc<Inner>>);

#[derive(Default)]
struct Inner {
    is_canceled: AtomicBool,
    /// An action that ends the current wait.
    act: Mutex<Option<Act>>,
}

impl Cancel {
    /// Creates a flag that can be set.
    #[must_use]
    pub(crate) fn new() -> Self {
        Self(Some(Arc::default()))
    }

    /// Sets the flag permanently and runs the action that was passed to [`Cancel::on_cancel`].
    pub(crate) fn cancel(&self) {
        let Some(inner) = &self.0 else {
            return;
        };
        let mut act = lock(&inner.act);
        inner.is_canceled.store(true, Ordering::Relaxed);
        if let Some(act) = act.take() {
            act();
        }
    }

    /// Returns `true` if the flag is set.
    #[must_use]
    pub(crate) fn is_canceled(&self) -> bool {
        let inner = self.0.as_ref();
        inner.is_some_and(|inner| inner.is_canceled.load(Ordering::Relaxed))
    }

    /// Returns the instant at which a wait that ends at `until` must check the flag next: `until`
    /// itself, or an earlier instant if the flag can be set.
    #[must_use]
    pub(crate) fn next_check(&self, until: Instant) -> Instant {
        match self.0 {
            Some(_) => until.min(Instant::now() + CHECK_INTERVAL),
            None => until,
        }
    }

    /// Sets the action that [`Cancel::cancel`] runs once. If the flag is already set, runs it
    /// immediately.
    pub(crate) fn on_cancel(&self, act: impl FnOnce() + Send + 'static) {
        let Some(inner) = &self.0 else {
            return;
        };
        let mut place = lock(&inner.act);
        match inner.is_canceled.load(Ordering::Relaxed) {
            true => act(),
            false => *place = Some(Box::new(act)),
        }
    }

    /// Removes the action. Returns `true` if the flag is set.
    #[must_use]
    pub(crate) fn disarm(&self) -> bool {
        if let Some(inner) = &self.0 {
            lock(&inner.act).take();
        }
        self.is_canceled()
    }
}

impl fmt::Debug for Cancel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Cancel({})", self.is_canceled())
    }
}
