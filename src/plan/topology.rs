//! Which ranks share a host.

use crate::limits::RANKS_PER_HOST_MAX;

/// How many ranks there are, and how many a host: ranks k·g to (k+1)·g share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Topology {
    /// How many ranks, n.
    pub world_size: usize,
    /// How many of them share a host, g: 1 if no two do, n if all do.
    pub ranks_per_host: usize,
}

/// Who shares a host with whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Every rank is alone on its host.
    Nobody,
    /// Several hosts of several ranks.
    Some,
    /// There is one host.
    All,
}

impl Topology {
    /// Ranks of which no two share a host.
    #[must_use]
    pub const fn apart(world_size: usize) -> Self {
        Self {
            world_size,
            ranks_per_host: 1,
        }
    }

    /// Ranks of one host.
    #[must_use]
    pub const fn together(world_size: usize) -> Self {
        Self {
            world_size,
            ranks_per_host: world_size,
        }
    }

    /// Ranks of which each is on the host that `hosts` names: hosts of g consecutive ranks each, or
    /// else all of them apart.
    ///
    /// ```
    /// use ringtree::plan::topology::Topology;
    /// assert_eq!(Topology::of(&[7, 7, 4, 4]), Topology { world_size: 4, ranks_per_host: 2 });
    /// assert_eq!(Topology::of(&[7, 4, 7, 4]), Topology::apart(4));
    /// ```
    #[must_use]
    pub fn of(hosts: &[usize]) -> Self {
        let is_first = |host: &&usize| Some(*host) == hosts.first();
        let ranks = hosts.iter().filter(is_first).count().max(1);
        let mut blocks: Vec<&[usize]> = hosts.chunks(ranks).collect();
        let are_whole = blocks
            .iter()
            .all(|block| block.len() == ranks && block.iter().all(|host| *host == block[0]));
        blocks.sort_unstable();
        blocks.dedup();
        match are_whole && blocks.len() * ranks == hosts.len() {
            true => Self {
                world_size: hosts.len(),
                ranks_per_host: ranks,
            },
            false => Self::apart(hosts.len()),
        }
    }

    /// ```
    /// use ringtree::plan::topology::{Sharing, Topology};
    ///
    /// let two_hosts = Topology { world_size: 8, ranks_per_host: 4 };
    /// assert_eq!(two_hosts.sharing(), Sharing::Some);
    /// assert_eq!(Topology::apart(8).sharing(), Sharing::Nobody);
    /// assert_eq!(Topology::together(8).sharing(), Sharing::All);
    /// ```
    #[must_use]
    pub const fn sharing(self) -> Sharing {
        if self.ranks_per_host == 1 {
            Sharing::Nobody
        } else if self.ranks_per_host == self.world_size {
            Sharing::All
        } else {
            Sharing::Some
        }
    }

    /// Checks that the ranks fill their hosts.
    ///
    /// # Errors
    /// A sentence: the ranks per host do not divide the ranks, or are more than a host may have.
    ///
    /// ```
    /// use ringtree::plan::topology::Topology;
    ///
    /// let uneven = Topology { world_size: 6, ranks_per_host: 4 };
    /// assert!(uneven.check().unwrap_err().contains("must divide"));
    /// ```
    pub fn check(self) -> Result<(), String> {
        let Self {
            world_size,
            ranks_per_host,
        } = self;
        if ranks_per_host == 0 || !world_size.is_multiple_of(ranks_per_host) {
            return Err(format!(
                "{world_size} ranks do not fill hosts of {ranks_per_host}: \
                 the ranks per host must divide the ranks"
            ));
        }
        if ranks_per_host > RANKS_PER_HOST_MAX {
            return Err(format!(
                "{ranks_per_host} ranks on one host are too many; \
                 at most {RANKS_PER_HOST_MAX} can share it"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_with_equal_runs_of_ranks_have_a_number() {
        let cases: &[(&[usize], usize)] = &[
            (&[1], 1),
            (&[1, 1, 1], 3),
            (&[1, 1, 2, 2], 2),
            (&[1, 1, 1, 2, 2, 2, 3, 3, 3], 3),
            (&[1, 2, 3], 1),
            // Unequal, taking turns, a host that comes back, ranks apart.
            (&[1, 1, 2], 1),
            (&[1, 2, 2], 1),
            (&[1, 2, 1, 2], 1),
            (&[1, 1, 2, 2, 1, 1], 1),
            (&[1, 1, 2, 3], 1),
            (&[2, 3, 1, 1], 1),
        ];
        for (hosts, expected) in cases {
            let topology = Topology::of(hosts);
            assert_eq!(topology.ranks_per_host, *expected, "{hosts:?}");
            assert_eq!(topology.world_size, hosts.len());
        }
    }
}
