//! Which ranks share a host.
//!
//! A [`Topology`] is asked for hosts, their ranks and a rank's place among them; how [`Hosts`]
//! keeps that is its own matter. It is made once for a communicator and never changes, so it is
//! part of no key by which calls are looked up. Copies share what is in it.

use crate::limits::RANKS_PER_HOST_MAX;
use std::collections::HashMap;
use std::fmt;
use std::slice;
use std::sync::Arc;

/// Which ranks share a host: any ranks any host, in any order.
///
/// Hosts are numbered by their lowest rank. A host's ranks have places 0, 1, 2, … in it, in rank
/// order.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Hosts(Kind);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Kind {
    /// Ranks k·g to (k+1)·g share one.
    Each(usize),
    /// Hosts of which some have several ranks, and which no number describes.
    Listed(Arc<List>),
}

/// Hosts and their ranks.
#[derive(Debug, PartialEq, Eq, Hash)]
struct List {
    /// By rank, the number of its host.
    host_of: Vec<usize>,
    /// The ranks, host after host.
    ranks: Vec<usize>,
    /// Where each host's ranks begin among them, and the end.
    starts: Vec<usize>,
    /// How many ranks hosts have, every number once, in ascending order.
    sizes: Vec<usize>,
}

impl Hosts {
    /// No two ranks share a host.
    pub const APART: Self = Self::each(1);

    /// Hosts of `ranks` consecutive ranks each; they must divide the ranks.
    #[must_use]
    pub const fn each(ranks: usize) -> Self {
        Self(Kind::Each(ranks))
    }

    /// Each rank on the host that `hosts` names, by whatever numbers.
    ///
    /// ```
    /// use ringtree::plan::topology::Hosts;
    /// assert_eq!(Hosts::of(&[7, 7, 4, 4]), Hosts::each(2));
    /// assert_eq!(Hosts::of(&[7, 4, 4, 7, 4]), Hosts::of(&[0, 1, 1, 0, 1]));
    /// ```
    #[must_use]
    pub fn of(hosts: &[usize]) -> Self {
        let mut numbers = HashMap::new();
        let number = |host: &usize| {
            let next = numbers.len();
            *numbers.entry(*host).or_insert(next)
        };
        let host_of: Vec<usize> = hosts.iter().map(number).collect();
        let mut ranks: Vec<usize> = (0..hosts.len()).collect();
        ranks.sort_by_key(|rank| host_of[*rank]);
        let begins = |at: &usize| *at == 0 || host_of[ranks[*at]] != host_of[ranks[*at - 1]];
        let starts = (0..ranks.len()).filter(begins).chain([ranks.len()]);
        let starts: Vec<usize> = starts.collect();
        let mut sizes: Vec<usize> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
        sizes.sort_unstable();
        sizes.dedup();
        match sizes.as_slice() {
            [] => Self::APART,
            [size] if ranks.is_sorted() => Self::each(*size),
            _ => Self(Kind::Listed(Arc::new(List {
                host_of,
                ranks,
                starts,
                sizes,
            }))),
        }
    }

    /// Hosts of so many consecutive ranks.
    ///
    /// ```
    /// use ringtree::plan::topology::Hosts;
    /// assert_eq!(Hosts::of_sizes(&[3, 1, 2]), Hosts::of(&[0, 0, 0, 1, 2, 2]));
    /// ```
    #[must_use]
    pub fn of_sizes(sizes: &[usize]) -> Self {
        let ranks = |(host, size): (usize, &usize)| vec![host; *size];
        let hosts: Vec<usize> = sizes.iter().enumerate().flat_map(ranks).collect();
        Self::of(&hosts)
    }
}

/// The number of ranks a host, or by rank the number of its host.
impl fmt::Debug for Hosts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Each(ranks) => write!(formatter, "each({ranks})"),
            Kind::Listed(list) => write!(formatter, "of({:?})", list.host_of),
        }
    }
}

/// How many ranks there are, and which of them share a host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Topology {
    /// How many ranks, n.
    pub world_size: usize,
    /// Which of them share a host.
    pub hosts: Hosts,
}

/// Whether ranks share hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Every rank is alone on its host.
    None,
    /// There are several hosts, of which some have several ranks.
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
            hosts: Hosts::APART,
        }
    }

    /// Ranks of one host.
    #[must_use]
    pub const fn together(world_size: usize) -> Self {
        Self {
            world_size,
            hosts: Hosts::each(world_size),
        }
    }

    /// Ranks of which each is on the host that `hosts` names.
    #[must_use]
    pub fn of(hosts: &[usize]) -> Self {
        Self {
            world_size: hosts.len(),
            hosts: Hosts::of(hosts),
        }
    }

    /// ```
    /// use ringtree::plan::topology::{Sharing, Topology};
    ///
    /// assert_eq!(Topology::of(&[0, 0, 0, 1]).sharing(), Sharing::Some);
    /// assert_eq!(Topology::apart(8).sharing(), Sharing::None);
    /// assert_eq!(Topology::together(8).sharing(), Sharing::All);
    /// ```
    #[must_use]
    pub fn sharing(&self) -> Sharing {
        match self.hosts.0 {
            Kind::Each(1) => Sharing::None,
            Kind::Each(ranks) if ranks == self.world_size => Sharing::All,
            Kind::Each(_) | Kind::Listed(_) => Sharing::Some,
        }
    }

    /// How many hosts.
    #[must_use]
    pub fn host_count(&self) -> usize {
        match &self.hosts.0 {
            Kind::Each(ranks) => self.world_size / ranks,
            Kind::Listed(list) => list.starts.len() - 1,
        }
    }

    /// The host of a rank.
    #[must_use]
    pub fn host_of(&self, rank: usize) -> usize {
        match &self.hosts.0 {
            Kind::Each(ranks) => rank / ranks,
            Kind::Listed(list) => list.host_of[rank],
        }
    }

    /// The ranks of a host, in ascending order.
    ///
    /// ```
    /// use ringtree::plan::Topology;
    ///
    /// let hosts = Topology::of(&[7, 4, 4, 7, 4]);
    /// assert_eq!((hosts.ranks_of(0), hosts.ranks_of(1)), (vec![0, 3], vec![1, 2, 4]));
    /// assert_eq!((hosts.host_of(4), hosts.place_of(4), hosts.rank_at(1, 2)), (1, 2, 4));
    /// ```
    #[must_use]
    pub fn ranks_of(&self, host: usize) -> Vec<usize> {
        (0..self.size_of(host))
            .map(|place| self.rank_at(host, place))
            .collect()
    }

    /// How many ranks a host has.
    #[must_use]
    pub fn size_of(&self, host: usize) -> usize {
        match &self.hosts.0 {
            Kind::Each(ranks) => *ranks,
            Kind::Listed(list) => list.starts[host + 1] - list.starts[host],
        }
    }

    /// The rank in a place of a host.
    #[must_use]
    pub fn rank_at(&self, host: usize, place: usize) -> usize {
        match &self.hosts.0 {
            Kind::Each(ranks) => host * ranks + place,
            Kind::Listed(list) => list.ranks[list.starts[host] + place],
        }
    }

    /// A rank's place among the ranks of its host.
    #[must_use]
    pub fn place_of(&self, rank: usize) -> usize {
        match &self.hosts.0 {
            Kind::Each(ranks) => rank % ranks,
            Kind::Listed(list) => {
                let host = list.host_of[rank];
                let ranks = &list.ranks[list.starts[host]..list.starts[host + 1]];
                ranks.partition_point(|one| *one < rank)
            }
        }
    }

    /// How many ranks hosts have: every number once, in ascending order.
    #[must_use]
    pub fn sizes(&self) -> &[usize] {
        match &self.hosts.0 {
            Kind::Each(ranks) => slice::from_ref(ranks),
            Kind::Listed(list) => &list.sizes,
        }
    }

    /// Checks that the ranks fill their hosts.
    ///
    /// # Errors
    /// A sentence: the hosts are those of another number of ranks, or have more than a host may.
    ///
    /// ```
    /// use ringtree::plan::topology::{Hosts, Topology};
    ///
    /// let not_full = Topology { world_size: 6, hosts: Hosts::each(4) };
    /// assert!(not_full.check().unwrap_err().contains("must divide"));
    /// ```
    pub fn check(&self) -> Result<(), String> {
        let world_size = self.world_size;
        match &self.hosts.0 {
            Kind::Each(ranks) if *ranks == 0 || !world_size.is_multiple_of(*ranks) => {
                return Err(format!(
                    "{world_size} ranks do not fill hosts of {ranks}: \
                     the ranks per host must divide the ranks"
                ));
            }
            Kind::Listed(list) if list.host_of.len() != world_size => {
                return Err(format!(
                    "the hosts have {} ranks, not {world_size}",
                    list.host_of.len()
                ));
            }
            _ => {}
        }
        match self.sizes().last() {
            Some(ranks) if *ranks > RANKS_PER_HOST_MAX => Err(format!(
                "{ranks} ranks on one host are too many; \
                 at most {RANKS_PER_HOST_MAX} can share it"
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn hosts_with_equal_runs_of_ranks_are_a_number() {
        let cases: &[(&[usize], usize)] = &[
            (&[], 1),
            (&[1], 1),
            (&[1, 1, 1], 3),
            (&[1, 1, 2, 2], 2),
            (&[1, 1, 1, 2, 2, 2, 3, 3, 3], 3),
            (&[1, 2, 3], 1),
            (&[3, 1, 2], 1),
        ];
        for (hosts, expected) in cases {
            assert_eq!(Hosts::of(hosts), Hosts::each(*expected), "{hosts:?}");
        }
        // Unequal, taking turns, a host that comes back.
        for hosts in [[1, 1, 2, 3], [1, 2, 1, 2], [1, 2, 2, 1], [1, 2, 2, 2]] {
            let topology = Topology::of(&hosts);
            assert_eq!(topology.sharing(), Sharing::Some, "{hosts:?}");
            assert_eq!(topology.check(), Ok(()));
        }
    }

    proptest! {
        #[test]
        fn every_rank_is_where_it_was_said_to_be(
            hosts in prop::collection::vec(0..6usize, 1..30),
        ) {
            let topology = Topology::of(&hosts);
            let mut seen = vec![];
            for host in 0..topology.host_count() {
                let ranks = topology.ranks_of(host);
                prop_assert!(ranks.is_sorted() && ranks.len() == topology.size_of(host));
                prop_assert!(topology.sizes().contains(&ranks.len()));
                for (place, rank) in ranks.iter().enumerate() {
                    prop_assert_eq!(hosts[*rank], hosts[ranks[0]]);
                    prop_assert_eq!(topology.host_of(*rank), host);
                    prop_assert_eq!(topology.place_of(*rank), place);
                }
                seen.extend(ranks);
            }
            seen.sort_unstable();
            prop_assert!(seen.into_iter().eq(0..hosts.len()));
            let mut names = hosts.clone();
            names.sort_unstable();
            names.dedup();
            prop_assert_eq!(names.len(), topology.host_count());
        }
    }
}
