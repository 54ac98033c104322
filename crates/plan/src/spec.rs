//! Defines the collectives, and the content that each collective requires in every rank's chunks.

use crate::error::PlanError;
use crate::limits::RADIX_MAX;
use serde::{Deserialize, Serialize};

macro_rules! names {
    ($(#[$meta:meta])* $type:ident, $what:literal, {
        $($(#[$doc:meta])* $variant:ident $name:literal,)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[repr(u8)]
        pub enum $type { $($(#[$doc])* $variant,)* }

        impl $type {
            /// All values, in the order of their discriminants.
            pub const ALL: &'static [$type] = &[$($type::$variant),*];

            /// Returns the name used on the command line, in messages and in results.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $($type::$variant => $name,)* }
            }
        }

        named!($type, $what);
    };
}

names! {
    /// An operation that the ranks in a group perform together.
    Collective, "collective", {
        /// Every rank ends up with the reduction of all buffers.
        AllReduce "all-reduce",
        /// Every rank ends up with the root's buffer.
        Broadcast "broadcast",
        /// The root ends up with the reduction of all buffers.
        Reduce "reduce",
        /// Rank i ends up with block i of the reduction of all buffers.
        ReduceScatter "reduce-scatter",
        /// Every rank ends up with all ranks' blocks.
        AllGather "all-gather",
        /// The root ends up with all ranks' blocks.
        Gather "gather",
        /// Every rank ends up with its block of the root's buffer.
        Scatter "scatter",
        /// Block j of rank i's buffer becomes block i of rank j's buffer.
        AllToAll "all-to-all",
        /// No rank leaves the barrier before every rank has entered it.
        Barrier "barrier",
    }
}

/// An algorithm from the registry, together with its radix.
///
/// Constants such as `Algorithm::Ring` are defined by the registry in `algorithms/mod.rs`. With
/// radix k, a rank exchanges up to k − 1 messages per round instead of one, and there are ⌈log_k n⌉
/// rounds instead of ⌈log₂ n⌉.
///
/// ```
/// use ringtree::plan::Algorithm;
///
/// let by_four: Algorithm = "recursive-doubling/4".parse()?;
/// assert_eq!((by_four.name(), by_four.radix()), ("recursive-doubling", 4));
/// let refused = "ring/4".parse::<Algorithm>().unwrap_err();
/// assert_eq!(refused.to_string(), "ring has no radix");
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "(u8, u8)", into = "(u8, u8)")]
pub struct Algorithm {
    /// The algorithm's index in the registry. The indexes of custom algorithms follow those of the
    /// built-in ones.
    number: u8,
    radix: u8,
}

/// Converts the radix to a `u8`. Returns an error if it is out of range.
pub(crate) fn checked_radix(radix: usize) -> Result<u8, PlanError> {
    match radix {
        2..=RADIX_MAX => Ok(radix as u8),
        _ => Err(refused!(
            Invalid,
            "radix {radix} is out of range: expected 2 to {RADIX_MAX}"
        )),
    }
}

/// The radix of an algorithm whose name does not specify one.
pub(crate) const RADIX_DEFAULT: u8 = 2;

impl Algorithm {
    /// Returns the algorithm at index `number` in the registry, with the default radix.
    pub(crate) const fn numbered(number: u8) -> Self {
        Self {
            number,
            radix: RADIX_DEFAULT,
        }
    }

    /// Returns the index in the registry.
    pub(crate) const fn number(self) -> usize {
        self.number as usize
    }

    /// Returns the radix k, which is 2 unless specified otherwise.
    #[must_use]
    pub const fn radix(self) -> usize {
        self.radix as usize
    }

    /// Returns the algorithm at index `number` in the registry, with the given radix.
    pub(crate) const fn with(number: u8, radix: u8) -> Self {
        Self { number, radix }
    }
}

impl From<Algorithm> for (u8, u8) {
    fn from(algorithm: Algorithm) -> Self {
        (algorithm.number, algorithm.radix)
    }
}

impl TryFrom<(u8, u8)> for Algorithm {
    type Error = PlanError;

    fn try_from((number, radix): (u8, u8)) -> Result<Self, PlanError> {
        // Any index is valid, because a peer may have registered algorithms that this process has
        // not.
        checked_radix(radix.into()).map(|radix| Self { number, radix })
    }
}

impl Collective {
    /// Returns whether the collective has a root.
    #[must_use]
    pub const fn is_rooted(self) -> bool {
        matches!(
            self,
            Collective::Broadcast | Collective::Reduce | Collective::Gather | Collective::Scatter
        )
    }
}

/// The content that a chunk must have when the collective completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// Any content.
    Anything,
    /// The given rank's unchanged contribution. In an all-to-all, this is the block that
    /// the given rank sends to the rank that holds the chunk.
    Of(usize),
    /// The combined contributions of all ranks.
    Everyone,
}

/// Returns the largest number of elements, up to `count`, that `collective` accepts if the caller
/// does not specify block lengths.
#[must_use]
pub const fn whole_count(collective: Collective, count: usize, world_size: usize) -> usize {
    if moves_blocks(collective) {
        count - count % world_size
    } else {
        count
    }
}

/// Returns whether `rank` holds a contribution in the chunks of `block` when `collective` begins.
/// `block` matters only for collectives with blocks.
#[must_use]
pub const fn contributes(collective: Collective, rank: usize, root: usize, block: usize) -> bool {
    match collective {
        Collective::Broadcast | Collective::Scatter => rank == root,
        Collective::AllGather | Collective::Gather => rank == block,
        _ => true,
    }
}

/// Returns what `rank` must hold in each chunk of `block` when `collective` completes.
#[must_use]
pub const fn demands(collective: Collective, rank: usize, root: usize, block: usize) -> Demand {
    match collective {
        Collective::AllReduce | Collective::Barrier => Demand::Everyone,
        Collective::Broadcast => Demand::Of(root),
        Collective::Reduce if rank == root => Demand::Everyone,
        Collective::ReduceScatter if rank == block => Demand::Everyone,
        Collective::Gather if rank == root => Demand::Of(block),
        Collective::Scatter if rank == block => Demand::Of(root),
        Collective::Reduce
        | Collective::ReduceScatter
        | Collective::Gather
        | Collective::Scatter => Demand::Anything,
        Collective::AllGather | Collective::AllToAll => Demand::Of(block),
    }
}

/// Returns whether a contribution may be combined more than once. This is the case for a barrier,
/// which computes a union of sets, so combining a contribution twice is harmless.
#[must_use]
pub const fn is_union(collective: Collective) -> bool {
    matches!(collective, Collective::Barrier)
}

/// Returns whether `collective` combines contributions.
#[must_use]
pub const fn reduces(collective: Collective) -> bool {
    matches!(
        collective,
        Collective::AllReduce
            | Collective::Reduce
            | Collective::ReduceScatter
            | Collective::Barrier
    )
}

/// Returns whether the buffer consists of one block per rank. If it does, chunks `i·b..(i+1)·b`
/// form the block of rank i. In an all-to-all, these chunks initially hold the block for rank i
/// and, at the end, the block from rank i. The layout first splits the buffer into one block
/// per rank and then splits each block into pieces.
#[must_use]
pub const fn is_blocked(collective: Collective) -> bool {
    matches!(
        collective,
        Collective::ReduceScatter
            | Collective::AllGather
            | Collective::Gather
            | Collective::Scatter
            | Collective::AllToAll
    )
}

/// Returns whether content moves to a block with a different index. If so, all blocks have the
/// same length unless the caller specifies the length of each block that it sends and of each
/// block that it receives.
#[must_use]
pub const fn moves_blocks(collective: Collective) -> bool {
    matches!(collective, Collective::AllToAll)
}
