//! Maps the ranks of a group to world ranks, and names them in messages.

use crate::error::Error;
use std::sync::Arc;

/// The world ranks of a group's members, indexed by group rank.
///
/// ```
/// use ringtree::internal::protocol::members::Members;
/// let members = Members::of(vec![5, 0, 2], 8);
/// assert_eq!((members.count(), members.world_rank(0), members.rank_of(2)), (3, 5, Some(2)));
/// assert_eq!(members.name(0), "rank 0 (world rank 5)");
/// assert_eq!(members.name(2), "rank 2");
/// assert_eq!(Members::of(vec![0, 1], 2), Members::everyone(2));
/// let hosts = ["red", "blue"].map(String::from);
/// assert_eq!(Members::everyone(2).on_hosts(hosts).name(1), "rank 1 (host blue)");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    count: usize,
    world_size: usize,
    /// `None` if the group ranks equal the world ranks.
    ranks: Option<Arc<[usize]>>,
    /// Host name of each world rank, or `None` if all names are equal or are not known.
    hosts: Option<Arc<[String]>>,
}

impl Members {
    /// Creates the group of all ranks in the world, in the same order.
    #[must_use]
    pub fn everyone(world_size: usize) -> Self {
        Self {
            count: world_size,
            world_size,
            ..Self::default()
        }
    }

    /// Sets the host names of the world ranks, for messages. They are not used if all are equal.
    #[must_use]
    pub fn on_hosts(self, names: impl IntoIterator<Item = String>) -> Self {
        let names: Arc<[String]> = names.into_iter().collect();
        let differ = names.iter().any(|name| *name != names[0]);
        Self {
            hosts: differ.then_some(names),
            ..self
        }
    }

    /// Creates the group that consists of `ranks`, which must be distinct, in a world of
    /// `world_size` ranks.
    #[must_use]
    pub fn of(ranks: Vec<usize>, world_size: usize) -> Self {
        if ranks.iter().copied().eq(0..world_size) {
            return Self::everyone(world_size);
        }
        Self {
            count: ranks.len(),
            world_size,
            ranks: Some(ranks.into()),
            hosts: None,
        }
    }

    /// Creates the group that consists of these ranks of this group.
    #[must_use]
    pub fn part(&self, ranks: &[usize]) -> Self {
        let ranks = ranks.iter().map(|rank| self.world_rank(*rank)).collect();
        Self {
            hosts: self.hosts.clone(),
            ..Self::of(ranks, self.world_size)
        }
    }

    /// Returns the number of ranks in the group.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the number of ranks in the world.
    #[must_use]
    pub fn world_size(&self) -> usize {
        self.world_size
    }

    /// Returns `true` if the group contains every rank of the world.
    #[must_use]
    pub fn are_everyone(&self) -> bool {
        self.count == self.world_size
    }

    /// Returns the world rank of the group's rank `rank`. Unless the group ranks equal the world
    /// ranks, returns `usize::MAX` for a rank that is out of range.
    #[must_use]
    pub fn world_rank(&self, rank: usize) -> usize {
        match &self.ranks {
            Some(ranks) => ranks.get(rank).copied().unwrap_or(usize::MAX),
            None => rank,
        }
    }

    /// Returns the world ranks of all members, in group order.
    pub fn world_ranks(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.count).map(|rank| self.world_rank(rank))
    }

    /// Returns the group rank of `world_rank`, or `None` if that rank is not a member.
    #[must_use]
    pub fn rank_of(&self, world_rank: usize) -> Option<usize> {
        match &self.ranks {
            Some(ranks) => ranks.iter().position(|each| *each == world_rank),
            None => (world_rank < self.count).then_some(world_rank),
        }
    }

    /// Converts the world ranks in the fields of `error` to group ranks. The text keeps the world
    /// ranks, and a note that says so is appended.
    #[must_use]
    pub fn of_the_world(&self, error: Error) -> Error {
        if (0..self.count).all(|rank| self.world_rank(rank) == rank) {
            return error.within(self.count);
        }
        error.renumbered(|rank| self.rank_of(rank), " (these are world ranks)")
    }

    /// Returns the name that messages use for the group's rank `rank`. The name includes the world
    /// rank if it is different, and the host name if the ranks have different ones.
    #[must_use]
    pub fn name(&self, rank: usize) -> String {
        let world_rank = self.world_rank(rank);
        let hosts = self.hosts.as_ref();
        match (
            rank == world_rank,
            hosts.and_then(|hosts| hosts.get(world_rank)),
        ) {
            (true, None) => format!("rank {rank}"),
            (true, Some(host)) => format!("rank {rank} (host {host})"),
            (false, None) => format!("rank {rank} (world rank {world_rank})"),
            (false, Some(host)) => format!("rank {rank} (world rank {world_rank}, host {host})"),
        }
    }
}
