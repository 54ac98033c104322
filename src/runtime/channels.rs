//! The numbers of channels, and which of them this process wants.

use std::collections::BTreeSet;

/// The number of one of the things that a group has between each two ranks: 0 and 1 are its
/// channels, for collectives and for pairs, and above are what it hands around.
pub(super) const fn channel_number(group: u32, kind: u32) -> u32 {
    group << KIND_BITS | kind
}

/// The group of a channel.
pub(super) const fn group_of(channel: u32) -> u32 {
    channel >> KIND_BITS
}

const KIND_BITS: u32 = 3;

/// The groups that this process has, and whether there may be others in a moment.
#[derive(Default)]
pub(super) struct Known {
    groups: BTreeSet<u32>,
    awaited: usize,
}

impl Known {
    pub(super) fn add(&mut self, group: u32) {
        self.groups.insert(group);
    }

    pub(super) fn forget(&mut self, group: u32) {
        self.groups.remove(&group);
    }

    pub(super) fn await_group(&mut self, awaits: bool) {
        match awaits {
            true => self.awaited += 1,
            false => self.awaited -= 1,
        }
    }

    /// Whether what comes for the channel is of use: a peer may know a group before this rank.
    pub(super) fn wants(&self, channel: u32) -> bool {
        self.awaited > 0 || self.groups.contains(&group_of(channel))
    }
}
