//! Defines the network's events and their order.

use super::ControlMessage;
use std::cmp::Ordering;

#[derive(Debug)]
pub(super) enum Happening {
    /// A packet in the pipe reaches the uplink of its sender's site.
    AtUplink {
        pipe: usize,
        bytes: usize,
    },
    /// A packet in the pipe reaches the uplink of its receiver's site.
    AtOtherSite {
        pipe: usize,
        bytes: usize,
    },
    /// The next packet in the pipe reaches the receiver's port.
    AtPort(usize),
    /// The next packet in the pipe has passed through the receiver's port and can be read.
    Arrived(usize),
    /// The rank's stall ends.
    StallEnd(usize),
    /// The rank's process dies.
    Death(usize),
    /// Rank `at` notices that its control connection to rank `dead` has broken.
    ControlLost {
        at: usize,
        dead: usize,
    },
    Control {
        to: usize,
        message: ControlMessage,
    },
}

/// An event. Events are ordered by time, and then by the order of their creation.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) at_ns: u64,
    pub(super) number: u64,
    pub(super) what: Happening,
}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at_ns, self.number).cmp(&(other.at_ns, other.number))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Event {}
