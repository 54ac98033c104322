//! How the launchers of several hosts find each other, and end together.
//!
//! The launcher that can bind the meeting's `HOST:PORT` is the *coordinator* and node 0; the
//! others are *members* and connect to it, in any order, trying again until the timeout. Every
//! connection is one of the control plane's ([`links`]): both ends prove that they hold the job's
//! secret, and every message carries its own proof.
//!
//! ```text
//! member → coordinator    Join: the settings of its command line
//! coordinator → member    Refused, or, when all have come, Start: its place and rank 0's port
//! member → coordinator    Failed: a first cause, as far as it knows;  Finished: all ranks well
//! coordinator → member    End: the one cause that all launchers print;  Done: all ranks everywhere
//! coordinator → member    Restart: stop your ranks
//! member → coordinator    Stopped: none is left here
//! coordinator → member    Again, when none is left anywhere: the next attempt, rank 0's port, and
//!                         the table of link speeds, once a rank 0 has measured it
//! ```
//! The coordinator waits a moment after the first failure for a better cause (a rank that lost its
//! peer fails too, but is not the cause), then tells all. A connection that ends before the job
//! belongs to a launcher that died. Its ranks die with it, and the job ends, for the others cannot
//! start ranks on that host. `Stopped` is a launcher's last message about an attempt, so what
//! follows it is about the next attempt, and messages need not name theirs.

mod coordinator;
mod gather;
mod links;
mod member;

use super::attempt::run_id;
use super::event::{Event, Events, Met};
use super::job::{Job, Meeting};
use super::message::Join;
use super::streams;
use crate::bootstrap::address::{self, host_name, resolve};
use crate::control::notices::Notices;
use crate::error::{Error, Result};
use crate::protocol::handshake::Secret;
use mio::net::TcpListener;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

/// Between two attempts to reach the coordinator.
const ATTEMPT_PAUSE: Duration = Duration::from_millis(100);

/// Meets the other launchers of `job`, for at most `timeout`.
///
/// # Errors
/// [`Error::configuration`] for an endpoint that cannot be one; [`Error::join`] when the others
/// did not come in time, cannot be reached, or have other settings.
pub(super) fn meet(
    job: &Job,
    meeting: &Meeting,
    secret: &Secret,
    timeout: Duration,
    events: &Events,
) -> Result<Met> {
    let deadline = Instant::now() + timeout;
    let addresses = resolve("--rdzv-endpoint", &meeting.endpoint, deadline)?;
    if addresses.iter().any(|address| address.port() == 0) {
        let endpoint = &meeting.endpoint;
        let message = format!("--rdzv-endpoint {endpoint}: choose a port, the same for all hosts");
        return Err(Error::configuration(message));
    }
    let join = Join {
        id: job.id.clone(),
        nodes: meeting.nodes,
        ranks: job.ranks,
        max_restarts: job.max_restarts,
        node_rank: meeting.node_rank,
        host: host_name(),
        process: std::process::id(),
    };
    let may_coordinate = meeting.node_rank.is_none_or(|node_rank| node_rank == 0);
    let mut notices = Notices::new();
    let mut is_turned_away = false;
    loop {
        if may_coordinate && let Some(listener) = bind(&meeting.endpoint, &addresses)? {
            let own = (join, run_id(job)?);
            return gather::gather(own, meeting, secret, listener, deadline, events);
        }
        let mut failure = String::new();
        for address in &addresses {
            match member::join(&join, meeting, secret, *address, deadline, events)? {
                member::Joined::Met(met) => return Ok(met),
                member::Joined::NotYet(why) => failure = why,
                member::Joined::TurnedAway(why) => {
                    if !std::mem::replace(&mut is_turned_away, true) {
                        streams::say(&format!("{why}; this launcher tries again"));
                    }
                    failure = why;
                }
            }
        }
        if let Some(seconds) = notices.due() {
            let at = &meeting.endpoint;
            let line = format!("no launcher of node 0 at {at} for {seconds} s: {failure}");
            streams::say(&line);
        }
        if Instant::now() + ATTEMPT_PAUSE >= deadline {
            return Err(Error::join(format!(
                "cannot reach the launcher of node 0 at {}: {failure}; check that the address is \
                 one of a host of this job and that no firewall stands between",
                meeting.endpoint
            )));
        }
        thread::sleep(ATTEMPT_PAUSE);
    }
}

/// The next event, if there is one by `deadline`. The user is told of a wait that has lasted for so
/// many seconds by `line`.
fn next_event(
    events: &Events,
    deadline: Instant,
    notices: &mut Notices,
    line: impl Fn(u64) -> String,
) -> Option<Event> {
    loop {
        let event = events.1.recv_deadline(deadline.min(notices.next())).ok();
        if let Some(seconds) = notices.due() {
            streams::say(&line(seconds));
        }
        if event.is_some() || Instant::now() >= deadline {
            return event;
        }
    }
}

/// The socket of the coordinator, if this host has one of the addresses and it is free.
fn bind(endpoint: &str, addresses: &[SocketAddr]) -> Result<Option<TcpListener>> {
    for address in addresses {
        match address::listen(*address) {
            Ok(listener) => return Ok(Some(listener)),
            // Another launcher coordinates. The next address of the same name must not be tried:
            // two launchers of one host would each wait for the other.
            Err(error) if error.kind() == ErrorKind::AddrInUse => return Ok(None),
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable => {}
            Err(error) => {
                return Err(Error::join(format!("cannot listen on {endpoint}: {error}")));
            }
        }
    }
    Ok(None)
}
