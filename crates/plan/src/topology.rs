//! Which ranks share a host, and which hosts a site.
//!
//! A [`Topology`] is asked for hosts, their ranks and a rank's place among them, and likewise for
//! sites and their hosts; how [`Hosts`] keeps that is its own matter. It is made once for a
//! communicator and never changes, so it is part of no key by which calls are looked up. Copies
//! share what is in it.

use crate::limits::RANKS_PER_HOST_MAX;
use std::collections::HashMap;
use std::fmt;
use std::slice;
use std::sync::Arc;

/// Which ranks share a host: any ranks any host, in any order. And which hosts share a *site*, that
/// is, have no slow link between them: any hosts any site.
///
/// Hosts are numbered by their lowest rank, sites by their lowest host. A host's ranks have places
/// 0, 1, 2, … in it, in rank order, and a site's hosts have places in it likewise.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Hosts {
    kind: Kind,
    /// None where all hosts are at one site.
    sites: Option<Arc<Sites>>,
}

/// Sites and their hosts.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Sites {
    /// By host, the number of its site.
    site_of: Vec<usize>,
    /// By site, its hosts, in ascending order.
    hosts: Vec<Vec<usize>>,
}

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
        Self {
            kind: Kind::Each(ranks),
            sites: None,
        }
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
            _ => Self {
                kind: Kind::Listed(Arc::new(List {
                    host_of,
                    ranks,
                    starts,
                    sizes,
                })),
                sites: None,
            },
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

    /// The same hosts, each at the site that `sites` names, by host number.
    ///
    /// ```
    /// use ringtree::plan::topology::{Hosts, Topology};
    /// let hosts = Hosts::each(2).in_sites(&[7, 4, 7]);
    /// let six = Topology { world_size: 6, hosts };
    /// assert_eq!((six.site_count(), six.site_of(1), six.host_at(0, 1)), (2, 1, 2));
    /// assert_eq!(Hosts::each(2).in_sites(&[5, 5]), Hosts::each(2));
    /// ```
    #[must_use]
    pub fn in_sites(self, sites: &[usize]) -> Self {
        let mut numbers = HashMap::new();
        let number = |site: &usize| {
            let next = numbers.len();
            *numbers.entry(*site).or_insert(next)
        };
        let site_of: Vec<usize> = sites.iter().map(number).collect();
        let mut hosts = vec![Vec::new(); numbers.len()];
        for (host, site) in site_of.iter().enumerate() {
            hosts[*site].push(host);
        }
        let several = (hosts.len() > 1).then(|| Arc::new(Sites { site_of, hosts }));
        Self {
            kind: self.kind,
            sites: several,
        }
    }

    /// The same hosts, at sites of so many consecutive hosts.
    ///
    /// ```
    /// use ringtree::plan::topology::Hosts;
    /// assert_eq!(Hosts::APART.in_sites_of(&[2, 1]), Hosts::APART.in_sites(&[0, 0, 1]));
    /// ```
    #[must_use]
    pub fn in_sites_of(self, hosts: &[usize]) -> Self {
        let hosts = hosts.iter().enumerate();
        let sites: Vec<usize> = hosts.flat_map(|(site, size)| vec![site; *size]).collect();
        self.in_sites(&sites)
    }
}

/// The number of ranks a host, or by rank the number of its host; then by host that of its site.
impl fmt::Debug for Hosts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Each(ranks) => write!(formatter, "each({ranks})"),
            Kind::Listed(list) => write!(formatter, "of({:?})", list.host_of),
        }?;
        match &self.sites {
            Some(sites) => write!(formatter, ".in_sites({:?})", sites.site_of),
            None => Ok(()),
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

    /// Ranks of which each is on the host that `hosts` names and at the site that `sites` names. A
    /// host is at the site of its lowest rank.
    ///
    /// ```
    /// use ringtree::plan::topology::Topology;
    /// let four = Topology::at_sites(&[0, 0, 1, 2], &[5, 5, 5, 6]);
    /// assert_eq!((four.host_count(), four.site_count()), (3, 2));
    /// ```
    #[must_use]
    pub fn at_sites(hosts: &[usize], sites: &[usize]) -> Self {
        let topology = Self::of(hosts);
        let of_host = |host| sites[topology.rank_at(host, 0)];
        let sites: Vec<usize> = (0..topology.host_count()).map(of_host).collect();
        Self {
            world_size: topology.world_size,
            hosts: topology.hosts.in_sites(&sites),
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
        match self.hosts.kind {
            Kind::Each(1) => Sharing::None,
            Kind::Each(ranks) if ranks == self.world_size => Sharing::All,
            Kind::Each(_) | Kind::Listed(_) => Sharing::Some,
        }
    }

    /// How many hosts.
    #[must_use]
    pub fn host_count(&self) -> usize {
        match &self.hosts.kind {
            Kind::Each(ranks) => self.world_size / ranks,
            Kind::Listed(list) => list.starts.len() - 1,
        }
    }

    /// The host of a rank.
    #[must_use]
    pub fn host_of(&self, rank: usize) -> usize {
        match &self.hosts.kind {
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
        match &self.hosts.kind {
            Kind::Each(ranks) => *ranks,
            Kind::Listed(list) => list.starts[host + 1] - list.starts[host],
        }
    }

    /// The rank in a place of a host.
    #[must_use]
    pub fn rank_at(&self, host: usize, place: usize) -> usize {
        match &self.hosts.kind {
            Kind::Each(ranks) => host * ranks + place,
            Kind::Listed(list) => list.ranks[list.starts[host] + place],
        }
    }

    /// A rank's place among the ranks of its host.
    #[must_use]
    pub fn place_of(&self, rank: usize) -> usize {
        match &self.hosts.kind {
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
        match &self.hosts.kind {
            Kind::Each(ranks) => slice::from_ref(ranks),
            Kind::Listed(list) => &list.sizes,
        }
    }

    /// How many sites.
    #[must_use]
    pub fn site_count(&self) -> usize {
        let sites = self.hosts.sites.as_ref();
        sites.map_or(1, |sites| sites.hosts.len())
    }

    /// The site of a host.
    #[must_use]
    pub fn site_of(&self, host: usize) -> usize {
        let sites = self.hosts.sites.as_ref();
        sites.map_or(0, |sites| sites.site_of[host])
    }

    /// How many hosts a site has.
    #[must_use]
    pub fn hosts_at(&self, site: usize) -> usize {
        let sites = self.hosts.sites.as_ref();
        sites.map_or_else(|| self.host_count(), |sites| sites.hosts[site].len())
    }

    /// The host in a place of a site.
    #[must_use]
    pub fn host_at(&self, site: usize, place: usize) -> usize {
        let sites = self.hosts.sites.as_ref();
        sites.map_or(place, |sites| sites.hosts[site][place])
    }

    /// A host's place among the hosts of its site.
    #[must_use]
    pub fn place_of_host(&self, host: usize) -> usize {
        let sites = self.hosts.sites.as_ref();
        sites.map_or(host, |sites| {
            let hosts = &sites.hosts[sites.site_of[host]];
            hosts.partition_point(|one| *one < host)
        })
    }

    /// Checks that the ranks fill their hosts, and the hosts their sites.
    ///
    /// # Errors
    /// A sentence: the hosts are those of another number of ranks, or have more than a host may, or
    /// the sites are those of another number of hosts.
    ///
    /// ```
    /// use ringtree::plan::topology::{Hosts, Topology};
    ///
    /// let not_full = Topology { world_size: 6, hosts: Hosts::each(4) };
    /// assert!(not_full.check().unwrap_err().contains("must divide"));
    /// ```
    pub fn check(&self) -> Result<(), String> {
        let world_size = self.world_size;
        match &self.hosts.kind {
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
        let at_sites = self.hosts.sites.as_ref().map(|sites| sites.site_of.len());
        if let Some(hosts) = at_sites.filter(|hosts| *hosts != self.host_count()) {
            return Err(format!(
                "the sites have {hosts} hosts, not {}",
                self.host_count()
            ));
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

        #[test]
        fn every_host_is_where_it_was_said_to_be(
            ranks in prop::collection::vec((0..6usize, 0..3usize), 1..30),
        ) {
            let (hosts, sites): (Vec<_>, Vec<_>) = ranks.into_iter().unzip();
            let topology = Topology::at_sites(&hosts, &sites);
            prop_assert_eq!(topology.check(), Ok(()));
            let mut seen = 0;
            for site in 0..topology.site_count() {
                for place in 0..topology.hosts_at(site) {
                    let host = topology.host_at(site, place);
                    prop_assert_eq!(topology.site_of(host), site);
                    prop_assert_eq!(topology.place_of_host(host), place);
                    seen += 1;
                }
            }
            prop_assert_eq!(seen, topology.host_count());
            let of_host = |host| sites[topology.rank_at(host, 0)];
            let mut names: Vec<_> = (0..seen).map(of_host).collect();
            names.sort_unstable();
            names.dedup();
            prop_assert_eq!(names.len(), topology.site_count());
        }
    }
}
