//! Lines that tell the user of a wait, on standard error.

use crate::error::Printable;
use crate::limits::{START_TOLD_AFTER, START_TOLD_EVERY};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// When a start that waits for other processes tells the user so: first after
/// [`START_TOLD_AFTER`], then each [`START_TOLD_EVERY`].
pub(crate) struct Notices {
    began: Instant,
    next: Instant,
}

impl Notices {
    /// The wait begins now.
    pub(crate) fn new() -> Self {
        let began = Instant::now();
        Self {
            began,
            next: began + START_TOLD_AFTER,
        }
    }

    /// When the next line is due.
    pub(crate) fn next(&self) -> Instant {
        self.next
    }

    /// How many seconds the wait has lasted, if a line is due; the next one is due later then.
    pub(crate) fn due(&mut self) -> Option<u64> {
        let now = Instant::now();
        (now >= self.next).then(|| {
            self.next = now + START_TOLD_EVERY;
            now.duration_since(self.began).as_secs()
        })
    }
}

/// The same for a rank, which shows its lines itself.
pub(crate) struct RankNotices {
    notices: Notices,
    warnings: Warnings,
    speaks: bool,
}

impl RankNotices {
    /// The wait begins now. A rank that does not speak leaves it to another one of its host.
    pub(crate) fn new(speaks: bool) -> Self {
        Self {
            notices: Notices::new(),
            warnings: Warnings::default(),
            speaks,
        }
    }

    /// When the next line is due.
    pub(crate) fn next(&self) -> Instant {
        self.notices.next()
    }

    /// Shows the line that `line` makes of the seconds of the wait, if one is due.
    pub(crate) fn still(&mut self, line: impl FnOnce(u64) -> String) {
        if let Some(seconds) = self.notices.due() {
            self.now(|| line(seconds));
        }
    }

    /// Shows a line.
    pub(crate) fn now(&self, line: impl FnOnce() -> String) {
        if self.speaks {
            self.warnings.show(line());
        }
    }
}

/// Shows lines, and does not wait until the reader of standard error takes them: while one line has
/// not been taken, later ones are dropped.
#[derive(Clone, Default)]
pub(crate) struct Warnings {
    /// Whether a line has yet to be taken.
    is_shown: Arc<AtomicBool>,
}

impl Warnings {
    /// Shows `line`, or drops it.
    pub(crate) fn show(&self, line: String) {
        if self.is_shown.swap(true, Ordering::Relaxed) {
            return;
        }
        let is_shown = Arc::clone(&self.is_shown);
        let show = move || {
            // A rank without standard error goes on.
            let _ = std::io::stderr().write_all(shown(&line).as_bytes());
            is_shown.store(false, Ordering::Relaxed);
        };
        let thread = std::thread::Builder::new().name("ringtree-warning".into());
        if thread.spawn(show).is_err() {
            self.is_shown.store(false, Ordering::Relaxed);
        }
    }
}

/// The bytes that a terminal gets for `line`, parts of which may come from peers.
fn shown(line: &str) -> String {
    format!("ringtree: {}\n", Printable(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_control_character_of_a_peer_reaches_a_warning() {
        let line = shown("rank 1 waits, on \u{1b}]0;owned\u{7}\u{1b}[2J\nrank 2: all is well");
        assert!(line.ends_with("\\nrank 2: all is well\n") && line.contains("\\u{1b}]0;owned"));
        assert_eq!(line.matches(char::is_control).count(), 1);
    }
}
