//! Counts the calls of a group: how many there were, of how many bytes, and how long threads waited
//! for them.
//!
//! A collective that ends before its caller has used up its spin budget is counted without reading
//! a clock. Any other call is timed from the first check that finds it unfinished.
//!
//! *May import* the same modules as its parent.

use crate::plan::Collective;
use crate::protocol::call::Kind;
use std::time::Duration;

/// The links over which a rank exchanges the messages of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// The call has no messages.
    None,
    /// Shared memory.
    SharedMemory,
    /// TCP.
    Tcp,
    /// Shared memory with some ranks, TCP with others.
    Both,
}

impl Transport {
    const ALL: [Self; 4] = [Self::None, Self::SharedMemory, Self::Tcp, Self::Both];

    /// Returns the transport to `peers`. `is_local` returns `true` if a peer shares memory with
    /// this rank.
    pub(crate) fn to(
        peers: impl IntoIterator<Item = usize>,
        is_local: impl Fn(usize) -> bool,
    ) -> Self {
        peers.into_iter().fold(Self::None, |all, peer| {
            let one = if is_local(peer) {
                Self::SharedMemory
            } else {
                Self::Tcp
            };
            match all {
                Self::None => one,
                _ if all == one => all,
                _ => Self::Both,
            }
        })
    }

    fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::SharedMemory => "shm",
            Self::Tcp => "tcp",
            Self::Both => "shm+tcp",
        }
    }
}

/// Number of kinds of calls: the collectives, sends and receives.
const KINDS: usize = Collective::ALL.len() + 2;
const SEND: usize = KINDS - 2;
const RECEIVE: usize = KINDS - 1;

/// Calls that are counted together: those of one kind over one transport.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Class(usize);

impl Class {
    /// Returns the class of a call. `sends` is `true` for a send. Returns `None` for the calls by
    /// which ranks agree on counts.
    #[inline]
    pub(super) fn new(kind: Kind, sends: bool, transport: Transport) -> Option<Self> {
        let kind = match kind {
            Kind::Agreement(_) => return None,
            Kind::Collective(collective) => collective as usize,
            Kind::SendRecv if sends => SEND,
            Kind::SendRecv => RECEIVE,
        };
        Some(Self(kind * Transport::ALL.len() + transport as usize))
    }
}

/// The count of one class.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    calls: u64,
    bytes: u64,
    waited: Duration,
}

/// The counts of a group.
#[derive(Debug)]
pub(super) struct Stats {
    counts: [Count; KINDS * Transport::ALL.len()],
    /// Sequence number of the collective that was counted last. All pieces of a call on a device
    /// have the same number.
    last: u64,
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            counts: [Count::default(); KINDS * Transport::ALL.len()],
            last: 0,
        }
    }
}

impl Stats {
    /// Counts a call of `class` on a buffer of `bytes` bytes. `sequence` is 0 for a message.
    #[inline]
    pub(super) fn count(&mut self, class: Option<Class>, sequence: u64, bytes: usize) {
        if sequence > 0 && std::mem::replace(&mut self.last, sequence) == sequence {
            return;
        }
        if let Some(Class(class)) = class {
            let count = &mut self.counts[class];
            count.calls += 1;
            count.bytes += bytes as u64;
        }
    }

    /// Adds the time for which a thread waited for a call of `class`.
    pub(super) fn add_wait(&mut self, Class(class): Class, time: Duration) {
        self.counts[class].waited += time;
    }

    /// Returns the counts of all calls that were made.
    pub(super) fn rows(&self) -> impl Iterator<Item = CallStats> {
        let rows = self.counts.iter().enumerate();
        rows.filter(|(_, count)| count.calls > 0)
            .map(|(class, count)| CallStats {
                call: match class / Transport::ALL.len() {
                    SEND => "send",
                    RECEIVE => "recv",
                    collective => Collective::ALL[collective].name(),
                },
                transport: Transport::ALL[class % Transport::ALL.len()].name(),
                calls: count.calls,
                bytes: count.bytes,
                waited: count.waited,
            })
    }
}

/// The count of one kind of call over one transport. Returned by
/// [`Communicator::stats`](crate::Communicator::stats).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallStats {
    /// The name of the collective, `"send"` or `"recv"`.
    pub call: &'static str,
    /// The transport of the call's messages: `"shm"`, `"tcp"`, `"shm+tcp"`, `"none"` if the rank
    /// had no message to send or receive or, for simulated ranks, `"sim"`.
    pub transport: &'static str,
    /// Number of calls that were made.
    pub calls: u64,
    /// Number of bytes in the buffers of these calls. If a call has an input and an output, the
    /// larger one counts.
    pub bytes: u64,
    /// Time for which threads waited for these calls. The time that a collective takes within its
    /// spin budget does not count. A task that awaits a call does not wait.
    pub waited: Duration,
}
