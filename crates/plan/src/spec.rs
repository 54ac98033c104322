//! The collectives, and what each demands of the chunks of every rank.

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
            /// Every one, in the order of the table.
            pub const ALL: &'static [$type] = &[$($type::$variant),*];

            /// The name used on the command line, in messages and in results.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $($type::$variant => $name,)* }
            }
        }

        named!($type, $what);
    };
}

names! {
    /// What a group of ranks does together.
    Collective, "collective", {
        /// Every rank ends with the reduction of all buffers.
        AllReduce "all-reduce",
        /// Every rank ends with the root's buffer.
        Broadcast "broadcast",
        /// The root ends with the reduction of all buffers.
        Reduce "reduce",
        /// Rank i ends with block i of the reduction of all buffers.
        ReduceScatter "reduce-scatter",
        /// Every rank ends with every rank's block.
        AllGather "all-gather",
        /// The root ends with every rank's block.
        Gather "gather",
        /// Every rank ends with its block of the root's buffer.
        Scatter "scatter",
        /// Block j of rank i's buffer becomes block i of rank j's.
        AllToAll "all-to-all",
        /// No rank leaves before every rank has entered.
        Barrier "barrier",
    }
}

/// How a collective is carried out: an algorithm of the registry, whose constants
/// (`Algorithm::Ring`) stand in `plan/algorithms/mod.rs`, and its radix k: in a round a rank of an
/// algorithm that has one exchanges k − 1 messages instead of one, and there are ⌈log_k n⌉ rounds
/// instead of ⌈log₂ n⌉.
///
/// ```
/// use ringtree::plan::Algorithm;
///
/// let by_four: Algorithm = "recursive-doubling/4".parse()?;
/// assert_eq!(by_four, Algorithm::RecursiveDoubling.with_radix(4)?);
/// assert_eq!((by_four.name(), by_four.radix()), ("recursive-doubling", 4));
/// assert_eq!(Algorithm::Ring.with_radix(4).unwrap_err(), "ring has no radix");
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "(u8, u8)", into = "(u8, u8)")]
pub struct Algorithm {
    /// The place in the registry.
    number: u8,
    radix: u8,
}

/// The radix of an algorithm that is named without one.
pub(crate) const RADIX_DEFAULT: u8 = 2;

impl Algorithm {
    /// The one in this place of the registry, with the default radix.
    pub(crate) const fn numbered(number: u8) -> Self {
        Self {
            number,
            radix: RADIX_DEFAULT,
        }
    }

    /// The place in the registry.
    pub(crate) const fn number(self) -> usize {
        self.number as usize
    }

    /// The radix k; 2 where none was named.
    #[must_use]
    pub const fn radix(self) -> usize {
        self.radix as usize
    }

    /// The place in the registry `number` with the radix `radix`.
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
    type Error = String;

    fn try_from((number, radix): (u8, u8)) -> Result<Self, String> {
        // What a peer has registered may be unknown here.
        match (2..=RADIX_MAX).contains(&usize::from(radix)) {
            true => Ok(Self { number, radix }),
            false => Err(format!("no algorithm has the radix {radix}")),
        }
    }
}

impl Collective {
    /// Whether the collective has a root.
    #[must_use]
    pub const fn is_rooted(self) -> bool {
        matches!(
            self,
            Collective::Broadcast | Collective::Reduce | Collective::Gather | Collective::Scatter
        )
    }

    /// Whether the collective combines contributions.
    #[must_use]
    pub const fn reduces(self) -> bool {
        matches!(
            self,
            Collective::AllReduce
                | Collective::Reduce
                | Collective::ReduceScatter
                | Collective::Barrier
        )
    }

    /// Whether chunks `i·b..(i+1)·b` are rank i's own block (in an all-to-all, the block for rank
    /// i, and at the end the one from rank i), so that the layout splits the buffer into one block
    /// a rank first and each block into pieces second.
    #[must_use]
    pub const fn is_blocked(self) -> bool {
        matches!(
            self,
            Collective::ReduceScatter
                | Collective::AllGather
                | Collective::Gather
                | Collective::Scatter
                | Collective::AllToAll
        )
    }

    /// Whether content moves to a block of another number. Then all blocks are equally long, unless
    /// the caller gives the length of each one that it sends and of each one that it receives.
    #[must_use]
    pub const fn moves_blocks(self) -> bool {
        matches!(self, Collective::AllToAll)
    }
}

/// What a collective demands of a chunk when it is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// Whatever is there.
    Anything,
    /// The contribution of this rank, untouched; of an all-to-all, its block for the rank that
    /// demands it.
    Of(usize),
    /// The combination of every rank's contribution.
    Everyone,
}

impl Collective {
    /// The most elements, up to `count`, that the collective takes where no lengths are given.
    #[must_use]
    pub const fn whole_count(self, count: usize, world_size: usize) -> usize {
        if self.moves_blocks() {
            count - count % world_size
        } else {
            count
        }
    }

    /// Whether `rank` contributes to a chunk of `block` when the collective begins. `block` matters
    /// to blocked collectives only.
    #[must_use]
    pub const fn contributes(self, rank: usize, root: usize, block: usize) -> bool {
        match self {
            Collective::Broadcast | Collective::Scatter => rank == root,
            Collective::AllGather | Collective::Gather => rank == block,
            _ => true,
        }
    }

    /// What `rank` must hold in a chunk of `block` when the collective is over.
    #[must_use]
    pub const fn demands(self, rank: usize, root: usize, block: usize) -> Demand {
        match self {
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

    /// Whether a contribution may be combined more than once: a barrier is a union of sets.
    #[must_use]
    pub const fn is_union(self) -> bool {
        matches!(self, Collective::Barrier)
    }
}
