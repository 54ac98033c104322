//! Prints messages about long waits to standard error.

use crate::error::Printable;
use crate::limits::{START_NOTICE_AFTER, START_TOLD_EVERY};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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

/// Like [`Notices`], but used by a rank, which prints the messages itself.
pub(crate) struct RankNotices {
    notices: Notices,
    warnings: Warnings,
    speaks: bool,
}

impl RankNotices {
    /// Creates the schedule for a wait that begins now. If `speaks` is `false`, no message is
    /// printed, because another rank on the host prints the messages.
    pub(crate) fn new(speaks: bool) -> Self {
        Self {
            notices: Notices::new(),
            warnings: Warnings::default(),
            speaks,
        }
    }

    /// Returns the instant at which the next message is due.
    pub(crate) fn next(&self) -> Instant {
        self.notices.next()
    }

    /// Prints a message if one is due. `line` creates the message from the number of seconds
    /// waited so far.
    pub(crate) fn still(&mut self, line: impl FnOnce(u64) -> String) {
        if let Some(seconds) = self.notices.due() {
            self.now(|| line(seconds));
        }
    }

    /// Prints a message immediately.
    pub(crate) fn now(&self, line: impl FnOnce() -> String) {
        if self.speaks {
            self.warnings.show(line());
        }
    }
}

/// Prints messages without waiting for the reader of standard error. Until a message has been
/// written completely, later messages are dropped.
#[derive(Clone, Default)]
pub(crate) struct Warnings {
    /// `true` while a message is being written.
    is_shown: Arc<AtomicBool>,
}

impl Warnings {
    /// Prints `line`, or drops it if an earlier message is still being written.
    pub(crate) fn show(&self, line: String) {
        if self.is_shown.swap(true, Ordering::Relaxed) {
            return;
        }
        let is_shown = Arc::clone(&self.is_shown);
        let show = move || {
            // If standard error is not available, the rank continues without the message.
            let _ = std::io::stderr().write_all(shown(&line).as_bytes());
            is_shown.store(false, Ordering::Relaxed);
        };
        let thread = std::thread::Builder::new().name("ringtree-warning".into());
        if thread.spawn(show).is_err() {
            self.is_shown.store(false, Ordering::Relaxed);
        }
    }
}

/// Returns the text to print for `line`. Parts of the line may come from peers, so control
/// characters are escaped.
fn shown(line: &str) -> String {
    format!("ringtree: {}\n", Printable(line))
}

#[cfg(test)]
mod tests;
