//! The control thread.
//!
//! The ranks form a star: every rank has one connection to rank 0, which passes messages on. So
//! rank 0 holds n - 1 connections and every other rank one, a message takes at most two hops, and
//! messages from one rank to another stay in order. When rank 0 has left, a rank connects to those
//! that it sends messages to ([`messages`]). The thread sleeps in its own poll; while
//! asynchronous operations are in flight it watches the data sockets' epoll descriptor as well, and
//! always the processes of its host's other ranks.

mod messages;

use super::channel::Channel;
use super::connections::{Connections, Incoming, Outcome};
use super::descriptors::{self, Room};
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

/// The waker's token; 1 is the listener's.
const WAKER: Token = Token(0);
/// In the place of a group's number: asks the receiver to dial the channel that the payload names.
const PLEASE_DIAL: u32 = u32::MAX - 1;
/// The token of the data sockets' epoll descriptor.
const DATA: Token = Token(2);
/// The token of the handle's timer, which only ends a sleep.
const TIMER: Token = Token(3);
/// The process of rank r has this token + r, above those of channels and below those of handshakes.
const PROCESS_FIRST: usize = 1 << 31;
/// The first and the longest pause before a data connection is dialed again.
const REDIAL_FIRST: Duration = Duration::from_millis(10);
const REDIAL_MAX: Duration = Duration::from_millis(500);

/// A poll, and the handle that will wake the control thread in it.
pub(crate) fn prepare() -> io::Result<(Poll, ControlHandle)> {
    let poll = Poll::new()?;
    let waker = Waker::new(poll.registry(), WAKER)?;
    let timer = timer()?;
    let mut source = SourceFd(&timer.as_raw_fd());
    let registry = poll.registry();
    registry.register(&mut source, TIMER, Interest::READABLE)?;
    Ok((poll, ControlHandle::new(waker, timer)))
}

/// What the join leaves to the control thread.
pub(crate) struct Parts {
    pub(crate) poll: Poll,
    /// By rank.
    pub(crate) channels: BTreeMap<usize, Channel>,
    pub(crate) listener: Option<TcpListener>,
    pub(crate) secret: Option<Secret>,
    pub(crate) timeout: Duration,
    pub(crate) attempt: u16,
}

/// Starts the control thread of `membership`.
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

/// A connection that was asked for and is not established yet.
struct Dial {
    /// Until when a data connection is tried.
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
    /// The channel of the star to a rank has the rank's number; see [`Messages`] for others.
    connections: Connections,
    dials: BTreeMap<(u32, usize), Dial>,
    /// The processes of other ranks that live, by rank.
    processes: BTreeMap<usize, OwnedFd>,
    /// Data connections that this rank needs and its peer dials, by group and peer; and those that
    /// came before this rank needed them.
    awaited: BTreeSet<(u32, usize)>,
    early: BTreeSet<(u32, usize)>,
    /// Data connections that this rank has dialed.
    dialed: BTreeSet<(u32, usize)>,
    /// The last groups that were dropped: a peer may have asked for a connection before it had it.
    forgotten: VecDeque<u32>,
    timeout: Duration,
    data_events: Option<RawFd>,
    data_watched: bool,
    /// Set once this process shuts down: until when it waits for the others to close.
    leaving_until: Option<Instant>,
    messages: Messages,
}

impl Dial {
    /// Tries again after a pause, which grows.
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

    /// The thread's body.
    fn run(mut self) {
        let mut events = Events::with_capacity(256);
        self.catch_up();
        loop {
            self.obey();
            if let Some(until) = self.leaving_until {
                let has_said_all = self.has_said_all(Instant::now());
                if has_said_all {
                    self.connections.acceptor.close();
                    self.connections.finish_flushed();
                }
                if has_said_all && self.connections.is_empty() || Instant::now() >= until {
                    return;
                }
            }
            let asked = self.watch_data();
            let timeout = self.sleep_at_most(asked);
            let until = timeout.map(|timeout| Instant::now() + timeout);
            if let Err(error) = wait(&mut self.poll, &mut events, until) {
                let why = format!("this process cannot wait for its connections: {error}");
                self.lose_all(&why);
                return;
            }
            self.connections.note(&events);
            self.take_incoming();
            self.note_ended(&events);
            self.redial();
            if self.leaving_until.is_none() {
                self.look_for_starvation();
                self.handler.awake();
            }
        }
    }

    /// Handles what arrived, or was lost, before the thread ran.
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

    /// Watches the processes of the other ranks of this host, or of the next so many.
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
                    // Without it a death is noticed by connections alone.
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

    /// Tells of the processes that have ended, after what they had sent.
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

    /// How long the thread may sleep, if the handler has `asked` for that time.
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

    // ---- commands of this process ----

    fn obey(&mut self) {
        loop {
            let (command, overflowed) = self.shared.take();
            if overflowed {
                self.lose_all("more control messages were queued than can be sent");
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
            // Its program may be in a call of another group, which waits for this rank.
            self.send_own(number(peer), PLEASE_DIAL, group.to_le_bytes().to_vec());
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

    /// `peer` needs a connection that this rank dials, unless it has.
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

    /// Starts the handshakes whose time has come.
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

    /// A rank that lacks descriptors for a connection that it needs is the cause of what follows,
    /// and not the peer at the other end. A stranger's connection is not needed.
    fn look_for_starvation(&mut self) {
        if self.dials.is_empty() && self.awaited.is_empty() {
            return;
        }
        if let Some(error) = self.connections.acceptor.starvation() {
            let cause = Room::here().exhausted(self.rank, &error);
            self.handler.cannot_go_on(cause);
        }
    }

    /// A handshake for data ended.
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
                self.hand_on(group, from as usize, proven.stream);
            }
            (Some((group, peer)), Ok(proven)) => {
                // Without an entry the group was dropped meanwhile.
                if self.dials.remove(&(group, peer)).is_some() {
                    self.dialed.insert((group, peer));
                    self.hand_on(group, peer, proven.stream);
                }
            }
            (Some((group, peer)), Err(failure)) => self.dial_failed(group, peer, &failure),
            // The other end proved nothing, and its connection is closed.
            (None, Err(_)) => {}
        }
    }

    fn hand_on(&self, group: u32, peer: usize, stream: TcpStream) {
        // An acceptor's expectations bound the rank.
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
        // Another process may have the listener's port by now: what it says proves nothing.
        let hopeless = matches!(failure, Failure::Refused(refusal, _) if refusal.is_proven());
        let now = Instant::now();
        if !hopeless && now + dial.pause < dial.deadline {
            return dial.retry(now);
        }
        self.dials.remove(&(group, peer));
        let Peer {
            address, host_name, ..
        } = &self.peers[peer];
        let why = format!("no data connection to {address} on {host_name}: {failure}");
        self.handler.stream_failed(group, peer, why);
    }

    /// Watches the data sockets while operations are under way that no thread polls, and only then;
    /// returns in which time one should. It asks once: a thread that takes the operations over and
    /// leaves them again afterwards finds that this one watches, and for how long.
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
        // If it cannot be watched, `wake_after` alone paces the progress.
        self.data_watched = wanted && done.is_ok();
        watches.store(self.data_watched, Ordering::SeqCst);
        asked
    }
}
