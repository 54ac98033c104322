//! Waits for the events of a poll, up to a time limit.

use mio::{Events, Poll};
use std::io::{self, ErrorKind};
use std::time::Instant;

/// Sleeps until `poll` has events or `until` has passed. `None` sets no time limit. May return
/// earlier.
pub(crate) fn wait(poll: &mut Poll, events: &mut Events, until: Option<Instant>) -> io::Result<()> {
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    match poll.poll(events, left) {
        Err(error) if error.kind() != ErrorKind::Interrupted => Err(error),
        _ => Ok(()),
    }
}
