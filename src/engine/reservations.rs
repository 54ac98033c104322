//! Which links the earlier operations of a queue still use.

/// The links that earlier operations have reserved in this pass over the queue, so that messages
/// leave and are read in the order of the calls.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    pass: u64,
    sending: Vec<u64>,
    receiving: Vec<u64>,
    /// An earlier send has bytes ready that its link does not take: no later send may overtake it.
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

    /// Reserves the link to `peer` for what an earlier operation has to send.
    pub(super) fn reserve_sending(&mut self, peer: usize) {
        self.sending[peer] = self.pass;
    }

    /// Reserves the link from `peer` for what an earlier operation has to receive.
    pub(super) fn reserve_receiving(&mut self, peer: usize) {
        self.receiving[peer] = self.pass;
    }

    pub(super) fn is_sending_reserved(&self, peer: usize) -> bool {
        self.sending[peer] == self.pass
    }

    pub(super) fn is_receiving_reserved(&self, peer: usize) -> bool {
        self.receiving[peer] == self.pass
    }

    pub(super) fn begin_pass(&mut self) {
        self.pass += 1;
        self.is_blocked = false;
    }
}
