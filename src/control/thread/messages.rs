//! Routes control messages to the other ranks.
//!
//! Rank 0 forwards messages as long as its process runs. When it leaves, it continues to forward
//! messages for a while, during which the other ranks usually leave, too. Then it notifies the
//! ranks that remain, and continues until each of them has answered. The answer is the last message
//! that rank 0 receives from a rank, so no message is lost. A rank that has answered queues its
//! messages until rank 0 closes the connection. By then, the rank has received everything that rank
//! 0 forwarded. Afterwards, the rank connects to each rank that it has a message for, and only then
//! does it read from connections that it has accepted. So messages from one rank to another stay in
//! order.

use super::super::channel::Channel;
use super::super::failure::Failure;
use super::super::handshake::Proven;
use super::super::message::{Relay, TO_ALL};
use super::{ControlThread, DIAL_REQUEST, number};
use crate::error::Error;
use crate::limits::{
    CONTROL_MESSAGE_BYTES_MAX, CONTROL_QUEUE_BYTES_MAX, CONTROL_RELAY_MAX, CONTROL_RELAY_MIN,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

/// Group number in the handshake of a connection for control messages.
pub(super) const CONTROL_CHANNEL: u32 = u32::MAX;
/// Group number of rank 0's notification that it is leaving, and of each rank's answer.
const RELAY_LEAVES: u32 = u32::MAX - 2;

/// The route that this rank's messages take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Route {
    /// Through rank 0, which forwards them.
    #[default]
    Relayed,
    /// Queued until rank 0 has closed its connection.
    Waiting,
    /// Over a separate connection to each rank.
    Direct,
}

/// The state of the routes in a world of n ranks. The ID of a channel of the star is the rank that
/// it leads to. A channel that this rank dialed to rank r has the ID n + r, and a channel that it
/// accepted from rank r has the ID 2n + r.
#[derive(Default)]
pub(super) struct Messages {
    way: Route,
    /// Messages for ranks that are not connected yet.
    waiting: BTreeMap<usize, VecDeque<Relay>>,
    waiting_bytes: usize,
    /// Connections that were accepted while rank 0 is still forwarding messages. Only the last
    /// connection from each rank is kept.
    early: BTreeMap<usize, Channel>,
    /// Ranks whose connections were closed, or that do not accept connections.
    closed: BTreeSet<usize>,
    /// On rank 0: the time at which it notifies the other ranks that it is leaving, unless all of
    /// them leave earlier.
    leaves_at: Option<Instant>,
    /// On rank 0: the ranks that have answered.
    answered: BTreeSet<usize>,
    /// On rank 0: the time until which it waits for answers.
    relaying_until: Option<Instant>,
}

impl ControlThread {
    /// Returns the ID of the channel that this rank dials for its messages to `rank`.
    fn outward(&self, rank: usize) -> usize {
        self.peers.len() + rank
    }

    // ---- messages that arrive ----

    /// Processes a message that arrived on channel `id`.
    pub(super) fn route(&mut self, id: usize, relay: Relay) {
        let (count, from) = (self.peers.len(), relay.from as usize);
        if id >= count || self.rank == 0 {
            if from != id % count {
                self.drop_connection(id, "it sent a message in the name of another rank".into());
            } else if id >= count {
                self.deliver(&relay);
            } else if relay.group == RELAY_LEAVES {
                self.messages.answered.insert(from);
            } else {
                self.pass_on(relay);
            }
        } else if relay.group == RELAY_LEAVES {
            let answer = self.own(0, RELAY_LEAVES, Vec::new());
            self.connections.send(0, &answer);
            self.messages.way = Route::Waiting;
        } else {
            self.deliver(&relay);
        }
    }

    /// Processes the loss of channel `id`.
    pub(super) fn closed(&mut self, id: usize, why: String) {
        let count = self.peers.len();
        let rank = id % count;
        if id >= count {
            self.forget_rank(rank);
        } else if self.rank != 0 {
            self.messages.closed.insert(0);
            self.messages.way = Route::Direct;
            for (from, channel) in std::mem::take(&mut self.messages.early) {
                self.insert_accepted(from, channel);
            }
            let ranks: Vec<usize> = self.messages.waiting.keys().copied().collect();
            for rank in ranks {
                self.send_waiting(rank);
            }
        }
        self.lost(rank, why);
    }

    /// Passes a message to the handler, unless this process is shutting down, because the thread
    /// that shuts it down may hold locks.
    fn deliver(&mut self, relay: &Relay) {
        if self.leaving_until.is_some() {
            return;
        }
        let from = relay.from as usize;
        if relay.group != DIAL_REQUEST {
            self.handler.control(from, relay.group, &relay.payload);
        } else if let Ok(channel) = relay.payload.as_slice().try_into() {
            self.answer_dial(u32::from_le_bytes(channel), from);
        }
    }

    // ---- messages from this process ----

    pub(super) fn send_own(&mut self, to: u32, group: u32, payload: Vec<u8>) {
        let bytes = payload.len();
        if bytes > CONTROL_MESSAGE_BYTES_MAX {
            return self.cannot_send(bytes, group);
        }
        let relay = self.own(to, group, payload);
        if to == relay.from {
            self.deliver(&relay);
        } else if self.rank == 0 {
            self.pass_on(relay);
        } else if self.messages.way == Route::Relayed {
            self.connections.send(0, &relay);
        } else {
            for target in self.targets(&relay) {
                self.send_directly(target, relay.clone());
            }
        }
    }

    fn own(&self, to: u32, group: u32, payload: Vec<u8>) -> Relay {
        Relay {
            from: number(self.rank),
            to,
            group,
            payload,
        }
    }

    /// Returns the ranks that a message is addressed to.
    fn targets(&self, relay: &Relay) -> impl Iterator<Item = usize> + use<> {
        let (targets, except) = match relay.to {
            TO_ALL => (0..self.peers.len(), Some(relay.from as usize)),
            one => (one as usize..one as usize + 1, None),
        };
        targets.filter(move |target| Some(*target) != except)
    }

    /// Passes a message to the ranks that it is addressed to: delivers it to rank 0, and sends it
    /// to other ranks. Only rank 0 calls this method.
    fn pass_on(&mut self, relay: Relay) {
        for target in self.targets(&relay) {
            if target == 0 {
                self.deliver(&relay);
            } else {
                self.connections.send(target, &relay);
            }
        }
    }

    /// Sends a message over this rank's own connection to `rank`, as soon as that connection is
    /// established.
    fn send_directly(&mut self, rank: usize, relay: Relay) {
        if rank >= self.peers.len() || self.messages.closed.contains(&rank) {
            return;
        }
        self.messages.waiting_bytes += relay.payload.len();
        if self.messages.waiting_bytes > CONTROL_QUEUE_BYTES_MAX {
            return self
                .drop_all_connections("too many control messages are waiting for a connection");
        }
        let waiting = self.messages.waiting.entry(rank).or_default();
        waiting.push_back(relay);
        self.send_waiting(rank);
    }

    /// Sends the messages that are waiting for `rank`, or dials that rank.
    fn send_waiting(&mut self, rank: usize) {
        if self.messages.way != Route::Direct {
            return;
        }
        let outward = self.outward(rank);
        if self.connections.contains(outward) {
            for relay in self.take_waiting(rank) {
                self.connections.send(outward, &relay);
            }
            return;
        }
        self.start_dial(CONTROL_CHANNEL, rank);
    }

    fn take_waiting(&mut self, rank: usize) -> VecDeque<Relay> {
        let waiting = self.messages.waiting.remove(&rank).unwrap_or_default();
        let bytes: usize = waiting.iter().map(|relay| relay.payload.len()).sum();
        self.messages.waiting_bytes -= bytes;
        waiting
    }

    /// Fails this rank because of a message that is too long. No peer or connection is the cause.
    fn cannot_send(&self, bytes: usize, group: u32) {
        if self.leaving_until.is_none() {
            self.handler.fatal_error(Error::protocol(format!(
                "rank {} cannot send a control message of {bytes} bytes to group {group}: the \
                 limit is {CONTROL_MESSAGE_BYTES_MAX} bytes; report this as a bug in ringtree",
                self.rank
            )));
        }
    }

    // ---- connections ----

    fn drop_connection(&mut self, id: usize, why: String) {
        if self.connections.remove(id).is_some() {
            self.closed(id, why);
        }
    }

    pub(super) fn drop_all_connections(&mut self, why: &str) {
        for id in self.connections.ids() {
            self.drop_connection(id, why.to_owned());
        }
    }

    /// Reports that the control connection of `rank` is lost.
    pub(super) fn lost(&self, rank: usize, why: String) {
        if self.leaving_until.is_none() {
            self.handler.control_lost(rank, why);
        }
    }

    /// Adds a connection that another rank has opened for its messages to this rank.
    pub(super) fn accept(&mut self, proven: Proven) {
        let from = proven.hello.from as usize;
        let channel = Channel::new(proven.stream, proven.key, false);
        match self.messages.way {
            Route::Direct => self.insert_accepted(from, channel),
            Route::Relayed | Route::Waiting => drop(self.messages.early.insert(from, channel)),
        }
    }

    fn insert_accepted(&mut self, from: usize, channel: Channel) {
        // If the channel cannot be registered, it is dropped, which closes the connection.
        let _ = self
            .connections
            .insert(2 * self.peers.len() + from, channel);
    }

    /// Adds the connection that this rank has opened for its messages to `rank`.
    pub(super) fn connected(&mut self, rank: usize, proven: Proven) {
        self.dials.remove(&(CONTROL_CHANNEL, rank));
        let channel = Channel::new(proven.stream, proven.key, true);
        match self.connections.insert(self.outward(rank), channel) {
            Ok(()) => self.send_waiting(rank),
            Err(error) => self.unreachable(rank, error.to_string()),
        }
    }

    /// Processes a failed attempt to connect to `rank`. If no process listens at its address, or if
    /// an authenticated process refuses the connection, the rank is unreachable. Any other failure
    /// may be temporary.
    pub(super) fn not_connected(&mut self, rank: usize, failure: &Failure) {
        match failure {
            Failure::NoListener => {
                self.unreachable(rank, format!("no process is listening there: {failure}"))
            }
            Failure::Refused(refusal, _) if refusal.is_proven() => {
                self.unreachable(rank, failure.to_string());
            }
            _ => {
                if let Some(dial) = self.dials.get_mut(&(CONTROL_CHANNEL, rank)) {
                    dial.retry(Instant::now());
                }
            }
        }
    }

    fn unreachable(&mut self, rank: usize, why: String) {
        self.forget_rank(rank);
        self.lost(rank, why);
    }

    /// Drops all messages for `rank`, which is unreachable.
    fn forget_rank(&mut self, rank: usize) {
        self.dials.remove(&(CONTROL_CHANNEL, rank));
        self.take_waiting(rank);
        self.messages.closed.insert(rank);
    }

    // ---- leaving ----

    /// Starts the departure of rank 0. Usually, all ranks leave at about the same time, so rank 0
    /// first continues to forward messages for a while, during which the other ranks send their
    /// goodbyes.
    pub(super) fn stop_relaying(&mut self, now: Instant) {
        if self.rank == 0 {
            let leaves_at = now + CONTROL_RELAY_MIN;
            self.messages.leaves_at = Some(leaves_at);
            self.messages.relaying_until = Some(leaves_at + CONTROL_RELAY_MAX);
        }
    }

    /// Returns `true` if nothing is left to send or forward. On rank 0, also notifies the other
    /// ranks that it is leaving when this notification is due.
    pub(super) fn has_sent_all(&mut self, now: Instant) -> bool {
        let Some(until) = self.messages.relaying_until else {
            return self.messages.waiting.is_empty();
        };
        if self.connections.is_empty() || now >= until {
            return true;
        }
        if self.messages.leaves_at.take_if(|at| *at <= now).is_some() {
            let leaves = self.own(TO_ALL, RELAY_LEAVES, Vec::new());
            self.pass_on(leaves);
        }
        let ids = self.connections.ids();
        ids.iter().all(|id| self.messages.answered.contains(id))
    }

    /// Returns the instant at which [`ControlThread::has_sent_all`] must be called again if no
    /// event occurs.
    pub(super) fn next_look(&self, now: Instant) -> Option<Instant> {
        let times = [self.messages.leaves_at, self.messages.relaying_until];
        times.into_iter().flatten().filter(|at| *at > now).min()
    }
}
