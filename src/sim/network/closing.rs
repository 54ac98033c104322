//! Closes connections and ranks, and sends control messages outside the byte streams.

use super::{ControlMessage, Happening, Network};
use crate::protocol::group_creation::RELAY;

impl Network {
    /// Kills the process of `rank`. Bytes that the rank has already written still arrive, and its
    /// peers then read the end of the stream. Writes to the rank start to fail one link latency
    /// after this call. Does nothing if the rank is already dead.
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
        // Rank 0 relays control messages, so only rank 0 sees other ranks die, and all ranks see
        // rank 0 die. Once rank 0 has been closed, only ranks with a direct connection to the dead
        // rank see the death.
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

    /// Returns the next rank whose control connection to `rank` has broken, or `None` if there is
    /// none.
    pub fn next_lost(&mut self, rank: usize) -> Option<usize> {
        self.ranks[rank].lost.pop_front()
    }

    /// Closes `rank`'s ends of all links in `group`, including links that do not exist yet.
    pub fn leave_group(&mut self, group: u32, rank: usize) {
        self.ranks[rank].left.insert(group);
        for place in 0..self.ranks[rank].pipes.len() {
            let ((of, _), index) = self.ranks[rank].pipes[place];
            if of == group {
                self.close_pipe(index as usize);
            }
        }
    }

    /// Returns `true` if `rank` has been closed by [`Network::close_rank`].
    #[must_use]
    pub fn is_closed(&self, rank: usize) -> bool {
        self.ranks[rank].closed_ns.is_some()
    }

    /// Closes `own`'s end of a single connection, as [`Network::close_rank`] does for all
    /// connections.
    pub fn close_connection(&mut self, group: u32, own: usize, peer: usize) {
        if let Ok(index) = self.connection(group, own, peer) {
            self.close_pipe(index);
        }
    }

    /// Closes the sender's end of a pipe: sends an end of stream after the bytes sent so far, and
    /// discards everything that arrives from the other direction.
    pub(super) fn close_pipe(&mut self, index: usize) {
        if std::mem::replace(&mut self.pipes[index].ended, true) {
            return;
        }
        self.send_packet(index, Vec::new());
        let back = &mut self.pipes[index ^ 1];
        back.reader_closed_ns = Some(self.now_ns);
        back.discard_arrived(&mut self.pool);
    }

    /// Sends a small message outside the streams. The message takes one latency to arrive and does
    /// not occupy a port. Messages between the same two ranks are delivered in order. A message to
    /// or from a dead rank is lost. Once rank 0 has been closed, ranks connect directly to each
    /// other to exchange messages, and the sender learns whether the receiver is dead.
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

    /// Returns the arrival time of a control message that rank `from` sends to rank `to` now. It is
    /// never before the arrival time of an earlier message from `from` to `to`.
    fn control_arrival_ns(&mut self, from: usize, to: usize) -> u64 {
        let late_ns = self.config.faults.delay_ns(&mut self.chance);
        let last_ns = self.control_last_ns.entry((from, to)).or_default();
        *last_ns = (*last_ns).max(self.now_ns.saturating_add(self.latency_ns + late_ns));
        *last_ns
    }

    /// Returns the next control message that has arrived at `rank`, or `None` if there is none.
    pub fn receive_control(&mut self, rank: usize) -> Option<ControlMessage> {
        self.ranks[rank].control.pop_front()
    }
}
