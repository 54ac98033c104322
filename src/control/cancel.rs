//! How another thread ends a wait of the join early.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A wait that can be cancelled looks at least so often whether it was.
const LOOK_EVERY: Duration = Duration::from_millis(50);

type Act = Box<dyn FnOnce() + Send>;

/// Whether something was cancelled; all clones are one. By default it never is.
#[derive(Clone, Default)]
pub(crate) struct Cancel(Option<Arc<Inner>>);

#[derive(Default)]
struct Inner {
    is_cancelled: AtomicBool,
    /// What ends the wait that is under way.
    act: Mutex<Option<Act>>,
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Option<Act>> {
        self.act.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Cancel {
    /// One that can be cancelled.
    #[must_use]
    pub(crate) fn new() -> Self {
        Self(Some(Arc::default()))
    }

    /// Cancels, for ever.
    pub(crate) fn cancel(&self) {
        let Some(inner) = &self.0 else {
            return;
        };
        let mut act = inner.lock();
        inner.is_cancelled.store(true, Ordering::Relaxed);
        if let Some(act) = act.take() {
            act();
        }
    }

    /// Whether it was cancelled.
    #[must_use]
    pub(crate) fn is_cancelled(&self) -> bool {
        let inner = self.0.as_ref();
        inner.is_some_and(|inner| inner.is_cancelled.load(Ordering::Relaxed))
    }

    /// When a wait that ends at `until` must look here: by then, and soon if it can be cancelled.
    #[must_use]
    pub(crate) fn look_by(&self, until: Instant) -> Instant {
        match self.0 {
            Some(_) => until.min(Instant::now() + LOOK_EVERY),
            None => until,
        }
    }

    /// From now on cancelling also runs `act`, once; at once if it was cancelled before.
    pub(crate) fn on_cancel(&self, act: impl FnOnce() + Send + 'static) {
        let Some(inner) = &self.0 else {
            return;
        };
        let mut place = inner.lock();
        match inner.is_cancelled.load(Ordering::Relaxed) {
            true => act(),
            false => *place = Some(Box::new(act)),
        }
    }

    /// Forgets what cancelling was to run; whether it was cancelled before.
    #[must_use]
    pub(crate) fn disarm(&self) -> bool {
        if let Some(inner) = &self.0 {
            inner.lock().take();
        }
        self.is_cancelled()
    }
}

impl fmt::Debug for Cancel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Cancel({})", self.is_cancelled())
    }
}
