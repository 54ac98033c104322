//! Defines the events that a launcher handles and the interface to the launchers on other hosts.

use super::attempt::{Attempt, Placement};
use super::cause::Cause;
use super::message::Message;
use crate::control::failure::Failure;
use crate::error::{Error, Result};
use crossbeam_channel::{Receiver, Sender};
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

/// An event that the supervising thread receives.
#[derive(Debug)]
pub(super) enum Event {
    /// The local rank with this index exited and must be reaped.
    Ended(usize),
    /// The launcher received this signal.
    Signalled(i32),
    /// An event from another host's launcher.
    Peer(PeerEvent),
}

/// Both ends of the event channel.
pub(super) type Events = (Sender<Event>, Receiver<Event>);

/// An event from another launcher.
#[derive(Debug)]
pub(super) enum PeerEvent {
    /// A message was received on the connection with this ID.
    Message(usize, Message),
    /// The connection with this ID ended.
    Lost(usize),
    /// A connection from this address failed to authenticate as a launcher of the job.
    Rejected(SocketAddr, Failure),
}

/// The state of the job on all hosts.
#[derive(Debug)]
pub(super) enum Status {
    /// Nothing new is known.
    Undecided,
    /// Every rank on every host succeeded.
    Succeeded,
    /// A rank on another host failed.
    Failed(Cause),
    /// The job failed, and every launcher reports this cause.
    Final(Cause),
    /// Every launcher stops its ranks and starts them again.
    Restart {
        /// The cause that every launcher reports.
        cause: Cause,
        /// The time that the launchers wait before the next attempt.
        pause: Duration,
    },
    /// No rank is running on any host, and the next attempt may begin. See [`Peers::again`].
    Stopped,
}

/// The other launchers of a job.
pub(super) trait Peers {
    /// Reports to the other launchers that the attempt failed because of `cause`. May be called
    /// again with a better cause.
    fn failed(&mut self, cause: &Cause);

    /// Returns how long a better cause may still replace `cause`. `is_last` is `true` if no rank is
    /// left on this host.
    fn settling_time(&self, cause: &Cause, is_last: bool) -> Duration;

    /// Accepts `cause` because no better cause arrived in time. Returns what happens next.
    fn settled(&mut self, cause: &Cause) -> Status;

    /// Reports to the other launchers that all ranks on this host succeeded.
    fn finished(&mut self) -> Status;

    /// Reports to the other launchers that no rank is left on this host, so that this launcher can
    /// start the next attempt.
    fn stopped(&mut self) -> Status;

    /// Begins the next attempt. This is called after [`Status::Stopped`]. `table` is the link speed
    /// table that rank 0 measured in the last attempt, if rank 0 ran on this host and measured one.
    fn again(&mut self, table: Option<String>) -> Result<Attempt>;

    /// Returns the name of the launcher that is delaying the next attempt.
    fn awaited(&self) -> String;

    /// Handles an event from another launcher.
    fn handle(&mut self, heard: PeerEvent) -> Status;
}

/// A launcher's state once all launchers of the job have joined.
pub(super) struct Met {
    /// This launcher's position in the job.
    pub(super) placement: Placement,
    /// The first attempt.
    pub(super) attempt: Attempt,
    /// The other launchers.
    pub(super) peers: Box<dyn Peers>,
}

/// Starts a detached thread.
pub(super) fn spawn_thread(name: &str, body: impl FnOnce() + Send + 'static) -> Result<()> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(body)
        .map(drop)
        .map_err(|error| Error::io("cannot start a thread of the launcher", &error))
}
