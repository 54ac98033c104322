//! The connections of one poll: a listener, handshakes in progress, and authenticated channels.
//!
//! Ranks use it when they join and afterwards, launchers while they run. The owner polls, gives
//! the events to [`Connections::note`] and then takes what they brought by [`Connections::next`],
//! one at a time, so that no more than one message is held in memory.

use super::acceptor::{Acceptor, FIRST_HANDSHAKE, LISTENER};
use super::channel::{Channel, Received};
use super::handshake::Proven;
use crate::protocol::handshake::{Expected, Secret};
use mio::net::TcpListener;
use mio::{Events, Registry, Token};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::time::Instant;

pub(crate) use super::acceptor::Outcome;

/// Channel `id` has this token + `id`. Lower tokens are the listener's and the owner's own;
/// handshakes have theirs far above.
const CHANNEL_FIRST: usize = 16;

/// What happened on a connection.
pub(crate) enum Incoming<M> {
    /// A handshake ended.
    Handshake(Outcome),
    /// A message arrived on this channel.
    Message(usize, M),
    /// This channel is closed, and why.
    Lost(usize, String),
}

/// A listener, handshakes in progress, and channels by a number.
pub(crate) struct Connections {
    registry: Registry,
    /// The listener and the handshakes in progress.
    pub(crate) acceptor: Acceptor,
    channels: BTreeMap<usize, Channel>,
    next_id: usize,
    /// Channels that may have something to read or room to write.
    ready: BTreeSet<usize>,
    outcomes: VecDeque<Outcome>,
}

impl Connections {
    /// No channels yet; `listener`, if there is one, accepts what is `expected`. Without a secret
    /// it accepts only from loopback addresses.
    pub(crate) fn new(
        registry: &Registry,
        listener: Option<TcpListener>,
        expected: Expected,
        secret: Option<Secret>,
    ) -> io::Result<Self> {
        Ok(Self {
            registry: registry.try_clone()?,
            acceptor: Acceptor::new(registry.try_clone()?, listener, expected, secret)?,
            channels: BTreeMap::new(),
            next_id: 0,
            ready: BTreeSet::new(),
            outcomes: VecDeque::new(),
        })
    }

    /// Adds a channel, which this end dialed or accepted, under a number that was never used;
    /// returns the number.
    pub(crate) fn add(&mut self, proven: Proven, dialed: bool) -> io::Result<usize> {
        let id = self.next_id;
        self.next_id += 1;
        let channel = Channel::new(proven.stream, proven.key, dialed);
        self.insert(id, channel)?;
        Ok(id)
    }

    /// Adds a channel under the number `id`. What it received before counts as arrived now.
    pub(crate) fn insert(&mut self, id: usize, mut channel: Channel) -> io::Result<()> {
        channel.register(&self.registry, Token(CHANNEL_FIRST + id))?;
        self.channels.insert(id, channel);
        self.ready.insert(id);
        Ok(())
    }

    /// Takes a channel away, to use it elsewhere or to close it.
    pub(crate) fn remove(&mut self, id: usize) -> Option<Channel> {
        self.channels.remove(&id)
    }

    /// The numbers of the channels.
    pub(crate) fn ids(&self) -> Vec<usize> {
        self.channels.keys().copied().collect()
    }

    pub(crate) fn contains(&self, id: usize) -> bool {
        self.channels.contains_key(&id)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.channels.is_empty()
    }

    /// Takes note of what `events` say is ready, and of handshakes that are late.
    pub(crate) fn note(&mut self, events: &Events) {
        for event in events {
            match event.token() {
                LISTENER => self.outcomes.extend(self.acceptor.admit()),
                Token(at) if at >= FIRST_HANDSHAKE => {
                    self.outcomes.extend(self.acceptor.advance(Token(at)));
                }
                Token(at) if at >= CHANNEL_FIRST => {
                    self.ready.insert(at - CHANNEL_FIRST);
                }
                _ => {}
            }
        }
        self.outcomes.extend(self.acceptor.expire(Instant::now()));
    }

    /// The next thing that happened, if anything is left.
    pub(crate) fn next<M: DeserializeOwned>(&mut self) -> Option<Incoming<M>> {
        if let Some(outcome) = self.outcomes.pop_front() {
            return Some(Incoming::Handshake(outcome));
        }
        while let Some(id) = self.ready.first().copied() {
            let received = match self.channels.get_mut(&id) {
                Some(channel) => channel.flush_and_receive(),
                None => Received::Empty,
            };
            match received {
                Received::Message(message) => return Some(Incoming::Message(id, message)),
                Received::Empty => {
                    self.ready.remove(&id);
                }
                Received::Lost(why) => {
                    self.ready.remove(&id);
                    self.channels.remove(&id);
                    return Some(Incoming::Lost(id, why));
                }
            }
        }
        None
    }

    /// Queues `message` for a channel and sends what the system takes now. The error says why the
    /// channel is lost. A channel that is not there any more takes everything and sends nothing.
    pub(crate) fn send(&mut self, id: usize, message: &impl Serialize) -> Result<(), String> {
        match self.channels.get_mut(&id) {
            Some(channel) => channel.send(message),
            None => Ok(()),
        }
    }

    /// Sends what the system takes now; whether nothing is left to send. A channel that breaks has
    /// nothing left: [`Connections::next`] reports its loss.
    pub(crate) fn flush(&mut self) -> bool {
        let mut flushed = true;
        for channel in self.channels.values_mut() {
            flushed &= channel.flush().is_err() || channel.is_flushed();
        }
        flushed
    }

    /// Whether nothing is left to send.
    pub(crate) fn is_flushed(&self) -> bool {
        self.channels.values().all(Channel::is_flushed)
    }

    /// Tells every channel that has nothing left to send that nothing more will come. The other
    /// end then closes. Closing first would be wrong: with unread bytes it resets the connection,
    /// and what the other end had not read yet could be lost.
    pub(super) fn finish_flushed(&mut self) {
        for channel in self.channels.values_mut() {
            if channel.is_flushed() {
                channel.finish();
            }
        }
    }

    /// Closes everything.
    pub(crate) fn close(&mut self) {
        self.acceptor.close();
        self.channels.clear();
    }

    /// Whether nothing can come any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.channels.is_empty() && !self.acceptor.is_listening()
    }
}
