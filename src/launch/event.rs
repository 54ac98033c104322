//! What a launcher hears, and what it asks of the launchers of the other hosts. These types stand
//! under everything that drives a job.

use super::attempt::{Attempt, Placement};
use super::cause::Cause;
use super::message::Message;
use crate::control::failure::Failure;
use crate::error::{Error, Result};
use crossbeam_channel::{Receiver, Sender};
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

/// What the supervising thread hears.
#[derive(Debug)]
pub(super) enum Event {
    /// The local rank has ended and waits to be reaped.
    Ended(usize),
    /// The launcher was sent this signal.
    Signalled(i32),
    /// Another host's launcher did something.
    Peer(Heard),
}

/// Both ends of the channel of events.
pub(super) type Events = (Sender<Event>, Receiver<Event>);

/// What another launcher did.
#[derive(Debug)]
pub(super) enum Heard {
    /// The launcher behind this connection sent a message.
    Said(usize, Message),
    /// The connection to a launcher ended.
    Lost(usize),
    /// What came from this address did not prove to be a launcher of the job.
    TurnedAway(SocketAddr, Failure),
}

/// What is known of the job on all hosts.
#[derive(Debug)]
pub(super) enum Status {
    /// Nothing new.
    Undecided,
    /// Every rank everywhere has ended well.
    Succeeded,
    /// Some rank elsewhere failed.
    Failed(Cause),
    /// The job has ended, and this is the cause that every launcher tells.
    Final(Cause),
    /// Every launcher stops its ranks, to start them again.
    Restart {
        /// What every launcher tells.
        cause: Cause,
        /// How long the launchers wait, from now on, before the next attempt.
        pause: Duration,
    },
    /// No rank runs anywhere, and the next attempt may begin: see [`Peers::again`].
    Stopped,
}

/// The other launchers of a job.
pub(super) trait Peers {
    /// Tells them that the attempt fails, as far as is known here because of `cause`. May be
    /// called again with a better cause.
    fn failed(&mut self, cause: &Cause);

    /// How long a better cause may arrive after `cause`. `is_last`: no rank of this host is left.
    fn settling_time(&self, cause: &Cause, is_last: bool) -> Duration;

    /// No better cause came: `cause` stands. What follows, if that is decided here.
    fn settled(&mut self, cause: &Cause) -> Status;

    /// Tells them that all ranks of this host have ended well.
    fn finished(&mut self) -> Status;

    /// Tells them that no rank of this host is left and that it may start the next attempt.
    fn stopped(&mut self) -> Status;

    /// The next attempt, which begins with this call; after [`Status::Stopped`]. `table`: what
    /// rank 0 measured in this attempt, if it runs on this host and did so.
    fn again(&mut self, table: Option<String>) -> Result<Attempt>;

    /// Which launcher holds up the next attempt, in words.
    fn awaited(&self) -> String;

    /// Takes note of what another launcher did.
    fn handle(&mut self, heard: Heard) -> Status;
}

/// A launcher that has met the others.
pub(super) struct Met {
    /// Its place.
    pub(super) placement: Placement,
    /// The first attempt.
    pub(super) attempt: Attempt,
    /// The others.
    pub(super) peers: Box<dyn Peers>,
}

/// Starts a thread that the process need not wait for.
pub(super) fn spawn_thread(name: &str, body: impl FnOnce() + Send + 'static) -> Result<()> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(body)
        .map(drop)
        .map_err(|error| Error::io("cannot start a launcher's thread", &error))
}
