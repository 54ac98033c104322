//! Closing connections, the death of a rank, and messages beside the streams.

use super::{ControlMessage, Happening, Network};
use crate::protocol::founding::RELAY;

impl Network {
    /// The process of `rank` dies: what it has written still arrives, then its peers read the end
    /// of the stream; one latency from now writes to it fail. Harmless when it is dead already.
    pub fn close_rank(&mut self, rank: usize) {
        if self.ranks[rank].closed_ns.is_some() {
            return;
        }
        self.ranks[rank].closed_ns = Some(self.now_ns);
        self.ranks[rank].control.clear();
        self.cancel_timer(rank);
        for place in 0..self.ranks[rank].pipes.len() {
            let (_, index) = self.ranks[rank].pipes[place];
            self.close_pipe(index as usize);
        }
        // Rank 0 relays control messages, so it alone sees the others die. Once it has closed,
        // those see it that have a connection of their own to the dead rank.
        let is_relayed = rank == RELAY || self.ranks[RELAY].closed_ns.is_none();
        for at in (0..self.ranks.len()).filter(|at| *at != rank) {
            let is_seen = match is_relayed {
                true => [at, rank].contains(&RELAY),
                false => self.direct.contains(&(at.min(rank), at.max(rank))),
            };
            if is_seen {
                let known_ns = self.control_arrival_ns(rank, at);
                self.schedule(known_ns, Happening::ControlLost { at, dead: rank });
            }
        }
    }

    /// The next rank whose control connection to `rank` has broken.
    pub fn next_lost(&mut self, rank: usize) -> Option<usize> {
        self.ranks[rank].lost.pop_front()
    }

    /// `rank` closes its ends of all links of `group`, those not yet made included.
    pub fn leave_group(&mut self, group: u32, rank: usize) {
        self.ranks[rank].left.insert(group);
        for place in 0..self.ranks[rank].pipes.len() {
            let ((of, _), index) = self.ranks[rank].pipes[place];
            if of == group {
                self.close_pipe(index as usize);
            }
        }
    }

    /// Whether [`Network::close_rank`] was called for `rank`.
    #[must_use]
    pub fn is_closed(&self, rank: usize) -> bool {
        self.ranks[rank].closed_ns.is_some()
    }

    /// `own` closes its end of one connection, as [`Network::close_rank`] does for all.
    pub fn close_connection(&mut self, group: u32, own: usize, peer: usize) {
        if let Ok(index) = self.connection(group, own, peer) {
            self.close_pipe(index);
        }
    }

    /// The sender of the pipe closes its end: an end of stream behind what it sent, and no more
    /// reading of what comes back.
    pub(super) fn close_pipe(&mut self, index: usize) {
        if std::mem::replace(&mut self.pipes[index].ended, true) {
            return;
        }
        self.send_packet(index, Vec::new());
        let back = &mut self.pipes[index ^ 1];
        back.reader_closed_ns = Some(self.now_ns);
        back.discard_arrived(&mut self.pool);
    }

    /// Sends a small message beside the streams: it takes one latency, keeps its order among those
    /// of the same two ranks, and costs no port time. One to or from a dead rank is lost. Once rank
    /// 0 has closed, two ranks connect to each other for it, and the sender learns that the
    /// receiver is dead.
    pub fn send_control(&mut self, from: usize, to: usize, group: u32, payload: Vec<u8>) {
        if self.ranks[from].closed_ns.is_some() {
            return;
        }
        let at_ns = self.control_arrival_ns(from, to);
        if self.ranks[RELAY].closed_ns.is_some() && to != RELAY {
            let is_new = self.direct.insert((from.min(to), from.max(to)));
            if is_new && self.ranks[to].closed_ns.is_some() {
                let (at, dead) = (from, to);
                return self.schedule(at_ns, Happening::ControlLost { at, dead });
            }
        }
        self.schedule(
            at_ns,
            Happening::Control {
                to,
                message: (from, group, payload),
            },
        );
    }

    /// When a control message sent now arrives: never before an earlier one.
    fn control_arrival_ns(&mut self, from: usize, to: usize) -> u64 {
        let late_ns = self.config.faults.delay_ns(&mut self.chance);
        let last_ns = self.control_last_ns.entry((from, to)).or_default();
        *last_ns = (*last_ns).max(self.now_ns.saturating_add(self.latency_ns + late_ns));
        *last_ns
    }

    /// The next control message that has arrived at `rank`: sender, group, payload.
    pub fn receive_control(&mut self, rank: usize) -> Option<ControlMessage> {
        self.ranks[rank].control.pop_front()
    }
}
