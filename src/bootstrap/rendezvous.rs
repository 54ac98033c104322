//! Joins as rank 0: waits for all ranks, compares their settings and sends them the table.
//!
//! If something is wrong, every rank that has joined receives a one-line error, and so does every
//! rank that joins shortly afterwards. Failed handshakes are only counted, because rank 0 cannot
//! distinguish a rank with a wrong secret from an unauthenticated peer.

use super::by_id;
use super::client::{Gathered, own_peer};
use super::listen::{self, listen};
use super::messages::{Handout, Message, Record};
use super::settings::Settings;
use crate::control::connections::{Connections, Incoming, Outcome};
use crate::control::descriptors::{self, DescriptorUsage};
use crate::control::failure::Failure;
use crate::control::notices::RankNotices;
use crate::control::peer::{Offer, Peer};
use crate::control::wait::wait;
use crate::error::{Error, Result};
use crate::limits::{JOIN_FAILURE_NOTICE, REJOIN_GRACE, WAITING_NOTICE_AFTER};
use crate::protocol::group_creation::list;
use crate::protocol::handshake::{Expected, Hello, Purpose, Refusal};
use mio::{Events, Poll};
use socket2::Socket;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// Maximum number of missing ranks that a message names. The others are only counted.
const RANKS_NAMED_MAX: usize = 16;
/// Additional time after the deadline in which rank 0 may still send the error of a failed join.
const ERROR_DELIVERY_GRACE: Duration = Duration::from_millis(250);

/// Joins as rank 0.
pub(super) fn gather(settings: &Settings, place: Offer, poll: &mut Poll) -> Result<Gathered> {
    let deadline = settings.deadline();
    let (listener, at) = listen(settings, deadline)?;
    let (data_listener, address) = listen::bind_for_data(settings, at.ip())?;
    let unusable = |error| Error::io("cannot set up the rendezvous", &error);
    let own = Record {
        rank: 0,
        peer: own_peer(settings, address, place),
        agreed: settings.to_agree(),
        room: DescriptorUsage::here(),
    };
    let expected = Expected {
        purpose: Purpose::Control,
        world_size: u32::try_from(settings.world_size).unwrap_or(u32::MAX),
        rank: 0,
        attempt: settings.attempt,
    };
    let secret = settings.secret.clone();
    let connections = Connections::new(poll.registry(), Some(listener), expected, secret);
    let mut gathering = Gathering {
        settings,
        at,
        connections: connections.map_err(unusable)?,
        own,
        arrived: BTreeMap::new(),
        gone: BTreeMap::new(),
        told: BTreeSet::new(),
        failure: None,
        strangers: 0,
        stranger: None,
        deadline,
        next_notice: Instant::now() + WAITING_NOTICE_AFTER,
        notices: RankNotices::new(settings.rank, !settings.stall_warning.is_zero()),
        has_warned_of_secret: false,
    };
    gathering.check_own_fd_limit();
    gathering.run(poll)?;
    gathering.send_rank_table(poll)?;
    Ok(gathering.into_gathered(data_listener))
}

/// A rank that has authenticated.
struct Arrival {
    remote: SocketAddr,
    rank: usize,
    record: Option<Record>,
}

struct Failed {
    error: Error,
    /// The time at which rank 0 stops reporting the error to ranks that are still joining.
    until: Instant,
}

struct Gathering<'a> {
    settings: &'a Settings,
    at: SocketAddr,
    connections: Connections,
    own: Record,
    /// Connected ranks, keyed by channel ID.
    arrived: BTreeMap<usize, Arrival>,
    /// Lost ranks. Each entry holds the time until which the rank may reconnect, and the error to
    /// report if it does not.
    gone: BTreeMap<usize, (Instant, String)>,
    /// Ranks that have been notified of the failure. This is a set so that a rank that reconnects,
    /// because it received no answer in time, is counted only once.
    told: BTreeSet<usize>,
    failure: Option<Failed>,
    /// Number of failed handshakes.
    strangers: usize,
    /// The last failed handshake, preferably a rejection, which explains more than a broken
    /// connection.
    stranger: Option<(IpAddr, Failure)>,
    deadline: Instant,
    next_notice: Instant,
    notices: RankNotices,
    has_warned_of_secret: bool,
}

impl Gathering<'_> {
    /// Runs until every rank has sent its record. If the join fails, runs until all ranks have been
    /// notified or the time for notifying them is over.
    fn run(&mut self, poll: &mut Poll) -> Result<()> {
        let mut events = Events::with_capacity(256);
        while !self.is_complete() {
            let now = Instant::now();
            if let Some(failed) = &self.failure {
                if now >= failed.until || self.all_notified() {
                    return Err(failed.error.clone());
                }
            } else if self.settings.start.cancel.is_canceled() {
                self.fail(self.settings.cancelled(), JOIN_FAILURE_NOTICE / 10);
            } else if now >= self.deadline {
                let error = Error::join(self.timeout_line()).with_rank(0);
                let error = error.with_missing(self.missing());
                self.fail(
                    error.with_elapsed(self.settings.timeout),
                    ERROR_DELIVERY_GRACE,
                );
            } else {
                self.fail_if_rank_lost(now);
            }
            self.wait(poll, &mut events)?;
            if self.failure.is_none() && Instant::now() >= self.next_notice {
                self.next_notice = Instant::now() + WAITING_NOTICE_AFTER;
                let waiting =
                    Message::Waiting(format!("rank 0 is waiting for {}", self.missing_line()));
                self.send_to_all(&waiting);
            }
            self.warn_if_waiting();
        }
        Ok(())
    }

    /// Prints a notice that names the missing ranks if one is due.
    fn warn_if_waiting(&mut self) {
        let is_quiet = self.failure.is_some() || self.is_complete();
        if is_quiet || Instant::now() < self.notices.next() {
            return;
        }
        let (missing, at) = (self.missing_line(), self.at);
        let world_size = self.settings.world_size;
        self.notices.still(|seconds| {
            format!(
                "rank 0 has waited {seconds} s at the rendezvous {at} for {missing} of {world_size}"
            )
        });
    }

    /// Sleeps until an event arrives or a timer expires, and then handles the events that have
    /// arrived.
    fn wait(&mut self, poll: &mut Poll, events: &mut Events) -> Result<()> {
        let failed = self.failure.as_ref();
        let end = failed.map_or(self.deadline, |failed| failed.until);
        let next = self.connections.next_deadline();
        let gone = self.gone.values().map(|(until, _)| *until);
        // A failing join sends no waiting notices, so an overdue notice must not cut its sleeps
        // short.
        let notices = [self.next_notice, self.notices.next()];
        let notices = notices.into_iter().filter(|_| self.failure.is_none());
        let until = gone.chain(next).chain(notices).chain([end]).min();
        let until = until.map(|until| self.settings.start.cancel.next_check(until));
        wait(poll, events, until)
            .map_err(|error| Error::io("cannot wait for the other ranks", &error))?;
        self.connections.note(events);
        if let Some(error) = self.connections.acceptor.starvation() {
            let cause = DescriptorUsage::here().exhausted(0, &error);
            self.fail(cause, JOIN_FAILURE_NOTICE);
        }
        while let Some(incoming) = self.connections.next() {
            match incoming {
                Incoming::Handshake(outcome) => self.settle(outcome),
                Incoming::Message(id, message) => self.take(id, message),
                Incoming::Lost(id, why) => self.lost(id, &why),
            }
        }
        Ok(())
    }

    /// Handles the loss of a connected rank, which then counts as missing again. If the rank does
    /// not reconnect within [`REJOIN_GRACE`], the join fails.
    fn lost(&mut self, id: usize, why: &str) {
        let Some(Arrival {
            remote,
            rank,
            record,
        }) = self.arrived.remove(&id)
        else {
            return;
        };
        let who = record.map_or_else(
            || format!("from {}", remote.ip()),
            |Record { peer, .. }| format!("process {} on {}", peer.pid, peer.host_name),
        );
        let line = format!(
            "rank {rank} ({who}) joined the rendezvous and then exited or gave up: {why}; check \
             its last output and restart the job"
        );
        self.gone
            .insert(rank, (Instant::now() + REJOIN_GRACE, line));
    }

    /// Fails the join if a lost rank has not reconnected in time.
    fn fail_if_rank_lost(&mut self, now: Instant) {
        let mut gone = self.gone.iter();
        if let Some((rank, (_, line))) = gone.find(|(_, (until, _))| *until <= now) {
            let error = Error::join(line.clone()).with_rank(0).with_peer(*rank);
            self.fail(error, JOIN_FAILURE_NOTICE / 10);
        }
    }

    /// Handles the outcome of a handshake.
    fn settle(&mut self, outcome: Outcome) {
        match outcome.result {
            Ok(proven) => {
                let rank = proven.hello.from as usize;
                self.gone.remove(&rank);
                let Ok(id) = self.connections.add(proven, false) else {
                    return;
                };
                let arrival = Arrival {
                    remote: outcome.remote,
                    rank,
                    record: None,
                };
                self.arrived.insert(id, arrival);
            }
            // A rank from an earlier attempt has already learned from the handshake that it was
            // replaced. It counts as a failed handshake below.
            Err(Failure::Refused(refusal, Some(hello)))
                if hello.attempt >= self.settings.attempt =>
            {
                self.refused(outcome.remote, refusal, hello);
            }
            Err(failure) => {
                self.strangers += 1;
                // All ranks on a host without the secret keep retrying, so warn only once.
                let lacks_secret = matches!(failure, Failure::Refused(Refusal::Secret, _));
                if lacks_secret && !std::mem::replace(&mut self.has_warned_of_secret, true) {
                    let from = outcome.remote.ip();
                    let at = self.at;
                    self.notices.now(|| {
                        format!(
                            "rank 0 rejected a process from {from} at the rendezvous {at}: it uses \
                             a different secret"
                        )
                    });
                }
                let was_refused = matches!(self.stranger, Some((_, Failure::Refused(..))));
                if !was_refused || matches!(failure, Failure::Refused(..)) {
                    self.stranger = Some((outcome.remote.ip(), failure));
                }
            }
        }
    }

    /// Fails the join because an authenticated rank was rejected.
    fn refused(&mut self, remote: SocketAddr, refusal: Refusal, hello: Hello) {
        let rank = hello.from;
        let why = match refusal {
            Refusal::WorldSize { ours, theirs } => format!(
                "WORLD_SIZE differs: it is {ours} on rank 0 but {theirs} on rank {rank} (from {})",
                remote.ip()
            ),
            Refusal::Attempt { ours, theirs } => format!(
                "this process belongs to attempt {ours} of the job, but rank {rank} (from {}) \
                 belongs to attempt {theirs}: a restart has replaced this process, which now exits",
                remote.ip()
            ),
            other => format!("rank {rank} (from {}) was rejected: {other}", remote.ip()),
        };
        // The rejected rank learned the reason from the handshake.
        self.told.insert(rank as usize);
        let error = Error::join(why).with_rank(0).with_peer(rank as usize);
        let error = error.within(self.settings.world_size);
        self.fail(error, JOIN_FAILURE_NOTICE);
    }

    /// Handles a rank's record, or the error that the rank sends when it stops trying to join.
    /// Disconnects a rank that sends anything else.
    fn take(&mut self, id: usize, message: Message) {
        if let Message::Failed(error) = message {
            if let Some(arrival) = self.arrived.remove(&id) {
                self.connections.remove(id);
                self.told.insert(arrival.rank);
                self.fail(error.within(self.settings.world_size), JOIN_FAILURE_NOTICE);
            }
            return;
        }
        let arrival = self.arrived.get(&id).filter(|one| one.record.is_none());
        let (Some(arrival), Message::Record(record)) = (arrival, message) else {
            self.connections.remove(id);
            self.lost(id, "it did not send its record");
            return;
        };
        let objection = self.objection(&record, arrival.rank, arrival.remote);
        if let Some(arrival) = self.arrived.get_mut(&id) {
            arrival.record = Some(*record);
        }
        match (objection, &self.failure) {
            (Some(why), _) => self.fail(Error::join(why), JOIN_FAILURE_NOTICE),
            (None, Some(_)) => self.send_failure(),
            (None, None) if self.is_complete() => self.check_fd_limits(),
            (None, None) => {}
        }
    }

    /// Fails the join if rank 0 cannot hold a connection to every other rank.
    fn check_own_fd_limit(&mut self) {
        let others = self.settings.world_size - 1;
        if !self
            .own
            .room
            .holds(descriptors::needed(0, 0) + others as u64)
        {
            let why = format!(
                "rank 0 (host {}) has too few file descriptors to connect to {others} other ranks; \
                 {}",
                self.own.peer.host_name, self.own.room
            );
            self.fail(Error::system(why), JOIN_FAILURE_NOTICE);
        }
    }

    /// Fails the join if a rank has too few descriptors for this world.
    fn check_fd_limits(&mut self) {
        self.own.room = DescriptorUsage::here();
        let records = || self.others().chain([&self.own]);
        let mut sharing = BTreeMap::new();
        for key in records().filter_map(|one| one.peer.sharing_key()) {
            *sharing.entry(key).or_insert(0) += 1;
        }
        let lacking = records().find_map(|one| {
            let local = one.peer.sharing_key().map_or(1, |key| sharing[&key]) - 1;
            let needed = descriptors::needed(local, self.settings.world_size - 1 - local);
            (!one.room.holds(needed)).then(|| {
                format!(
                    "rank {} (host {}) has too few file descriptors: it needs {needed} more for a \
                     job of {} ranks ({local} others share memory with it); {}",
                    one.rank, one.peer.host_name, self.settings.world_size, one.room
                )
            })
        });
        if let Some(why) = lacking {
            self.fail(Error::system(why), JOIN_FAILURE_NOTICE);
        }
    }

    /// Returns a message if a rank's record contradicts the handshake or another rank's record.
    fn objection(&self, record: &Record, rank: usize, remote: SocketAddr) -> Option<String> {
        let Peer { host_name, pid, .. } = &record.peer;
        if record.rank != rank {
            return Some(format!(
                "a process from {remote} connected as rank {rank}, but its record is for rank {}",
                record.rank
            ));
        }
        if let Some(first) = self.others().find(|other| other.rank == rank) {
            return Some(format!(
                "two processes have rank {rank}: process {} on {} and process {pid} on \
                 {host_name}; give each process its own RANK",
                first.peer.pid, first.peer.host_name
            ));
        }
        let value = |record: &Record, name: &str| {
            let found = record.agreed.iter().find(|(own, _)| own == name);
            found.map_or_else(|| "unset".to_owned(), |(_, value)| format!("{value:?}"))
        };
        let agreed = self.own.agreed.iter().chain(&record.agreed);
        let names = agreed.map(|(name, _)| name);
        let mut differing = names.filter(|name| value(&self.own, name) != value(record, name));
        differing.next().map(|name| {
            format!(
                "{name} differs: it is {} on rank 0 (host {}) but {} on rank {rank} (host \
                 {host_name}); use the same on all ranks",
                value(&self.own, name),
                self.own.peer.host_name,
                value(record, name),
            )
        })
    }

    fn fail(&mut self, error: Error, notice: Duration) {
        if self.failure.is_none() {
            let until = Instant::now() + notice;
            let end = self.deadline.max(Instant::now() + ERROR_DELIVERY_GRACE);
            self.failure = Some(Failed {
                error,
                until: until.min(end),
            });
        }
        self.send_failure();
    }

    /// Sends the failure to the connected ranks that have not received it yet.
    fn send_failure(&mut self) {
        let Some(failed) = &self.failure else { return };
        let message = Message::Failed(failed.error.clone());
        for (id, arrival) in &mut self.arrived {
            // A second process with the same rank also receives the message, because both processes
            // sent a record.
            if let Some(record) = arrival.record.take() {
                self.connections.send(*id, &message);
                self.told.insert(record.rank);
            }
        }
    }

    fn all_notified(&self) -> bool {
        self.told.len() + 1 >= self.settings.world_size && self.connections.is_flushed()
    }

    fn send_to_all(&mut self, message: &Message) {
        for id in self.arrived.keys() {
            // A lost connection is detected when it is next read.
            self.connections.send(*id, message);
        }
    }

    /// Returns the records of the other ranks that are present.
    fn others(&self) -> impl Iterator<Item = &Record> {
        let arrived = self.arrived.values();
        arrived.filter_map(|arrival| arrival.record.as_ref())
    }

    fn is_complete(&self) -> bool {
        // No rank is present twice, because a duplicate fails the join.
        self.failure.is_none() && self.others().count() + 1 == self.settings.world_size
    }

    /// Returns the ranks that have not sent their records.
    fn missing(&self) -> Vec<usize> {
        let present: BTreeSet<usize> = self.others().map(|one| one.rank).collect();
        let missing = (1..self.settings.world_size).filter(|rank| !present.contains(rank));
        missing.collect()
    }

    fn missing_line(&self) -> String {
        let missing = self.missing();
        let noun = if missing.len() == 1 { "rank" } else { "ranks" };
        format!("{noun} {}", list(&missing, RANKS_NAMED_MAX))
    }

    fn timeout_line(&self) -> String {
        let strangers = match &self.stranger {
            None => String::new(),
            Some((address, why)) => format!(
                "; failed handshakes: {}, one of them from {address}: {why}",
                self.strangers
            ),
        };
        let (given, at) = (&self.settings.rendezvous, self.at.to_string());
        let resolved = if *given == at {
            String::new()
        } else {
            format!(" ({at})")
        };
        format!(
            "{} of {} did not reach the rendezvous {given}{resolved} within {} ms; check that they \
             were started and have this address{strangers}{}{}",
            self.missing_line(),
            self.settings.world_size,
            self.settings.timeout.as_millis(),
            by_id::found_line(self.settings),
            listen::loopback_hint(self.settings, self.at.ip()),
        )
    }

    /// Sends the table of ranks to every rank.
    fn send_rank_table(&mut self, poll: &mut Poll) -> Result<()> {
        let ids = self.arrived.keys().copied();
        let mut table = Handout::new(&self.peers(), ids.collect());
        let mut events = Events::with_capacity(256);
        let end = self.deadline.max(Instant::now() + JOIN_FAILURE_NOTICE);
        // If a rank is lost here, the control thread reports it in the same way as a later loss.
        let cancel = &self.settings.start.cancel;
        let goes_on = || Instant::now() < end && !cancel.is_canceled();
        while !table.proceed(&mut self.connections) && goes_on() {
            wait(poll, &mut events, Some(cancel.next_check(end)))
                .map_err(|error| Error::io("cannot send the table of ranks", &error))?;
        }
        Ok(())
    }

    fn peers(&self) -> Vec<Peer> {
        let all = self.others().chain([&self.own]);
        let sorted: BTreeMap<_, _> = all.map(|one| (one.rank, one.peer.clone())).collect();
        sorted.into_values().collect()
    }

    fn into_gathered(mut self, listener: Socket) -> Gathered {
        let peers = self.peers();
        let mut channels = BTreeMap::new();
        for (id, arrival) in self.arrived {
            if let Some(channel) = self.connections.remove(id) {
                channels.insert(arrival.rank, channel);
            }
        }
        Gathered {
            channels,
            listener,
            peers,
        }
    }
}
