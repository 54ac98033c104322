//! Defines plans, which describe what one rank does in a collective as plain data.

use super::spec::{Algorithm, Collective};
use super::topology::{Hosts, Topology};

/// A range of consecutive chunks in a rank's array. The array consists of the buffer's chunks
/// followed by the scratch chunks.
///
/// A range is never empty, never wraps around, and never spans the boundary between the buffer and
/// the scratch. A message that wraps around or spans this boundary has two ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChunkRange {
    /// The first chunk.
    pub first: usize,
    /// Number of chunks.
    pub count: usize,
}

impl ChunkRange {
    /// Creates a range of `count` chunks that begins at `first`.
    #[must_use]
    pub const fn new(first: usize, count: usize) -> Self {
        Self { first, count }
    }

    /// Returns the index after the last chunk.
    #[must_use]
    pub const fn end(self) -> usize {
        self.first + self.count
    }
}

/// The source of an operand in a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The content of the rank's own chunks.
    Own,
    /// The next message from the given rank.
    Peer(usize),
}

/// An action that a rank performs during a round.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Sends the chunks in `ranges`, in that order, as a single message to each of `peers`.
    Send {
        /// The receiving ranks.
        peers: Vec<usize>,
        /// The chunks to send.
        ranges: Vec<ChunkRange>,
    },
    /// Reduces the operands in `sources` from left to right, in a *single* reduction, and writes
    /// the result to `ranges`. If the only source is a `Peer`, that peer's message is stored
    /// unchanged. Every peer's message is as long as `ranges`.
    Receive {
        /// The operands, in the order in which they are reduced. Each peer appears at most once,
        /// and so does `Own`.
        sources: Vec<Source>,
        /// The chunks to which the result is written.
        ranges: Vec<ChunkRange>,
        /// `true` if the result contains every rank's contribution. For `avg`, the division follows
        /// this reduction.
        completes: bool,
    },
    /// Copies `from` to `to` on this rank.
    Copy {
        /// The chunks to read.
        from: ChunkRange,
        /// The chunks to write. This range has as many chunks as `from` and does not overlap it.
        to: ChunkRange,
    },
    /// Reduces the operands in `from` on this rank, from left to right, in a *single* reduction,
    /// and writes the result to `to`.
    Reduce {
        /// At least two operands, in the order in which they are reduced. Each has as many chunks
        /// as `to`. One operand may be `to` itself. The others must not overlap with it.
        from: Vec<ChunkRange>,
        /// The chunks to which the result is written.
        to: ChunkRange,
        /// `true` if the result contains every rank's contribution, as in [`Step::Receive`].
        completes: bool,
    },
}

impl Step {
    /// Creates a send of `ranges` to one rank.
    #[must_use]
    pub fn send(peer: usize, ranges: Vec<ChunkRange>) -> Self {
        Step::Send {
            peers: vec![peer],
            ranges,
        }
    }

    /// Creates a receive that stores the message from one rank.
    #[must_use]
    pub fn store(peer: usize, ranges: Vec<ChunkRange>) -> Self {
        Step::Receive {
            sources: vec![Source::Peer(peer)],
            ranges,
            completes: false,
        }
    }

    /// Creates a receive that reduces the message from one rank into the existing content.
    #[must_use]
    pub fn reduce(peer: usize, ranges: Vec<ChunkRange>, completes: bool) -> Self {
        Step::reduce_all([peer].into_iter(), ranges, completes)
    }

    /// Creates a receive that reduces one message from each of `peers` into the existing content.
    pub(crate) fn reduce_all(
        peers: impl Iterator<Item = usize>,
        ranges: Vec<ChunkRange>,
        completes: bool,
    ) -> Self {
        let peers = peers.map(Source::Peer);
        Step::Receive {
            sources: [Source::Own].into_iter().chain(peers).collect(),
            ranges,
            completes,
        }
    }

    /// Returns whether the step sends or receives a message. Local copies and reductions do not.
    pub(crate) const fn is_message(&self) -> bool {
        matches!(self, Step::Send { .. } | Step::Receive { .. })
    }
}

/// The steps of one rank between two ticks of the collective's logical clock. The sends come first,
/// followed by the receives.
///
/// A round contains either messages or local steps, and a rank sends at most one message per round
/// to any other rank. No local step in a round uses a chunk that another step in the round writes.
/// Round r of one rank corresponds to round r of every other rank. If a rank has nothing to do in a
/// round, its round is empty.
pub type Round = Vec<Step>;

/// The inputs from which a plan is built. A plan is a pure function of its request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// The collective.
    pub collective: Collective,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Number of ranks.
    pub world_size: usize,
    /// The rank whose plan is requested.
    pub rank: usize,
    /// The root; 0 if the collective has none.
    pub root: usize,
    /// Number of pieces per block, b. It is at least 1.
    pub pieces: usize,
    /// The hosts on which the ranks run. Only hierarchical algorithms use them.
    pub hosts: Hosts,
}

impl Request {
    /// Creates the request for the plan of rank 0, with rank 0 as the root and one piece per block.
    #[doc(hidden)]
    #[must_use]
    pub fn new(collective: Collective, algorithm: Algorithm, topology: &Topology) -> Self {
        Self {
            collective,
            algorithm,
            world_size: topology.world_size,
            rank: 0,
            root: 0,
            pieces: 1,
            hosts: topology.hosts.clone(),
        }
    }

    /// Returns the topology, which consists of the number of ranks and their hosts.
    #[must_use]
    pub fn topology(&self) -> Topology {
        Topology {
            world_size: self.world_size,
            hosts: self.hosts.clone(),
        }
    }
}

/// The steps that one rank performs in a collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The request that the plan fulfills.
    pub request: Request,
    /// Number of chunks in the buffer.
    pub chunks: usize,
    /// Number of scratch chunks, which follow the buffer's chunks. It is at most `chunks` times the
    /// number of ranks. Scratch chunk `chunks + i` is as long as chunk `i mod chunks`. Plans whose
    /// scratch is larger than the buffer can be used only for short buffers (see
    /// [`crate::limits::SCRATCH_BYTES_MAX`]).
    pub scratch: usize,
    /// The rounds, in order.
    pub rounds: Vec<Round>,
}
