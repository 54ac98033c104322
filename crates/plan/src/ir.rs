//! The plan: what one rank does, as data.

use super::spec::{Algorithm, Collective};
use super::topology::{Hosts, Topology};

/// A run of consecutive chunks of a rank's array (its buffer's chunks, then its scratch chunks).
/// Never empty, never wrapping and never partly buffer, partly scratch: such a run is two ranges of
/// one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChunkRange {
    /// The first chunk.
    pub first: usize,
    /// How many chunks.
    pub count: usize,
}

impl ChunkRange {
    /// The `count` chunks from `first` on.
    #[must_use]
    pub const fn new(first: usize, count: usize) -> Self {
        Self { first, count }
    }

    /// One past the last chunk.
    #[must_use]
    pub const fn end(self) -> usize {
        self.first + self.count
    }
}

/// Where an operand of a receive comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// What the rank's own chunks hold.
    Own,
    /// The next message from this rank.
    Peer(usize),
}

/// One thing a rank does in a round.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// The chunks of `ranges`, in that order, go as one message to each of `peers`.
    Send {
        /// Who receives the message.
        peers: Vec<usize>,
        /// What is sent.
        ranges: Vec<ChunkRange>,
    },
    /// The operands `sources` are folded from left to right, as *one* fold, into `ranges`.
    /// A single `Peer` stores; every peer's message is as long as `ranges`.
    Receive {
        /// The operands in the order of the fold; each peer at most once, `Own` at most once.
        sources: Vec<Source>,
        /// Where the result goes.
        ranges: Vec<ChunkRange>,
        /// Whether the result holds every rank's contribution: the fold after which `avg` divides.
        completes: bool,
    },
    /// `to` becomes a copy of `from` on this rank.
    Copy {
        /// What is copied.
        from: ChunkRange,
        /// Where it goes; as many chunks, disjoint from `from`.
        to: ChunkRange,
    },
    /// The operands `from` are folded from left to right, as *one* fold, into `to` on this rank.
    Reduce {
        /// At least two, in the order of the fold, each of as many chunks as `to`. One of them may
        /// be `to` itself; the others are disjoint from it.
        from: Vec<ChunkRange>,
        /// Where the result goes.
        to: ChunkRange,
        /// As for a receive.
        completes: bool,
    },
}

impl Step {
    /// A message of `ranges` to one rank.
    #[must_use]
    pub fn send(peer: usize, ranges: Vec<ChunkRange>) -> Self {
        Step::Send {
            peers: vec![peer],
            ranges,
        }
    }

    /// A message from one rank, stored.
    #[must_use]
    pub fn store(peer: usize, ranges: Vec<ChunkRange>) -> Self {
        Step::Receive {
            sources: vec![Source::Peer(peer)],
            ranges,
            completes: false,
        }
    }

    /// A message from one rank, folded into what is there.
    #[must_use]
    pub fn reduce(peer: usize, ranges: Vec<ChunkRange>, completes: bool) -> Self {
        Step::Receive {
            sources: vec![Source::Own, Source::Peer(peer)],
            ranges,
            completes,
        }
    }

    /// Whether the step sends or receives, in other words is not a local copy or reduce.
    #[must_use]
    pub const fn is_message(&self) -> bool {
        matches!(self, Step::Send { .. } | Step::Receive { .. })
    }
}

/// What one rank does between two steps of the collective's logical clock: first its sends, then
/// its receives. A round holds either messages or local steps, never both, and at most one message
/// from one rank to another. No local step of a round touches what another one writes. Round r of
/// one rank is round r of every rank; a rank with nothing to do in a round has an empty one.
pub type Round = Vec<Step>;

/// What a plan is a pure function of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// What is to be done.
    pub collective: Collective,
    /// How.
    pub algorithm: Algorithm,
    /// How many ranks.
    pub world_size: usize,
    /// Whose plan.
    pub rank: usize,
    /// The root; 0 where the collective has none.
    pub root: usize,
    /// Pieces per block, b: at least 1.
    pub pieces: usize,
    /// Which ranks share a host. Only hierarchical algorithms look at it.
    pub hosts: Hosts,
}

impl Request {
    /// How many ranks there are and which share a host.
    #[must_use]
    pub fn topology(&self) -> Topology {
        Topology {
            world_size: self.world_size,
            hosts: self.hosts.clone(),
        }
    }
}

/// What one rank does in a collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What the plan was made for.
    pub request: Request,
    /// Chunks of the buffer.
    pub chunks: usize,
    /// Chunks of scratch after them; as many as `chunks` times the ranks at most. Scratch chunk
    /// `chunks + i` is as long as chunk `i mod chunks`. More scratch than buffer is for short
    /// buffers: [`crate::limits::SCRATCH_BYTES_MAX`].
    pub scratch: usize,
    /// The rounds, in order.
    pub rounds: Vec<Round>,
}
