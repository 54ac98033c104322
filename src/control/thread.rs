//! Runs the control thread.
//!
//! The ranks form a star: every rank has one connection to rank 0, which forwards messages. So in a
//! world of n ranks, rank 0 holds n - 1 connections, and every other rank holds one. A message
//! takes at most two hops, and messages from one rank to another stay in order. After rank 0 has
//! left, each rank connects to the ranks that it sends messages to ([`messages`]). The thread
//! sleeps in its own poll, in which it also watches the processes of the other ranks on its host.
//! While asynchronous operations are in flight, it also watches the epoll descriptor of the data
//! sockets.

mod messages;

use super::channel::Channel;
use super::connections::{Connections, Incoming, Outcome};
use super::descriptors::{self, DescriptorUsage};
use super::failure::Failure;
use super::handle::{Command, ControlHandle, Handler, Shared, timer};
use super::handshake::Handshake;
use super::membership::Membership;
use super::peer::Peer;
use super::process::{self, Life};
use super::wait::wait;
use crate::limits::{CONTROL_CLOSE_MAX, DIALS_ASKED_MAX, FORGOTTEN_MAX, PROCESSES_WATCHED_MAX};
use crate::link::tcp::DataStream;
use crate::protocol::handshake::{Expected, Hello, Purpose, Secret};
use messages::{CONTROL_CHANNEL, Messages};
use mio::net::{TcpListener, TcpStream};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

/// Token of the waker. The listener has token 1.
const WAKER: Token = Token(0);
/// Group number of a message that asks the receiver to dial a connection for the group in the
/// payload.
const DIAL_REQUEST: u32 = u32::MAX - 1;
/// Token of the data sockets' epoll descriptor.
const DATA: Token = Token(2);
/// Token of the handle's timer, whose only effect is to end a sleep.
const TIMER: Token = Token(3);
/// Token of rank 0's process. The token of rank r's process is this value plus r. These tokens are
/// above the tokens of channels and below the tokens of handshakes.
const PROCESS_FIRST: usize = 1 << 31;
/// The first pause before a connection is dialed again. Each later pause is twice as long as the
/// one before it, up to `REDIAL_MAX`.
const REDIAL_FIRST: Duration = Duration::from_millis(10);
const REDIAL_MAX: Duration = Duration::from_millis(500);

/// Creates a poll and the handle that wakes the control thread when it sleeps in the poll.
pub(crate) fn prepare() -> io::Result<(Poll, ControlHandle)> {
    let poll = Poll::new()?;
    let waker = Waker::new(poll.registry(), WAKER)?;
    let timer = timer()?;
    let mut source = SourceFd(&timer.as_raw_fd());
    let registry = poll.registry();
    registry.register(&mut source, TIMER, Interest::READABLE)?;
    Ok((poll, ControlHandle::new(waker, timer)))
}

/// The resources that the join passes to the control thread.
pub(crate) struct Parts {
    pub(crate) poll: Poll,
    /// Control connections, indexed by rank.
    pub(crate) channels: BTreeMap<usize, Channel>,
    pub(crate) listener: Option<TcpListener>,
    pub(crate) secret: Option<Secret>,
    pub(crate) timeout: Duration,
    pub(crate) attempt: u16,
}

/// Starts the control thread for `membership`.
pub(crate) fn start(
    membership: &Membership,
    parts: Parts,
    handler: Arc<dyn Handler>,
    data_events: Option<RawFd>,
) -> io::Result<()> {
    let control = ControlThread::new(membership, parts, handler, data_events)?;
    let thread = thread::Builder::new()
        .name("ringtree-control".into())
        .spawn(move || control.run())?;
    membership.control.shared.runs_on(thread);
    Ok(())
}

/// A connection that was requested but is not established yet.
struct Dial {
    /// The time until which failed attempts to open a data connection are repeated.
    deadline: Instant,
    pause: Duration,
    /// `None` while a handshake is in progress.
    next_attempt: Option<Instant>,
}

struct ControlThread {
    poll: Poll,
    shared: Arc<Shared>,
    handler: Arc<dyn Handler>,
    rank: usize,
    peers: Arc<Vec<Peer>>,
    /// Connections of this rank. The ID of a channel of the star is the rank that it leads to. For
    /// the IDs of other channels, see [`Messages`].
    connections: Connections,
    dials: BTreeMap<(u32, usize), Dial>,
    /// Watched processes of other ranks, indexed by rank.
    processes: BTreeMap<usize, OwnedFd>,
    /// Data connections that this rank needs and that its peer dials, identified by group and peer.
    awaited: BTreeSet<(u32, usize)>,
    /// Data connections that arrived before this rank needed them, identified by group and peer.
    early: BTreeSet<(u32, usize)>,
    /// Data connections that this rank has dialed.
    dialed: BTreeSet<(u32, usize)>,
    /// The groups that were dropped most recently. Late requests from peers to dial connections for
    /// these groups are ignored.
    forgotten: VecDeque<u32>,
    timeout: Duration,
    data_events: Option<RawFd>,
    data_watched: bool,
    /// While this process is shutting down: the time until which it waits for the other processes
    /// to close their connections.
    leaving_until: Option<Instant>,
    messages: Messages,
}

impl Dial {
    /// Schedules the next attempt after a pause, and doubles the pause.
    fn retry(&mut self, now: Instant) {
        self.next_attempt = Some(now + self.pause);
        self.pause = (self.pause * 2).min(REDIAL_MAX);
    }
}

fn number(value: usize) -> u32 {
    u32::try_from(value).expect("invariant: ranks are below WORLD_SIZE_MAX")
}

impl ControlThread {
    fn new(
        membership: &Membership,
        parts: Parts,
        handler: Arc<dyn Handler>,
        data_events: Option<RawFd>,
    ) -> io::Result<Self> {
        let expected = Expected {
            purpose: Purpose::Data,
            world_size: number(membership.world_size),
            rank: number(membership.rank),
            attempt: parts.attempt,
        };
        let registry = parts.poll.registry();
        let mut connections = Connections::new(registry, parts.listener, expected, parts.secret)?;
        for (rank, channel) in parts.channels {
            connections.insert(rank, channel)?;
        }
        Ok(Self {
            poll: parts.poll,
            shared: Arc::clone(&membership.control.shared),
            handler,
            rank: membership.rank,
            peers: Arc::clone(&membership.peers),
            connections,
            dials: BTreeMap::new(),
            processes: BTreeMap::new(),
            awaited: BTreeSet::new(),
            early: BTreeSet::new(),
            dialed: BTreeSet::new(),
            forgotten: VecDeque::new(),
            timeout: parts.timeout,
            data_events,
            data_watched: false,
            leaving_until: None,
            messages: Messages::default(),
        })
    }

    /// Runs the thread until it has shut down.
    fn run(mut self) {
        let mut events = Events::with_capacity(256);
        self.catch_up();
        loop {
            self.process_commands();
            if let Some(until) = self.leaving_until {
                let has_sent_all = self.has_sent_all(Instant::now());
                if has_sent_all {
                    self.connections.acceptor.close();
                    self.connections.finish_flushed();
                }
                if has_sent_all && self.connections.is_empty() || Instant::now() >= until {
                    return;
                }
            }
            let asked = self.watch_data();
            let timeout = self.sleep_at_most(asked);
            let until = timeout.map(|timeout| Instant::now() + timeout);
            if let Err(error) = wait(&mut self.poll, &mut events, until) {
                let why = format!("this process cannot poll its connections: {error}");
                self.drop_all_connections(&why);
                return;
            }
            self.connections.note(&events);
            self.take_incoming();
            self.note_ended(&events);
            self.redial();
            if self.leaving_until.is_none() {
                self.check_descriptors();
                self.handler.awake();
            }
        }
    }

    /// Processes messages that arrived and losses that occurred before the thread was running.
    fn catch_up(&mut self) {
        if self.rank == 0 {
            for rank in 1..self.peers.len() {
                if !self.connections.contains(rank) {
                    self.lost(rank, "it left during the join".into());
                }
            }
        }
        self.take_incoming();
        self.watch_processes();
    }

    /// Watches the processes of the other ranks on this host: at most [`PROCESSES_WATCHED_MAX`] of
    /// them, beginning with the next higher rank.
    fn watch_processes(&mut self) {
        let peers = Arc::clone(&self.peers);
        let count = peers.len();
        let others = (1..count).map(|step| (self.rank + step) % count);
        for rank in others {
            match process::life(&peers[self.rank], &peers[rank]) {
                Life::Watched(descriptor) => {
                    let number = descriptor.as_raw_fd();
                    let token = Token(PROCESS_FIRST + rank);
                    let registry = self.poll.registry();
                    // If this fails, only connections reveal a death.
                    if registry
                        .register(&mut SourceFd(&number), token, Interest::READABLE)
                        .is_ok()
                    {
                        self.processes.insert(rank, descriptor);
                    }
                }
                Life::Ended => self.handler.process_ended(rank),
                Life::Unknown => {}
            }
            if self.processes.len() >= PROCESSES_WATCHED_MAX {
                return;
            }
        }
    }

    /// Reports the processes that have ended. The caller first delivers the messages that have
    /// arrived from them.
    fn note_ended(&mut self, events: &Events) {
        for event in events {
            let rank = event.token().0.checked_sub(PROCESS_FIRST);
            // Closing the descriptor ends the watch.
            if let Some(rank) = rank.filter(|rank| self.processes.remove(rank).is_some())
                && self.leaving_until.is_none()
            {
                self.handler.process_ended(rank);
            }
        }
    }

    fn take_incoming(&mut self) {
        while let Some(incoming) = self.connections.next() {
            match incoming {
                Incoming::Handshake(outcome) => self.settle(outcome),
                Incoming::Message(id, relay) => self.route(id, relay),
                Incoming::Lost(id, why) => self.closed(id, why),
            }
        }
    }

    /// Returns how long the thread may sleep: until the next deadline, but no longer than the time
    /// that the handler has `asked` for.
    fn sleep_at_most(&self, asked: Option<Duration>) -> Option<Duration> {
        let now = Instant::now();
        let left = |at: Instant| at.saturating_duration_since(now);
        let dials = self.dials.values().filter_map(|dial| dial.next_attempt);
        let deadlines = dials
            .chain(self.connections.next_deadline())
            .chain(self.leaving_until);
        let relaying = self.leaving_until.and(self.next_look(now));
        deadlines.chain(relaying).map(left).chain(asked).min()
    }

    // ---- commands from this process ----

    fn process_commands(&mut self) {
        loop {
            let (command, overflowed) = self.shared.take();
            if overflowed {
                self.drop_all_connections("too many control messages are queued");
            }
            match command {
                None => return,
                Some(Command::Send { to, group, payload }) => self.send_own(to, group, payload),
                Some(Command::Dial { group, peer }) => self.dial(group, peer),
                Some(Command::Forget { group }) => self.forget(group),
                Some(Command::Stop) => self.leave(),
            }
        }
    }

    fn leave(&mut self) {
        if self.leaving_until.is_some() {
            return;
        }
        let now = Instant::now();
        self.leaving_until = Some(now + CONTROL_CLOSE_MAX);
        self.dials.retain(|(group, _), _| *group == CONTROL_CHANNEL);
        self.stop_relaying(now);
    }

    // ---- data connections ----

    fn dial(&mut self, group: u32, peer: usize) {
        if peer < self.rank && !self.early.remove(&(group, peer)) {
            self.awaited.insert((group, peer));
            // The peer's program might not request this connection itself, because it may be
            // blocked in another group's call that waits for this rank.
            self.send_own(number(peer), DIAL_REQUEST, group.to_le_bytes().to_vec());
        }
        let dials_first = self.rank < peer && peer < self.peers.len();
        let is_done = self.dialed.contains(&(group, peer));
        if dials_first && !is_done && self.leaving_until.is_none() {
            self.start_dial(group, peer);
        }
    }

    fn start_dial(&mut self, group: u32, peer: usize) {
        let now = Instant::now();
        self.dials.entry((group, peer)).or_insert(Dial {
            deadline: now + self.timeout,
            pause: REDIAL_FIRST,
            next_attempt: Some(now),
        });
        self.redial();
    }

    /// Dials a connection at the request of `peer`, unless this rank has already dialed it or has
    /// dropped the group.
    fn answer_dial(&mut self, group: u32, peer: usize) {
        let is_due = self.rank < peer && !self.forgotten.contains(&group);
        if is_due && self.dials.len() < DIALS_ASKED_MAX {
            self.dial(group, peer);
        }
    }

    fn forget(&mut self, group: u32) {
        self.dials.retain(|(of, _), _| *of != group);
        if self.forgotten.len() == FORGOTTEN_MAX {
            self.forgotten.pop_front();
        }
        self.forgotten.push_back(group);
        for known in [&mut self.awaited, &mut self.early, &mut self.dialed] {
            known.retain(|(of, _)| *of != group);
        }
    }

    /// Starts the handshakes that are due.
    fn redial(&mut self) {
        let now = Instant::now();
        let due = |dial: &Dial| dial.next_attempt.is_some_and(|at| at <= now);
        let due: Vec<(u32, usize)> = self
            .dials
            .iter()
            .filter(|(_, dial)| due(dial))
            .map(|(key, _)| *key)
            .collect();
        for (group, peer) in due {
            let Some(dial) = self.dials.get_mut(&(group, peer)) else {
                continue;
            };
            dial.next_attempt = None;
            let hello = Hello {
                purpose: Purpose::Data,
                world_size: number(self.peers.len()),
                group,
                epoch: 0,
                attempt: self.connections.acceptor.attempt(),
                from: number(self.rank),
                to: number(peer),
            };
            let secret = self.connections.acceptor.secret();
            let started = Handshake::dial(self.peers[peer].address, secret, hello)
                .and_then(|handshake| self.connections.acceptor.start(handshake));
            if let Err(error) = started {
                let is_exhausted = descriptors::are_exhausted(&error);
                self.dial_failed(group, peer, &Failure::from(&error));
                if is_exhausted {
                    self.connections.acceptor.starve(error);
                }
            }
        }
    }

    /// Fails this rank if it lacks descriptors for a connection that it needs, so that errors name
    /// this rank and not the peer. It does not need connections from unauthenticated peers.
    fn check_descriptors(&mut self) {
        if self.dials.is_empty() && self.awaited.is_empty() {
            return;
        }
        if let Some(error) = self.connections.acceptor.starvation() {
            let cause = DescriptorUsage::here().exhausted(self.rank, &error);
            self.handler.fatal_error(cause);
        }
    }

    /// Processes the result of a handshake.
    fn settle(&mut self, outcome: Outcome) {
        match (outcome.dialed, outcome.result) {
            (None, Ok(proven)) if proven.hello.group == CONTROL_CHANNEL => self.accept(proven),
            (Some((CONTROL_CHANNEL, peer)), Ok(proven)) => self.connected(peer, proven),
            (None, Ok(proven)) => {
                let Hello { from, group, .. } = proven.hello;
                let key = (group, from as usize);
                if !self.awaited.remove(&key) {
                    self.early.insert(key);
                }
                self.deliver_stream(group, from as usize, proven.stream);
            }
            (Some((group, peer)), Ok(proven)) => {
                // If there is no entry, the group was dropped in the meantime.
                if self.dials.remove(&(group, peer)).is_some() {
                    self.dialed.insert((group, peer));
                    self.deliver_stream(group, peer, proven.stream);
                }
            }
            (Some((group, peer)), Err(failure)) => self.dial_failed(group, peer, &failure),
            // The other end was not authenticated, and its connection is closed.
            (None, Err(_)) => {}
        }
    }

    fn deliver_stream(&self, group: u32, peer: usize, stream: TcpStream) {
        // The handshake has checked that the rank is in range.
        let host = |rank: usize| self.peers[rank].host_name.clone();
        let hosts = (host(self.rank), host(peer));
        self.handler.stream(
            group,
            DataStream {
                peer,
                stream,
                hosts,
            },
        );
    }

    fn dial_failed(&mut self, group: u32, peer: usize, failure: &Failure) {
        if group == CONTROL_CHANNEL {
            return self.not_connected(peer, failure);
        }
        let Some(dial) = self.dials.get_mut(&(group, peer)) else {
            return;
        };
        // Another process may use the listener's port by now, so only a refusal from an
        // authenticated process is final.
        let hopeless = matches!(failure, Failure::Refused(refusal, _) if refusal.is_proven());
        let now = Instant::now();
        if !hopeless && now + dial.pause < dial.deadline {
            return dial.retry(now);
        }
        self.dials.remove(&(group, peer));
        let Peer {
            address, host_name, ..
        } = &self.peers[peer];
        let why = format!("cannot open a data connection to {address} on {host_name}: {failure}");
        self.handler.stream_failed(group, peer, why);
    }

    /// Watches the data sockets only while operations that no thread polls are in flight. Returns
    /// the time after which they should be polled. Calls [`Handler::wake_after`] only once, because
    /// a thread that later takes over the operations and then stops polling them can see that this
    /// thread is watching the sockets, and for how long.
    fn watch_data(&mut self) -> Option<Duration> {
        let watches = &self.shared.watches_data;
        watches.store(false, Ordering::SeqCst);
        let asked = match self.leaving_until {
            None => self.handler.wake_after(),
            Some(_) => None,
        };
        let Some(descriptor) = self.data_events else {
            return asked;
        };
        let wanted = asked.is_some();
        if wanted == self.data_watched {
            watches.store(wanted, Ordering::SeqCst);
            return asked;
        }
        let registry = self.poll.registry();
        let mut source = SourceFd(&descriptor);
        let done = if wanted {
            registry.register(&mut source, DATA, Interest::READABLE)
        } else {
            registry.deregister(&mut source)
        };
        // If the descriptor cannot be watched, operations advance only after the time that
        // `wake_after` returned.
        self.data_watched = wanted && done.is_ok();
        watches.store(self.data_watched, Ordering::SeqCst);
        asked
    }
}
