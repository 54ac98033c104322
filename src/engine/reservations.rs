//! Records which links are still in use by earlier operations of a queue.

use super::cache::MessageEnd;

/// The links that earlier operations have reserved in the current pass over the queue. Because of
/// the reservations, messages stay in the order of their calls.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    pass: u64,
    sending: Vec<u64>,
    receiving: Vec<u64>,
    receiving_from_any: u64,
    /// `true` if a link did not accept all ready bytes of an earlier send. No later send may
    /// overtake that send.
    pub(super) is_blocked: bool,
}

impl Reservations {
    pub(super) fn new(world_size: usize) -> Self {
        Self {
            sending: vec![0; world_size],
            receiving: vec![0; world_size],
            ..Self::default()
        }
    }

    /// Reserves a link for the remaining sends or receives of an operation. Returns `false` if the
    /// link has already been reserved in this pass.
    #[inline]
    pub(super) fn reserve(&mut self, end: MessageEnd) -> bool {
        let is_first = !self.is_reserved(end);
        match end {
            MessageEnd::To(peer) => self.sending[peer] = self.pass,
            MessageEnd::From(peer) => self.receiving[peer] = self.pass,
            MessageEnd::FromAny(_) => self.receiving_from_any = self.pass,
        }
        is_first
    }

    /// Returns `true` if an earlier operation has reserved the link. Later operations cannot use it
    /// in this pass.
    #[inline]
    pub(super) fn is_reserved(&self, end: MessageEnd) -> bool {
        let last_pass = match end {
            MessageEnd::To(peer) => self.sending[peer],
            MessageEnd::From(peer) => self.receiving[peer],
            MessageEnd::FromAny(_) => self.receiving_from_any,
        };
        last_pass == self.pass
    }

    pub(super) fn begin_pass(&mut self) {
        self.pass += 1;
        self.is_blocked = false;
    }
}
