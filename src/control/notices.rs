//! Schedules messages about long waits.

use crate::event::{Event, EventQueue};
use crate::limits::{START_NOTICE_AFTER, START_TOLD_EVERY};
use std::time::Instant;

/// The schedule for messages from a launcher or a rank that is waiting for other processes. The
/// first message is due after [`START_NOTICE_AFTER`], and then one is due every
/// [`START_TOLD_EVERY`].
pub(crate) struct Notices {
    began: Instant,
    next: Instant,
}

impl Notices {
    /// Creates the schedule for a wait that begins now.
    pub(crate) fn new() -> Self {
        let began = Instant::now();
        Self {
            began,
            next: began + START_NOTICE_AFTER,
        }
    }

    /// Returns the instant at which the next message is due.
    pub(crate) fn next(&self) -> Instant {
        self.next
    }

    /// If a message is due, schedules the next one and returns the number of seconds that the wait
    /// has lasted. Otherwise, returns `None`.
    pub(crate) fn due(&mut self) -> Option<u64> {
        let now = Instant::now();
        (now >= self.next).then(|| {
            self.next = now + START_TOLD_EVERY;
            now.duration_since(self.began).as_secs()
        })
    }
}

/// Like [`Notices`], but used by a rank, which emits the messages as warnings.
pub(crate) struct RankNotices {
    rank: usize,
    notices: Notices,
    events: EventQueue,
    speaks: bool,
}

impl RankNotices {
    /// Creates the schedule for a wait of `rank` that begins now. If `speaks` is `false`, no
    /// message is emitted, because another rank on the host emits the messages.
    pub(crate) fn new(rank: usize, speaks: bool) -> Self {
        Self {
            rank,
            notices: Notices::new(),
            events: EventQueue::new(),
            speaks,
        }
    }

    /// Returns the instant at which the next message is due.
    pub(crate) fn next(&self) -> Instant {
        self.notices.next()
    }

    /// Emits a message if one is due. `line` creates the message from the number of seconds
    /// waited so far.
    pub(crate) fn still(&mut self, line: impl FnOnce(u64) -> String) {
        if let Some(seconds) = self.notices.due() {
            self.now(|| line(seconds));
        }
    }

    /// Emits a message immediately.
    pub(crate) fn now(&self, line: impl FnOnce() -> String) {
        if self.speaks {
            self.events.push(Event::Warning {
                rank: Some(self.rank),
                text: line(),
            });
        }
    }
}
