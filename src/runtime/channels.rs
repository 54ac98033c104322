//! Assigns numbers to channels, and records which channels this process needs.

use std::collections::BTreeSet;

/// Returns the channel number for `kind` in `group`. Kinds 0 and 1 are the channels for collectives
/// and for pairs. Higher kinds are exchanges.
pub(super) const fn channel_number(group: u32, kind: u32) -> u32 {
    group << KIND_BITS | kind
}

/// Returns the group that a channel belongs to.
pub(super) const fn group_of(channel: u32) -> u32 {
    channel >> KIND_BITS
}

const KIND_BITS: u32 = 3;

/// The groups of this process, and the number of additional groups that it is waiting for.
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

    /// Returns `true` if the channel belongs to a group of this process, or may belong to a group
    /// that this process is waiting for. A peer may know such a group before this rank does.
    pub(super) fn wants(&self, channel: u32) -> bool {
        self.awaited > 0 || self.groups.contains(&group_of(channel))
    }
}
