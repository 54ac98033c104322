//! The control thread.
//!
//! A star: every rank has one connection to rank 0, which passes messages on. So rank 0 holds
//! n - 1 connections and the others one, a message takes at most two hops, and messages from one
//! rank to another stay in order. The thread sleeps in its own poll; while asynchronous operations
//! are in flight it watches the data sockets' epoll descriptor as well.

use super::channel::{Channel, Received};
use super::control::{Command, Handler, Membership, Shared};
use super::door::{Door, LISTENER, Outcome};
use super::greeting::{Failure, Greeting};
use super::messages::{Message, Peer, TO_ALL};
use crate::limits::{CONTROL_FAREWELL, CONTROL_RELAY_AFTER, HANDSHAKE_TIMEOUT};
use crate::protocol::handshake::{Expected, Hello, Purpose, Refusal, Secret};
use mio::net::TcpListener;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The waker's token.
pub(super) const WAKER: Token = Token(0);
/// The token of the data sockets' epoll descriptor.
const DATA: Token = Token(2);
/// The connection to rank r has this token + r; handshakes have theirs far above.
pub(super) const CHANNEL_FIRST: usize = 16;
/// The first and the longest pause before a data connection is dialed again.
const REDIAL_FIRST: Duration = Duration::from_millis(10);
const REDIAL_MAX: Duration = Duration::from_millis(500);

/// What the join leaves to the control thread.
pub(super) struct Parts {
    pub(super) poll: Poll,
    pub(super) channels: BTreeMap<usize, Channel>,
    pub(super) listener: Option<TcpListener>,
    pub(super) secret: Option<Secret>,
    pub(super) timeout: Duration,
    pub(super) attempt: u16,
}

/// A data connection that was asked for and is not there yet.
struct Dial {
    epoch: u16,
    deadline: Instant,
    pause: Duration,
    /// `None` while a handshake is in progress.
    next_attempt: Option<Instant>,
}

pub(super) struct ControlLoop {
    poll: Poll,
    shared: Arc<Shared>,
    handler: Arc<dyn Handler>,
    rank: usize,
    peers: Arc<Vec<Peer>>,
    channels: BTreeMap<usize, Channel>,
    door: Door,
    dials: BTreeMap<(u32, usize), Dial>,
    timeout: Duration,
    data_events: Option<RawFd>,
    data_watched: bool,
    /// Set once this process leaves: until when it waits for the others to close.
    leaving_until: Option<Instant>,
    /// Until when it still passes on what others send, for they may be leaving too.
    relaying_until: Instant,
    /// Ranks to which nothing more will be sent.
    finished: BTreeSet<usize>,
}

fn number(value: usize) -> u32 {
    u32::try_from(value).expect("invariant: ranks are below WORLD_SIZE_MAX")
}

impl ControlLoop {
    pub(super) fn new(
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
        let registry = parts.poll.registry().try_clone()?;
        let door = Door::new(registry, parts.listener, expected, parts.secret)?;
        Ok(Self {
            poll: parts.poll,
            shared: Arc::clone(&membership.control.shared),
            handler,
            rank: membership.rank,
            peers: Arc::clone(&membership.peers),
            channels: parts.channels,
            door,
            dials: BTreeMap::new(),
            timeout: parts.timeout,
            data_events,
            data_watched: false,
            leaving_until: None,
            relaying_until: Instant::now(),
            finished: BTreeSet::new(),
        })
    }

    /// The thread's body.
    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(256);
        self.catch_up();
        loop {
            self.obey();
            if let Some(until) = self.leaving_until {
                if Instant::now() >= self.relaying_until {
                    self.finish_flushed();
                }
                if self.channels.is_empty() || Instant::now() >= until {
                    return;
                }
            }
            self.watch_data();
            let timeout = self.sleep_at_most();
            if let Err(error) = self.poll.poll(&mut events, timeout)
                && error.kind() != ErrorKind::Interrupted
            {
                let why = format!("this process cannot wait for its connections: {error}");
                self.lose_all(&why);
                return;
            }
            self.dispatch(&events);
            if self.leaving_until.is_none() {
                self.redial();
                self.handler.awake();
            }
        }
    }

    /// What arrived, or was lost, before the thread was there to see it.
    fn catch_up(&mut self) {
        if self.rank == 0 {
            for rank in 1..self.peers.len() {
                if !self.channels.contains_key(&rank) {
                    self.handler
                        .control_lost(rank, "it left during the join".into());
                }
            }
        }
        self.read_all();
    }

    fn read_all(&mut self) {
        let ranks: Vec<usize> = self.channels.keys().copied().collect();
        for rank in ranks {
            self.read(rank);
        }
    }

    fn sleep_at_most(&self) -> Option<Duration> {
        let now = Instant::now();
        let left = |at: Instant| at.saturating_duration_since(now);
        let dials = self.dials.values().filter_map(|dial| dial.next_attempt);
        let deadlines = dials
            .chain(self.door.next_deadline())
            .chain(self.leaving_until);
        let relaying = self
            .leaving_until
            .map(|_| self.relaying_until)
            .filter(|at| *at > now);
        let asked = match self.leaving_until {
            None => self.handler.wake_after(),
            Some(_) => None,
        };
        deadlines.chain(relaying).map(left).chain(asked).min()
    }

    fn dispatch(&mut self, events: &Events) {
        let mut outcomes = Vec::new();
        for event in events {
            match event.token() {
                WAKER | DATA => {}
                LISTENER => outcomes.extend(self.door.admit()),
                Token(at) if at >= CHANNEL_FIRST && at - CHANNEL_FIRST < self.peers.len() => {
                    self.read(at - CHANNEL_FIRST);
                }
                token => outcomes.extend(self.door.advance(token)),
            }
        }
        outcomes.extend(self.door.expire(Instant::now()));
        for outcome in outcomes {
            self.settle(outcome);
        }
    }

    // ---- control messages ----

    /// Sends what is queued for `rank` and takes what came from it.
    fn read(&mut self, rank: usize) {
        loop {
            let Some(channel) = self.channels.get_mut(&rank) else {
                return;
            };
            let received = match channel.flush() {
                Ok(()) => channel.next(),
                // What it sent before it broke still counts.
                Err(why) => match channel.next() {
                    Received::Empty => Received::Lost(why),
                    other => other,
                },
            };
            match received {
                Received::Message(Message::Relay {
                    from,
                    to,
                    group,
                    payload,
                }) => {
                    let told = usize::try_from(from).unwrap_or(usize::MAX);
                    if self.rank == 0 && told != rank {
                        self.lose(rank, "it spoke for another rank".into());
                    } else if self.rank == 0 {
                        self.pass_on(rank, to, group, payload);
                    } else {
                        self.deliver(told, group, &payload);
                    }
                }
                Received::Message(_) => {
                    self.lose(rank, "it sent a message of the join after it".into());
                }
                Received::Empty => return,
                Received::Lost(why) => self.lose(rank, why),
            }
        }
    }

    /// Rank 0: brings a message to whom it is for.
    fn pass_on(&mut self, from: usize, to: u32, group: u32, payload: Vec<u8>) {
        let targets: Vec<usize> = match to {
            TO_ALL => (0..self.peers.len()).filter(|rank| *rank != from).collect(),
            one => vec![one as usize],
        };
        let message = Message::Relay {
            from: number(from),
            to,
            group,
            payload,
        };
        for target in targets {
            match &message {
                Message::Relay { payload, .. } if target == 0 => {
                    self.deliver(from, group, payload);
                }
                message => self.send(target, message),
            }
        }
    }

    /// Hands a message to this process, unless it is leaving and may hold locks while it waits.
    fn deliver(&self, from: usize, group: u32, payload: &[u8]) {
        if self.leaving_until.is_none() {
            self.handler.control(from, group, payload);
        }
    }

    fn send(&mut self, rank: usize, message: &Message) {
        if self.finished.contains(&rank) {
            return;
        }
        if let Some(channel) = self.channels.get_mut(&rank)
            && let Err(why) = channel.send(message)
        {
            self.lose(rank, why);
        }
    }

    fn lose(&mut self, rank: usize, why: String) {
        if self.channels.remove(&rank).is_some() && self.leaving_until.is_none() {
            self.handler.control_lost(rank, why);
        }
    }

    fn lose_all(&mut self, why: &str) {
        let ranks: Vec<usize> = self.channels.keys().copied().collect();
        for rank in ranks {
            self.lose(rank, why.to_owned());
        }
    }

    // ---- what this process asks for ----

    fn obey(&mut self) {
        loop {
            let (command, overflowed) = self.shared.take();
            if overflowed {
                self.lose_all("more control messages were queued than can be sent");
            }
            match command {
                None => return,
                Some(Command::Send { to, group, payload }) => self.send_own(to, group, payload),
                Some(Command::Dial { group, epoch, peer }) => self.dial(group, epoch, peer),
                Some(Command::Stop) => self.leave(),
            }
        }
    }

    fn send_own(&mut self, to: u32, group: u32, payload: Vec<u8>) {
        if to == number(self.rank) {
            self.deliver(self.rank, group, &payload);
        } else if self.rank == 0 {
            self.pass_on(0, to, group, payload);
        } else {
            let from = number(self.rank);
            let message = Message::Relay {
                from,
                to,
                group,
                payload,
            };
            self.send(0, &message);
        }
    }

    fn leave(&mut self) {
        if self.leaving_until.is_some() {
            return;
        }
        let now = Instant::now();
        self.leaving_until = Some(now + CONTROL_FAREWELL);
        if self.rank == 0 {
            // All ranks tend to leave together, and their goodbyes go by here. Those that leave
            // later find the star gone; they know from rank 0's own goodbye.
            self.relaying_until = now + CONTROL_RELAY_AFTER;
        }
        self.door.close();
        self.dials.clear();
    }

    /// Says goodbye on every connection whose queue is empty. Closing comes only after the other
    /// end has closed: a close with unread bytes would reset the connection, and what the other end
    /// had not read yet could be lost.
    fn finish_flushed(&mut self) {
        for (rank, channel) in &mut self.channels {
            if channel.is_flushed() && self.finished.insert(*rank) {
                channel.finish();
            }
        }
    }

    // ---- data connections ----

    fn dial(&mut self, group: u32, epoch: u16, peer: usize) {
        let dials_first = self.rank < peer && peer < self.peers.len();
        if !dials_first || self.leaving_until.is_some() {
            return;
        }
        let now = Instant::now();
        self.dials.entry((group, peer)).or_insert(Dial {
            epoch,
            deadline: now + self.timeout,
            pause: REDIAL_FIRST,
            next_attempt: Some(now),
        });
        self.redial();
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
                epoch: dial.epoch,
                attempt: self.door.attempt(),
                from: number(self.rank),
                to: number(peer),
            };
            let secret = self.door.secret();
            let remote = self.peers[peer].address;
            let greeted = Greeting::dial(remote, &secret, hello, HANDSHAKE_TIMEOUT)
                .and_then(|greeting| self.door.greet(greeting));
            if let Err(error) = greeted {
                self.dial_failed(group, peer, &error.into());
            }
        }
    }

    /// A handshake for data ended.
    fn settle(&mut self, outcome: Outcome) {
        match (outcome.dialed, outcome.result) {
            (None, Ok(greeted)) => {
                let peer = greeted.hello.from as usize;
                self.handler
                    .stream(greeted.hello.group, peer, greeted.stream);
            }
            (Some((group, peer)), Ok(greeted)) => {
                self.dials.remove(&(group, peer));
                self.handler.stream(group, peer, greeted.stream);
            }
            (Some((group, peer)), Err(failure)) => self.dial_failed(group, peer, &failure),
            // A stranger; it cost a bounded time and is gone.
            (None, Err(_)) => {}
        }
    }

    fn dial_failed(&mut self, group: u32, peer: usize, failure: &Failure) {
        let Some(dial) = self.dials.get_mut(&(group, peer)) else {
            return;
        };
        // The listener's port may belong to another process by now, hence garbage can pass.
        let hopeless = matches!(failure, Failure::Refused(refusal, _)
            if *refusal != Refusal::Garbage);
        let now = Instant::now();
        if !hopeless && now + dial.pause < dial.deadline {
            dial.next_attempt = Some(now + dial.pause);
            dial.pause = (dial.pause * 2).min(REDIAL_MAX);
            return;
        }
        self.dials.remove(&(group, peer));
        let Peer {
            address, host_name, ..
        } = &self.peers[peer];
        let why = format!("no data connection to {address} on {host_name}: {failure}");
        self.handler.stream_failed(group, peer, why);
    }

    /// Watches the data sockets exactly while the handler wants it.
    fn watch_data(&mut self) {
        let Some(descriptor) = self.data_events else {
            return;
        };
        let wanted = self.leaving_until.is_none() && self.handler.wants_data_events();
        if wanted == self.data_watched {
            return;
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
    }
}
