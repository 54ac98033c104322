//! Manages the connections that are registered with one poll: a listener, handshakes in progress,
//! and authenticated channels.
//!
//! Ranks use this module during the join and afterwards, and launchers use it while they run. The
//! owner polls, passes the events to [`Connections::note`] and then takes the results from
//! [`Connections::next`], one at a time, so that at most one message is in memory. The channels
//! take turns, and after [`CONTROL_BATCH_MAX`] messages, the owner turns to its other duties. So a
//! peer that never stops sending blocks neither the other channels nor the owner.

use super::acceptor::{Acceptor, FIRST_HANDSHAKE, LISTENER};
use super::channel::{Channel, Received};
use super::handshake::Proven;
use super::message::encode;
use crate::limits::CONTROL_BATCH_MAX;
use crate::protocol::handshake::{Expected, Secret};
use mio::net::TcpListener;
use mio::{Events, Registry, Token};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::time::Instant;

pub(crate) use super::acceptor::Outcome;

/// Token of channel 0. The token of channel `id` is this value plus `id`. The listener and the
/// owner use lower tokens, and handshakes use much higher tokens.
const CHANNEL_FIRST: usize = 16;

/// An event on a connection.
pub(crate) enum Incoming<M> {
    /// A handshake has succeeded or failed.
    Handshake(Outcome),
    /// A message has been received on the channel with this ID.
    Message(usize, M),
    /// The channel with this ID has been lost, for this reason.
    Lost(usize, String),
}

/// A listener, handshakes in progress, and channels that are identified by IDs.
pub(crate) struct Connections {
    registry: Registry,
    /// The listener and the handshakes in progress.
    pub(crate) acceptor: Acceptor,
    channels: BTreeMap<usize, Channel>,
    next_id: usize,
    /// Channels that may be readable or writable.
    ready: BTreeSet<usize>,
    /// The channel that was read last.
    last: usize,
    /// Number of messages that [`Connections::next`] may still return before [`Connections::note`]
    /// is called again.
    left: usize,
    outcomes: VecDeque<Outcome>,
}

impl Connections {
    /// Creates a set of connections that has no channels yet. `listener` accepts connections that
    /// match `expected`. Without a secret, it accepts only connections from loopback addresses.
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
            last: 0,
            left: CONTROL_BATCH_MAX,
            outcomes: VecDeque::new(),
        })
    }

    /// Adds a channel over the connection `proven`, which this end dialed if `dialed` is `true` and
    /// accepted otherwise. Returns the channel's ID, which is never reused.
    pub(crate) fn add(&mut self, proven: Proven, dialed: bool) -> io::Result<usize> {
        let id = self.next_id;
        self.next_id += 1;
        let channel = Channel::new(proven.stream, proven.key, dialed);
        self.insert(id, channel)?;
        Ok(id)
    }

    /// Adds a channel under the ID `id`. Messages that it has already received are returned as if
    /// they had just arrived.
    pub(crate) fn insert(&mut self, id: usize, mut channel: Channel) -> io::Result<()> {
        channel.register(&self.registry, Token(CHANNEL_FIRST + id))?;
        self.channels.insert(id, channel);
        self.ready.insert(id);
        Ok(())
    }

    /// Removes a channel, so that it can be used elsewhere or closed.
    pub(crate) fn remove(&mut self, id: usize) -> Option<Channel> {
        self.channels.remove(&id)
    }

    /// Returns the IDs of all channels.
    pub(crate) fn ids(&self) -> Vec<usize> {
        self.channels.keys().copied().collect()
    }

    pub(crate) fn contains(&self, id: usize) -> bool {
        self.channels.contains_key(&id)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.channels.is_empty()
    }

    /// Processes the poll's `events` and the handshakes whose deadlines have passed.
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
        self.left = CONTROL_BATCH_MAX;
    }

    /// Returns the instant at which [`Connections::note`] is due if no event occurs.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        match self.ready.is_empty() {
            true => self.acceptor.next_deadline(),
            false => Some(Instant::now()),
        }
    }

    /// Returns the next event, or `None` if there is no event or if [`Connections::note`] must be
    /// called first.
    pub(crate) fn next<M: DeserializeOwned>(&mut self) -> Option<Incoming<M>> {
        if let Some(outcome) = self.outcomes.pop_front() {
            return Some(Incoming::Handshake(outcome));
        }
        while self.left > 0 {
            let mut later = self.ready.range(self.last + 1..);
            let id = *later.next().or(self.ready.first())?;
            self.last = id;
            let received = match self.channels.get_mut(&id) {
                Some(channel) => channel.flush_and_receive(),
                None => Received::Empty,
            };
            match received {
                Received::Message(message) => {
                    self.left -= 1;
                    return Some(Incoming::Message(id, message));
                }
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

    /// Queues `message` for a channel and sends as many bytes as the system accepts now. If the
    /// channel no longer exists or breaks, the message is dropped. [`Connections::next`] reports
    /// the loss of the channel after it has returned the messages that the channel had received.
    pub(crate) fn send(&mut self, id: usize, message: &impl Serialize) {
        self.send_encoded(id, &encode(message));
    }

    /// Like [`Connections::send`], but takes an encoded message.
    pub(crate) fn send_encoded(&mut self, id: usize, message: &[u8]) {
        if let Some(channel) = self.channels.get_mut(&id) {
            channel.send_encoded(message);
            if channel.is_broken() {
                self.ready.insert(id);
            }
        }
    }

    /// Returns the number of bytes that are waiting to be sent on a channel, or 0 if the channel no
    /// longer exists.
    pub(crate) fn queued_bytes(&self, id: usize) -> usize {
        self.channels.get(&id).map_or(0, Channel::queued_bytes)
    }

    /// Sends as many bytes as the system accepts now. Returns `true` if nothing is left to send. A
    /// channel that breaks has nothing left to send, and its loss is reported by
    /// [`Connections::next`].
    pub(crate) fn flush(&mut self) -> bool {
        self.channels.values_mut().for_each(Channel::flush);
        self.is_flushed()
    }

    /// Returns `true` if nothing is left to send.
    pub(crate) fn is_flushed(&self) -> bool {
        self.channels.values().all(Channel::is_flushed)
    }

    /// Closes the sending direction of every channel that has nothing left to send. The other end
    /// then closes the connection. This end must not close it first, because closing a connection
    /// that has unread bytes resets it, and bytes that the other end has not read could be lost.
    pub(super) fn finish_flushed(&mut self) {
        for channel in self.channels.values_mut() {
            if channel.is_flushed() {
                channel.finish();
            }
        }
    }

    /// Closes the listener and all connections.
    pub(crate) fn close(&mut self) {
        self.acceptor.close();
        self.channels.clear();
    }

    /// Returns `true` if neither messages nor connections can arrive any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.channels.is_empty() && !self.acceptor.is_listening()
    }
}

#[cfg(test)]
pub(crate) mod tests;
