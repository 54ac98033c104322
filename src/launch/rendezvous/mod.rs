//! Connects the launchers on several hosts and makes them stop together.
//!
//! The launcher that can bind to the meeting point's `HOST:PORT` becomes the *coordinator* and node
//! 0. The other launchers are *members*. They connect to the coordinator in any order and keep
//! retrying until the timeout expires. Every connection belongs to the control plane (see
//! [`links`]): both ends prove that they have the job's secret, and every message is authenticated.
//!
//! ```text
//! member → coordinator    Join: the settings from the command line
//! coordinator → member    Refused, or, when all have joined, Start: node rank and rank 0's port
//! member → coordinator    Failed: the cause that it knows;  Finished: all its ranks succeeded
//! coordinator → member    End: the cause that all launchers print;  Done: all ranks succeeded
//! coordinator → member    Restart: stop the ranks
//! member → coordinator    Stopped: no rank is left on this host
//! coordinator → member    Again, when no rank is left on any host: the next attempt, rank 0's
//!                         port, and the table of link speeds, once a rank 0 has measured it
//! ```
//! After the first failure, the coordinator briefly waits for a better cause, because a rank that
//! has lost its peer also fails. The coordinator then sends the cause to all members. If a
//! connection closes before the job ends, the launcher at the other end has died. Its ranks die
//! with it, and the job ends because no other launcher can start ranks on that host. `Stopped` is
//! the last message that a launcher sends about an attempt. All later messages concern the next
//! attempt, so messages do not need an attempt number.

mod coordinator;
mod gather;
mod links;
mod member;

use super::attempt::run_id;
use super::event::{Event, Events, Met};
use super::job::{Job, Rendezvous};
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

/// The pause between attempts to reach the coordinator.
const ATTEMPT_PAUSE: Duration = Duration::from_millis(100);

/// Connects to the other launchers of `job` within `timeout`.
///
/// # Errors
/// Returns `ErrorKind::Configuration` if the endpoint is invalid; `ErrorKind::Join` if launchers
/// are still missing when the timeout expires, cannot be reached, or have contradictory settings.
pub(super) fn meet(
    job: &Job,
    rendezvous: &Rendezvous,
    secret: &Secret,
    timeout: Duration,
    events: &Events,
) -> Result<Met> {
    let deadline = Instant::now() + timeout;
    let addresses = resolve("--rdzv-endpoint", &rendezvous.endpoint, deadline)?;
    if addresses.iter().any(|address| address.port() == 0) {
        let endpoint = &rendezvous.endpoint;
        let message = format!("--rdzv-endpoint {endpoint} has port 0; choose a fixed port");
        return Err(Error::configuration(message));
    }
    let join = Join {
        id: job.id.clone(),
        nodes: rendezvous.nodes,
        ranks: job.ranks,
        max_restarts: job.max_restarts,
        node_rank: rendezvous.node_rank,
        host: host_name(),
        process: std::process::id(),
    };
    let may_coordinate = rendezvous.node_rank.is_none_or(|node_rank| node_rank == 0);
    let mut notices = Notices::new();
    let mut is_turned_away = false;
    loop {
        if may_coordinate && let Some(listener) = bind(&rendezvous.endpoint, &addresses)? {
            let own = (join, run_id(job)?);
            return gather::gather(own, rendezvous, secret, listener, deadline, events);
        }
        let mut failure = String::new();
        for address in &addresses {
            match member::join(&join, rendezvous, secret, *address, deadline, events)? {
                member::Joined::Met(met) => return Ok(met),
                member::Joined::NotYet(why) => failure = why,
                member::Joined::Rejected(why) => {
                    if !std::mem::replace(&mut is_turned_away, true) {
                        streams::print_line(&format!("{why}; retrying"));
                    }
                    failure = why;
                }
            }
        }
        if let Some(seconds) = notices.due() {
            let at = &rendezvous.endpoint;
            let line = format!(
                "still cannot reach the launcher of node 0 at {at} after {seconds} s: {failure}"
            );
            streams::print_line(&line);
        }
        if Instant::now() + ATTEMPT_PAUSE >= deadline {
            return Err(Error::join(format!(
                "cannot reach the launcher of node 0 at {}: {failure}; check that the address \
                 belongs to a host of this job and that no firewall blocks the port",
                rendezvous.endpoint
            )));
        }
        thread::sleep(ATTEMPT_PAUSE);
    }
}

/// Returns the next event, or `None` once `deadline` has passed. Prints the notices that become due
/// in the meantime. `line` returns the text of a notice, given the number of seconds waited so far.
fn next_event(
    events: &Events,
    deadline: Instant,
    notices: &mut Notices,
    line: impl Fn(u64) -> String,
) -> Option<Event> {
    loop {
        let event = events.1.recv_deadline(deadline.min(notices.next())).ok();
        if let Some(seconds) = notices.due() {
            streams::print_line(&line(seconds));
        }
        if event.is_some() || Instant::now() >= deadline {
            return event;
        }
    }
}

/// Binds the coordinator's socket. Returns `None` if another launcher on this host holds the
/// address, or if none of the addresses belongs to this host.
fn bind(endpoint: &str, addresses: &[SocketAddr]) -> Result<Option<TcpListener>> {
    for address in addresses {
        match address::listen(*address) {
            Ok(listener) => return Ok(Some(listener)),
            // Another launcher is the coordinator. If this launcher tried the next address of the
            // same name, two launchers on one host could end up waiting for each other.
            Err(error) if error.kind() == ErrorKind::AddrInUse => return Ok(None),
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable => {}
            Err(error) => {
                return Err(Error::join(format!("cannot listen on {endpoint}: {error}")));
            }
        }
    }
    Ok(None)
}
