//! Whose turn it is on the links of a channel.

/// Which links earlier operations of the channel still use in this pass.
#[derive(Debug, Default)]
pub(super) struct Turns {
    pass: u64,
    sending: Vec<u64>,
    receiving: Vec<u64>,
    /// An earlier operation has bytes ready that its link does not take: nothing may overtake.
    pub(super) is_blocked: bool,
}

impl Turns {
    pub(super) fn new(world_size: usize) -> Self {
        let none = vec![0; world_size];
        Self {
            pass: 0,
            sending: none.clone(),
            receiving: none,
            is_blocked: false,
        }
    }

    /// The link to `peer` is an earlier operation's for this pass.
    pub(super) fn hold_sending(&mut self, peer: usize) {
        self.sending[peer] = self.pass;
    }

    /// The same for what comes from `peer`.
    pub(super) fn hold_receiving(&mut self, peer: usize) {
        self.receiving[peer] = self.pass;
    }

    pub(super) fn is_sending_held(&self, peer: usize) -> bool {
        self.sending[peer] == self.pass
    }

    pub(super) fn is_receiving_held(&self, peer: usize) -> bool {
        self.receiving[peer] == self.pass
    }

    pub(super) fn begin_pass(&mut self) {
        self.pass += 1;
        self.is_blocked = false;
    }
}
