//! Which ranks of the world a group has, and how messages name them.

use crate::error::Error;
use std::fmt;
use std::sync::Arc;

/// The ranks of a group by their numbers in the world, in the order of their numbers in the group.
///
/// ```
/// use ringtree::internal::protocol::members::Members;
/// let members = Members::of(vec![5, 0, 2], 8);
/// assert_eq!((members.count(), members.world_rank(0), members.rank_of(2)), (3, 5, Some(2)));
/// assert_eq!(members.name(0).to_string(), "rank 0 (world rank 5)");
/// assert_eq!(members.name(2).to_string(), "rank 2");
/// assert_eq!(Members::of(vec![0, 1], 2), Members::everyone(2));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Members {
    count: usize,
    world_size: usize,
    /// None where every rank has the same number in the group as in the world.
    ranks: Option<Arc<[usize]>>,
}

impl Members {
    /// All ranks of a world, in its order.
    #[must_use]
    pub fn everyone(world_size: usize) -> Self {
        Self {
            count: world_size,
            world_size,
            ranks: None,
        }
    }

    /// These ranks, which are different, of a world of `world_size`.
    #[must_use]
    pub fn of(ranks: Vec<usize>, world_size: usize) -> Self {
        if ranks.iter().copied().eq(0..world_size) {
            return Self::everyone(world_size);
        }
        Self {
            count: ranks.len(),
            world_size,
            ranks: Some(ranks.into()),
        }
    }

    /// These ranks of the group, as a group of their own.
    #[must_use]
    pub fn part(&self, ranks: &[usize]) -> Self {
        let ranks = ranks.iter().map(|rank| self.world_rank(*rank)).collect();
        Self::of(ranks, self.world_size)
    }

    /// How many ranks the group has.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// How many ranks the world has.
    #[must_use]
    pub fn world_size(&self) -> usize {
        self.world_size
    }

    /// Whether every rank of the world is in the group.
    #[must_use]
    pub fn are_everyone(&self) -> bool {
        self.count == self.world_size
    }

    /// The number in the world of the group's rank `rank`.
    #[must_use]
    pub fn world_rank(&self, rank: usize) -> usize {
        match &self.ranks {
            Some(ranks) => ranks.get(rank).copied().unwrap_or(usize::MAX),
            None => rank,
        }
    }

    /// All of them, by their numbers in the world.
    pub fn world_ranks(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.count).map(|rank| self.world_rank(rank))
    }

    /// The number in the group of the world's rank `world_rank`, if that is in it.
    #[must_use]
    pub fn rank_of(&self, world_rank: usize) -> Option<usize> {
        match &self.ranks {
            Some(ranks) => ranks.iter().position(|each| *each == world_rank),
            None => (world_rank < self.count).then_some(world_rank),
        }
    }

    /// An error whose text numbers ranks as the world does, with the group's numbers in its fields.
    #[must_use]
    pub fn of_the_world(&self, error: Error) -> Error {
        if (0..self.count).all(|rank| self.world_rank(rank) == rank) {
            return error.within(self.count);
        }
        error.renumbered(
            |rank| self.rank_of(rank),
            " (these are the world's numbers)",
        )
    }

    /// The group's rank `rank` as messages name it: also by its number in the world, where that is
    /// another.
    #[must_use]
    pub fn name(&self, rank: usize) -> Name {
        Name(rank, self.world_rank(rank))
    }
}

/// A rank of a group, see [`Members::name`].
#[derive(Clone, Copy, Debug)]
pub struct Name(usize, usize);

impl fmt::Display for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(rank, world_rank) = self;
        match rank == world_rank {
            true => write!(formatter, "rank {rank}"),
            false => write!(formatter, "rank {rank} (world rank {world_rank})"),
        }
    }
}
