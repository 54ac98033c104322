//! The connections of one poll: a listener, handshakes in progress, and authenticated channels.
//!
//! Ranks use it when they join and afterwards, launchers while they run. The owner polls, gives
//! the events to [`Connections::note`] and then takes what they brought by [`Connections::next`],
//! one at a time, so that no more than one message is held in memory. The channels take turns, and
//! after [`MESSAGES_AT_ONCE`] messages the owner sees to its other duties: a peer that never stops
//! sending holds up neither.

use super::acceptor::{Acceptor, FIRST_HANDSHAKE, LISTENER};
use super::channel::{Channel, Received};
use super::handshake::Proven;
use super::message::encode;
use crate::limits::MESSAGES_AT_ONCE;
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
    /// The channel whose message was taken last.
    last: usize,
    /// Messages that may be taken before the next look at what is ready.
    left: usize,
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
            last: 0,
            left: MESSAGES_AT_ONCE,
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
        self.left = MESSAGES_AT_ONCE;
    }

    /// When [`Connections::note`] is due even if nothing happens.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        match self.ready.is_empty() {
            true => self.acceptor.next_deadline(),
            false => Some(Instant::now()),
        }
    }

    /// The next thing that happened, if anything is left that may be taken now.
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

    /// Queues `message` for a channel and sends what the system takes now. A channel that is not
    /// there any more, or breaks, takes everything and sends nothing: [`Connections::next`] reports
    /// its loss after the messages that it has received.
    pub(crate) fn send(&mut self, id: usize, message: &impl Serialize) {
        self.send_encoded(id, &encode(message));
    }

    /// Likewise a message that is encoded already.
    pub(crate) fn send_encoded(&mut self, id: usize, message: &[u8]) {
        if let Some(channel) = self.channels.get_mut(&id) {
            channel.send_encoded(message);
            if channel.is_broken() {
                self.ready.insert(id);
            }
        }
    }

    /// Bytes that wait to be sent on a channel; none if it is not there any more.
    pub(crate) fn queued_bytes(&self, id: usize) -> usize {
        self.channels.get(&id).map_or(0, Channel::queued_bytes)
    }

    /// Sends what the system takes now; whether nothing is left to send. A channel that breaks has
    /// nothing left: [`Connections::next`] reports its loss.
    pub(crate) fn flush(&mut self) -> bool {
        self.channels.values_mut().for_each(Channel::flush);
        self.is_flushed()
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::control::cancel::Cancel;
    use crate::control::channel::Channel;
    use crate::control::handshake::connect;
    use crate::control::wait::wait;
    use crate::protocol::handshake::{Hello, Purpose};
    use mio::Poll;
    use std::time::Duration;

    /// Connections with channels 0 to `count` - 1, and the other ends of these.
    pub(crate) fn connected(count: usize) -> (Poll, Connections, Vec<Channel>) {
        let expected = Expected {
            purpose: Purpose::Control,
            world_size: 2,
            rank: 0,
            attempt: 0,
        };
        let hello = Hello {
            purpose: Purpose::Control,
            world_size: 2,
            group: 0,
            epoch: 0,
            attempt: 0,
            from: 1,
            to: 0,
        };
        let patience = Duration::from_secs(20);
        let secret = Secret::new([5; 32]);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let listener = TcpListener::from_std(listener);
        let address = listener.local_addr().unwrap();
        let mut poll = Poll::new().unwrap();
        let own = Some(secret.clone());
        let listener = Some(listener);
        let mut connections = Connections::new(poll.registry(), listener, expected, own).unwrap();
        let end = Instant::now() + patience;
        let dial = move || {
            let dialed = connect(
                address,
                Some(&secret),
                hello,
                patience,
                end,
                &Cancel::default(),
            );
            let dialed = dialed.map_err(|why| why.to_string()).unwrap();
            Channel::new(dialed.stream, dialed.key, true)
        };
        let mut events = Events::with_capacity(16);
        let dialing = std::thread::spawn(move || (0..count).map(|_| dial()).collect());
        while connections.channels.len() < count {
            wait(&mut poll, &mut events, Some(end)).unwrap();
            connections.note(&events);
            while let Some(Incoming::<()>::Handshake(outcome)) = connections.next() {
                connections.add(outcome.result.unwrap(), false).unwrap();
            }
            assert!(Instant::now() < end);
        }
        (poll, connections, dialing.join().unwrap())
    }

    #[test]
    fn a_channel_that_never_stops_sending_holds_up_no_other_and_not_the_owner() {
        let (_poll, mut connections, mut ends) = connected(2);
        for number in 0..MESSAGES_AT_ONCE + 100 {
            ends[0].send(&number);
        }
        ends[1].send(&7_usize);
        let mut from = [0; 2];
        let none = Events::with_capacity(1);
        for turn in 0.. {
            connections.ready.extend([0, 1]);
            let mut taken = 0;
            while let Some(Incoming::Message(id, _)) = connections.next::<usize>() {
                from[id] += 1;
                taken += 1;
                assert!(turn > 0 || from[0] < 3 || from[1] == 1, "they take turns");
            }
            assert!(taken <= MESSAGES_AT_ONCE);
            if from == [MESSAGES_AT_ONCE + 100, 1] {
                return;
            }
            assert!(turn > 0 || taken == MESSAGES_AT_ONCE);
            let at = connections.next_deadline();
            assert!(turn > 0 || at.is_some_and(|at| at <= Instant::now()));
            connections.note(&none);
        }
    }

    #[test]
    fn what_lies_in_a_connection_is_read_though_a_write_to_it_fails() {
        let (mut poll, mut connections, mut ends) = connected(1);
        let mut end = ends.remove(0);
        (1..4_usize).for_each(|number| end.send(&number));
        // Bytes that it has not read make the end's close a reset, which fails the next write.
        drop(end);
        let end = Instant::now() + Duration::from_secs(20);
        let mut events = Events::with_capacity(16);
        while !connections.channels[&0].is_broken() {
            assert!(Instant::now() < end);
            connections.send(0, &9_usize);
        }
        let mut seen = Vec::new();
        loop {
            match connections.next::<usize>() {
                Some(Incoming::Message(0, number)) => seen.push(number),
                Some(Incoming::Lost(0, _)) => break,
                Some(_) => panic!("it has one channel"),
                None => wait(&mut poll, &mut events, Some(end)).unwrap(),
            }
            assert!(Instant::now() < end);
            connections.note(&events);
        }
        assert_eq!(seen, [1, 2, 3]);
        assert!(!connections.contains(0));
    }
}
