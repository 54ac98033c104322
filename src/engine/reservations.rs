//! Records which links are still in use by earlier operations of a queue.

use super::cache::MessageEnd;

/// The links that earlier operations have reserved in the current pass over the queue. Because of
/// the reservations, messages stay in the order of their calls.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    pass: u64,
    sending: Vec<u64>,
    receiving: Vec<u64>,
    /// `true` if a link did not accept all ready bytes of an earlier send. No later send may
    /// overtake that send.
    pub(super) is_blocked: bool,
}

impl Reservations {
    pub(super) fn new(world_size: usize) -> Self {
        let none = vec![0; world_size];
        Self {
            pass: 0,
            sending: none.clone(),
            receiving: none,
            is_blocked: false,
        }
    }

    /// Reserves the link to `peer` for the remaining sends of an earlier operation.
    pub(super) fn reserve_sending(&mut self, peer: usize) {
        self.sending[peer] = self.pass;
    }

    /// Reserves the link from `peer` for the remaining receives of an earlier operation.
    pub(super) fn reserve_receiving(&mut self, peer: usize) {
        self.receiving[peer] = self.pass;
    }

    pub(super) fn is_sending_reserved(&self, peer: usize) -> bool {
        self.sending[peer] == self.pass
    }

    pub(super) fn is_receiving_reserved(&self, peer: usize) -> bool {
        self.receiving[peer] == self.pass
    }

    /// Returns `true` if an earlier operation has reserved the link of this end of a message, so
    /// that the message cannot move in this pass.
    pub(super) fn has_reserved(&self, end: MessageEnd) -> bool {
        match end {
            MessageEnd::To(peer) => self.is_sending_reserved(peer),
            MessageEnd::From(peer) => self.is_receiving_reserved(peer),
            MessageEnd::FromAny(_) => false,
        }
    }

    pub(super) fn begin_pass(&mut self) {
        self.pass += 1;
        self.is_blocked = false;
    }
}
