//! Routes control messages to the other ranks.
//!
//! Rank 0 passes them on as long as its process runs. When it leaves, it continues for a while, in
//! which the other ranks mostly leave, too. Then it notifies those that stay, and continues until
//! each has answered. An answer is the last message of its rank that rank 0 passes on,
//! so none is lost. A rank that has answered keeps its messages until rank 0 closes the connection:
//! by then it has everything that rank 0 passed on. From then on it connects to each rank that it
//! has a message for, so messages from one rank to another stay in order. What it accepts from
//! others it reads only then, too.

use super::super::channel::Channel;
use super::super::failure::Failure;
use super::super::handshake::Proven;
use super::super::message::{Relay, TO_ALL};
use super::{ControlThread, PLEASE_DIAL, number};
use crate::error::Error;
use crate::limits::{
    CONTROL_MESSAGE_BYTES_MAX, CONTROL_QUEUE_BYTES_MAX, CONTROL_RELAY_MAX, CONTROL_RELAY_MIN,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

/// In the place of a data channel's number, in a handshake: the connection is for control messages.
pub(super) const CONTROL_CHANNEL: u32 = u32::MAX;
/// In the place of a group's number: from rank 0, that it leaves; and every rank's answer.
const RELAY_LEAVES: u32 = u32::MAX - 2;

/// The route of this rank's messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Way {
    /// Rank 0 passes them on.
    #[default]
    Relayed,
    /// They wait until rank 0 has closed its connection.
    Waiting,
    /// Over a connection to each rank.
    Direct,
}

/// The state of the routes. A channel of the star has its rank's number. The channel that this rank
/// dialed to rank r has the number n + r, and the one that it accepted from r the number 2n + r.
#[derive(Default)]
pub(super) struct Messages {
    way: Way,
    /// Messages for ranks that are not connected yet.
    waiting: BTreeMap<usize, VecDeque<Relay>>,
    waiting_bytes: usize,
    /// Connections that were accepted while rank 0 still passes messages on, the last one of each
    /// rank.
    early: BTreeMap<usize, Channel>,
    /// Ranks whose connection closed, or which accept none.
    closed: BTreeSet<usize>,
    /// Rank 0: when it tells the others that it leaves, unless all leave before; which of them have
    /// answered; and until when it waits for the others.
    leaves_at: Option<Instant>,
    answered: BTreeSet<usize>,
    relaying_until: Option<Instant>,
}

impl ControlThread {
    /// The channel that this rank dialed for its messages to `rank`.
    fn outward(&self, rank: usize) -> usize {
        self.peers.len() + rank
    }

    // ---- messages that arrive ----

    /// A message arrived on the channel `id`.
    pub(super) fn route(&mut self, id: usize, relay: Relay) {
        let (count, from) = (self.peers.len(), relay.from as usize);
        if id >= count || self.rank == 0 {
            if from != id % count {
                self.lose(id, "it spoke for another rank".into());
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
            self.messages.way = Way::Waiting;
        } else {
            self.deliver(&relay);
        }
    }

    /// The channel `id` is closed.
    pub(super) fn closed(&mut self, id: usize, why: String) {
        let count = self.peers.len();
        let rank = id % count;
        if id >= count {
            self.forget_rank(rank);
        } else if self.rank != 0 {
            self.messages.closed.insert(0);
            self.messages.way = Way::Direct;
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

    /// Hands a message to this process, unless it is shutting down and may hold locks meanwhile.
    fn deliver(&mut self, relay: &Relay) {
        if self.leaving_until.is_some() {
            return;
        }
        let from = relay.from as usize;
        if relay.group != PLEASE_DIAL {
            self.handler.control(from, relay.group, &relay.payload);
        } else if let Ok(channel) = relay.payload.as_slice().try_into() {
            self.answer_dial(u32::from_le_bytes(channel), from);
        }
    }

    // ---- messages of this process ----

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
        } else if self.messages.way == Way::Relayed {
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

    /// The ranks that a message is for.
    fn targets(&self, relay: &Relay) -> impl Iterator<Item = usize> + use<> {
        let (targets, except) = match relay.to {
            TO_ALL => (0..self.peers.len(), Some(relay.from as usize)),
            one => (one as usize..one as usize + 1, None),
        };
        targets.filter(move |target| Some(*target) != except)
    }

    /// Rank 0: delivers a message, or sends it to the ranks it is for.
    fn pass_on(&mut self, relay: Relay) {
        for target in self.targets(&relay) {
            if target == 0 {
                self.deliver(&relay);
            } else {
                self.connections.send(target, &relay);
            }
        }
    }

    /// Sends a message over this rank's own connection to `rank`, once there is one.
    fn send_directly(&mut self, rank: usize, relay: Relay) {
        if rank >= self.peers.len() || self.messages.closed.contains(&rank) {
            return;
        }
        self.messages.waiting_bytes += relay.payload.len();
        if self.messages.waiting_bytes > CONTROL_QUEUE_BYTES_MAX {
            return self.lose_all("more control messages wait for connections than are kept");
        }
        let waiting = self.messages.waiting.entry(rank).or_default();
        waiting.push_back(relay);
        self.send_waiting(rank);
    }

    /// Sends the messages that wait for `rank`, or dials it.
    fn send_waiting(&mut self, rank: usize) {
        if self.messages.way != Way::Direct {
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

    /// No peer and no connection is to blame.
    fn cannot_send(&self, bytes: usize, group: u32) {
        if self.leaving_until.is_none() {
            self.handler.cannot_go_on(Error::protocol(format!(
                "rank {} has a control message of {bytes} bytes for group {group}, but at most \
                 {CONTROL_MESSAGE_BYTES_MAX} are sent; report this as a fault of ringtree",
                self.rank
            )));
        }
    }

    // ---- connections ----

    fn lose(&mut self, id: usize, why: String) {
        if self.connections.remove(id).is_some() {
            self.closed(id, why);
        }
    }

    pub(super) fn lose_all(&mut self, why: &str) {
        for id in self.connections.ids() {
            self.lose(id, why.to_owned());
        }
    }

    /// The control connection of `rank` is gone.
    pub(super) fn lost(&self, rank: usize, mut why: String) {
        if self.leaving_until.is_none() {
            let (here, there) = (&self.peers[self.rank], &self.peers[rank]);
            if here.host_id != there.host_id {
                why = format!("{why} (it runs on host {})", there.host_name);
            }
            self.handler.control_lost(rank, why);
        }
    }

    /// Another rank has connected for its messages to this one.
    pub(super) fn accept(&mut self, proven: Proven) {
        let from = proven.hello.from as usize;
        let channel = Channel::new(proven.stream, proven.key, false);
        match self.messages.way {
            Way::Direct => self.insert_accepted(from, channel),
            Way::Relayed | Way::Waiting => drop(self.messages.early.insert(from, channel)),
        }
    }

    fn insert_accepted(&mut self, from: usize, channel: Channel) {
        // If it cannot be watched, its drop tells the other end.
        let _ = self
            .connections
            .insert(2 * self.peers.len() + from, channel);
    }

    /// This rank has connected to `rank` for its messages.
    pub(super) fn connected(&mut self, rank: usize, proven: Proven) {
        self.dials.remove(&(CONTROL_CHANNEL, rank));
        let channel = Channel::new(proven.stream, proven.key, true);
        match self.connections.insert(self.outward(rank), channel) {
            Ok(()) => self.send_waiting(rank),
            Err(error) => self.unreachable(rank, error.to_string()),
        }
    }

    /// No connection to `rank` was made this time. A process that ended refuses one; any other
    /// failure may pass.
    pub(super) fn not_connected(&mut self, rank: usize, failure: &Failure) {
        match failure {
            Failure::NoListener => {
                self.unreachable(rank, format!("no process listens there: {failure}"))
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

    /// No message reaches `rank` any more.
    fn forget_rank(&mut self, rank: usize) {
        self.dials.remove(&(CONTROL_CHANNEL, rank));
        self.take_waiting(rank);
        self.messages.closed.insert(rank);
    }

    // ---- leaving ----

    /// Rank 0 leaves. Mostly all ranks leave at the same time: so it first passes messages on for a
    /// while, in which they say goodbye.
    pub(super) fn stop_relaying(&mut self, now: Instant) {
        if self.rank == 0 {
            let leaves_at = now + CONTROL_RELAY_MIN;
            self.messages.leaves_at = Some(leaves_at);
            self.messages.relaying_until = Some(leaves_at + CONTROL_RELAY_MAX);
        }
    }

    /// Whether nothing remains to be sent or passed on. Rank 0 tells the others that it leaves when
    /// the time has come.
    pub(super) fn has_said_all(&mut self, now: Instant) -> bool {
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

    /// When [`ControlThread::has_said_all`] is to be asked again even if nothing happens.
    pub(super) fn next_look(&self, now: Instant) -> Option<Instant> {
        let times = [self.messages.leaves_at, self.messages.relaying_until];
        times.into_iter().flatten().filter(|at| *at > now).min()
    }
}
