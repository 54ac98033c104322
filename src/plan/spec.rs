//! The collectives, and what each demands of the chunks of every rank.

use crate::named::named;
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
        /// No rank leaves before every rank has entered.
        Barrier "barrier",
    }
}

names! {
    /// How a collective is carried out. What each does is in its file under `plan/algorithms/`.
    Algorithm, "algorithm", {
        /// Every contribution straight to the ranks that need it, one round.
        Flat "flat",
        /// Flat reduce-scatter, then flat all-gather.
        TwoShot "two-shot",
        /// Divide and conquer.
        Binomial "binomial",
        /// Scatter by a binomial tree, then all-gather.
        ScatterAllgather "scatter-allgather",
        /// Pairwise exchange of whole buffers at doubling distance.
        RecursiveDoubling "recursive-doubling",
        /// Recursive halving, then recursive doubling of blocks.
        Rabenseifner "rabenseifner",
        /// Neighbour to neighbour.
        Ring "ring",
        /// Circulant graphs: round-optimal and volume-optimal for every number of ranks.
        Circulant "circulant",
        /// Token exchange at doubling distance.
        Dissemination "dissemination",
        /// Inside the hosts first, then between them, then inside again.
        Hierarchical "hierarchical",
        /// Every contribution to every rank at doubling distance, then one fold.
        BruckFold "bruck-fold",
    }
}

impl Collective {
    /// Whether the collective has a root.
    #[must_use]
    pub const fn is_rooted(self) -> bool {
        matches!(self, Collective::Broadcast | Collective::Reduce)
    }

    /// Whether the collective combines contributions.
    #[must_use]
    pub const fn reduces(self) -> bool {
        !matches!(self, Collective::Broadcast | Collective::AllGather)
    }

    /// Whether chunks `i·b..(i+1)·b` are rank i's own block, so that the layout splits the buffer
    /// into one block a rank first and each block into pieces second.
    #[must_use]
    pub const fn is_blocked(self) -> bool {
        matches!(self, Collective::ReduceScatter | Collective::AllGather)
    }
}

/// What a collective demands of a chunk when it is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// Whatever is there.
    Anything,
    /// The contribution of this rank, untouched.
    Of(usize),
    /// The combination of every rank's contribution.
    Everyone,
}

impl Collective {
    /// Whether `rank` contributes to a chunk of `block` when the collective begins. `block` matters
    /// to blocked collectives only.
    #[must_use]
    pub const fn contributes(self, rank: usize, root: usize, block: usize) -> bool {
        match self {
            Collective::Broadcast => rank == root,
            Collective::AllGather => rank == block,
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
            Collective::Reduce | Collective::ReduceScatter => Demand::Anything,
            Collective::AllGather => Demand::Of(block),
        }
    }

    /// Whether a contribution may be combined more than once: a barrier is a union of sets.
    #[must_use]
    pub const fn is_union(self) -> bool {
        matches!(self, Collective::Barrier)
    }
}
