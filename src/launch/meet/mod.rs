//! How the launchers of several hosts find each other, and end together.
//!
//! The launcher that can bind the meeting's `HOST:PORT` is the *coordinator* and node 0; the
//! others are *members* and connect to it, in any order, trying again until the timeout. Every
//! connection is mutually authenticated by the job's secret before anything is believed, and every
//! message after that carries its own proof.
//!
//! ```text
//! member → coordinator    Join: the settings of its command line
//! coordinator → member    Refused, or, when all have come, Start: its place and rank 0's port
//! member → coordinator    Failed: a first cause, as far as it knows;  Finished: all ranks well
//! coordinator → member    End: the one cause that everybody tells;  Done: all ranks everywhere
//! coordinator → member    Restart: stop your ranks
//! member → coordinator    Stopped: none is left here
//! coordinator → member    Again, when none is left anywhere: the next attempt and rank 0's port
//! ```
//! The coordinator waits a moment after the first failure for a better cause (a rank that lost its
//! peer fails too, but is not the cause), then tells all. A connection that ends without a last
//! word is a launcher that died; its ranks die with it, and the job ends, for the others cannot
//! start ranks there. `Stopped` is the last word about an attempt, so what a launcher says after it
//! is about the next one, and messages need not name theirs.

mod coordinator;
mod gather;
pub(super) mod link;
mod member;
mod message;

use super::attempt::{Attempt, Placement, run_id};
use super::job::{Events, Job, Meeting};
use super::peers::Peers;
use crate::error::{Error, Result};
use crate::limits::DEADLINE_DEFAULT;
use crate::protocol::handshake::Secret;
use message::Join;
use std::env;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

/// Between two attempts to reach the coordinator.
const ATTEMPT_PAUSE: Duration = Duration::from_millis(100);
/// One attempt to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// A launcher that has met the others.
pub(super) struct Met {
    /// Its place.
    pub(super) placement: Placement,
    /// The first attempt.
    pub(super) attempt: Attempt,
    /// The others.
    pub(super) peers: Box<dyn Peers>,
}

/// Meets the other launchers of `job`.
///
/// # Errors
/// [`Error::Configuration`] for an endpoint that cannot be one; [`Error::Join`] when the others
/// did not come in time, cannot be reached, or have other settings.
pub(super) fn meet(job: &Job, meeting: &Meeting, secret: &Secret, events: &Events) -> Result<Met> {
    let addresses = resolve(&meeting.endpoint)?;
    let deadline = Instant::now() + timeout()?;
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
    loop {
        if may_coordinate && let Some(listener) = bind(&meeting.endpoint, &addresses)? {
            let own = (join, run_id(job)?);
            return gather::gather(own, meeting, secret, listener, deadline, events);
        }
        let failure = match connect(&addresses, deadline) {
            Ok(stream) => match member::join(&join, meeting, secret, stream, deadline, events)? {
                member::Attempt::Met(met) => return Ok(met),
                member::Attempt::Again(failure) => failure,
            },
            Err(failure) => failure,
        };
        if Instant::now() + ATTEMPT_PAUSE >= deadline {
            return Err(Error::Join(format!(
                "cannot reach the launcher of node 0 at {}: {failure}; check that the address is \
                 one of a host of this job and that no firewall stands between",
                meeting.endpoint
            )));
        }
        thread::sleep(ATTEMPT_PAUSE);
    }
}

/// This host's name, for messages; never resolved.
pub(super) fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    super::cause::printable(name.as_bytes())
}

fn resolve(endpoint: &str) -> Result<Vec<SocketAddr>> {
    let wrong = |why: &str| {
        let message = format!("--rdzv-endpoint {endpoint} is no HOST:PORT to meet at: {why}");
        Error::Configuration(message)
    };
    let found = endpoint
        .to_socket_addrs()
        .map_err(|error| wrong(&error.to_string()))?;
    let addresses: Vec<_> = found.collect();
    if addresses.is_empty() {
        return Err(wrong("the name has no address"));
    }
    if addresses.iter().any(|address| address.port() == 0) {
        return Err(wrong("the port must be chosen, the same for all hosts"));
    }
    if addresses
        .iter()
        .any(|address| address.ip().is_unspecified())
    {
        return Err(wrong("name one host, not any address"));
    }
    Ok(addresses)
}

/// How long the launchers wait for each other: the same setting as for the ranks.
fn timeout() -> Result<Duration> {
    const VARIABLE: &str = "RINGTREE_TIMEOUT_MS";
    match env::var(VARIABLE) {
        Ok(text) if !text.is_empty() => text.parse().map(Duration::from_millis).map_err(|_| {
            Error::Configuration(format!(
                "{VARIABLE} is '{text}', not a number of milliseconds"
            ))
        }),
        _ => Ok(DEADLINE_DEFAULT),
    }
}

/// The socket of the coordinator, if this host has one of the addresses and it is free.
fn bind(endpoint: &str, addresses: &[SocketAddr]) -> Result<Option<TcpListener>> {
    for address in addresses {
        match TcpListener::bind(address) {
            Ok(listener) => return Ok(Some(listener)),
            // Somebody coordinates already. The next address of the same name must not be tried:
            // two launchers of one host would each wait for the other.
            Err(error) if error.kind() == ErrorKind::AddrInUse => return Ok(None),
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable => {}
            Err(error) => {
                return Err(Error::Join(format!("cannot listen on {endpoint}: {error}")));
            }
        }
    }
    Ok(None)
}

fn connect(addresses: &[SocketAddr], deadline: Instant) -> std::result::Result<TcpStream, String> {
    let mut failure = "no address".to_owned();
    for address in addresses {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        match TcpStream::connect_timeout(address, left.min(CONNECT_TIMEOUT)) {
            // A port that nobody serves can be reached from itself when the kernel happens to
            // choose it as the connection's own.
            Ok(stream) if stream.local_addr().ok() == Some(*address) => {
                failure = "connection refused".to_owned();
            }
            Ok(stream) => return Ok(stream),
            Err(error) => failure = error.to_string(),
        }
    }
    Err(failure)
}
