//! Describes which ranks share a host and which hosts share a site.
//!
//! [`Topology`] provides the hosts, the ranks on each host, and each rank's position on its host.
//! It provides the same information about sites and their hosts. [`Hosts`] hides how the placement
//! is represented. A communicator's topology never changes, so it is not part of the keys that are
//! used to look up calls. Cloning a topology is cheap, because clones share their lists.

use crate::error::PlanError;
use crate::limits::RANKS_PER_HOST_MAX;
use std::collections::HashMap;
use std::fmt;
use std::slice;
use std::sync::Arc;

/// The placement of ranks on hosts, and of hosts at sites.
///
/// Any set of ranks can share a host. There is no slow link between hosts at the same *site*. Hosts
/// are numbered in the order of their lowest ranks, and sites in the order of their lowest hosts.
/// The ranks on a host have positions 0, 1, 2, … in rank order, and the hosts at a site have
/// positions 0, 1, 2, … in host order.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Hosts {
    kind: Kind,
    /// `None` if all hosts are at the same site.
    sites: Option<Arc<Sites>>,
}

/// Sites and their hosts.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Sites {
    /// Site of each host.
    site_of: Vec<usize>,
    /// Hosts of each site, in ascending order.
    hosts: Vec<Vec<usize>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Kind {
    /// Each host holds g consecutive ranks: host k holds ranks k·g to (k+1)·g − 1.
    Each(usize),
    /// Hosts that [`Kind::Each`] cannot describe. At least one of them has several ranks.
    Listed(Arc<List>),
}

/// Hosts and their ranks.
#[derive(Debug, PartialEq, Eq, Hash)]
struct List {
    /// Host of each rank.
    host_of: Vec<usize>,
    /// Ranks, grouped by host.
    ranks: Vec<usize>,
    /// Index in `ranks` of each host's first rank, followed by the total number of ranks.
    starts: Vec<usize>,
    /// Distinct numbers of ranks per host, in ascending order.
    sizes: Vec<usize>,
}

impl Hosts {
    /// Hosts that have one rank each.
    pub const APART: Self = Self::each(1);

    /// Creates hosts that each hold `ranks` consecutive ranks. The total number of ranks must be a
    /// multiple of `ranks`.
    #[must_use]
    pub const fn each(ranks: usize) -> Self {
        Self {
            kind: Kind::Each(ranks),
            sites: None,
        }
    }

    /// Creates hosts from a list that contains the ID of each rank's host, indexed by rank. The IDs
    /// are arbitrary numbers. Ranks with equal IDs share a host.
    ///
    /// ```
    /// use ringtree::plan::internal::topology::Hosts;
    /// assert_eq!(Hosts::of(&[7, 7, 4, 4]), Hosts::each(2));
    /// assert_eq!(Hosts::of(&[7, 4, 4, 7, 4]), Hosts::of(&[0, 1, 1, 0, 1]));
    /// ```
    #[must_use]
    pub fn of(hosts: &[usize]) -> Self {
        let host_of = numbered(hosts);
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

    /// Assigns each host to a site. `sites` contains the ID of each host's site, indexed by host.
    /// The IDs are arbitrary numbers. Hosts with equal IDs share a site.
    ///
    /// ```
    /// use ringtree::plan::internal::topology::{Hosts, Topology};
    /// let hosts = Hosts::each(2).in_sites(&[7, 4, 7]);
    /// let six = Topology { world_size: 6, hosts };
    /// assert_eq!((six.site_count(), six.site_of(1), six.site_of(2)), (2, 1, 0));
    /// assert_eq!(Hosts::each(2).in_sites(&[5, 5]), Hosts::each(2));
    /// ```
    #[must_use]
    pub fn in_sites(self, sites: &[usize]) -> Self {
        let site_of = numbered(sites);
        let count = site_of.iter().max().map_or(0, |last| last + 1);
        let mut hosts = vec![Vec::new(); count];
        for (host, site) in site_of.iter().enumerate() {
            hosts[*site].push(host);
        }
        let sites = (hosts.len() > 1).then(|| Arc::new(Sites { site_of, hosts }));
        Self { sites, ..self }
    }
}

/// Formats the number of ranks per host or the host of each rank, followed by the site of each host
/// if there are several sites.
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

/// The number of ranks and the hosts on which they run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Topology {
    /// Number of ranks, n.
    pub world_size: usize,
    /// The hosts on which the ranks run.
    pub hosts: Hosts,
}

/// The extent to which ranks share hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// No ranks share a host.
    None,
    /// There are several hosts, and some of them have several ranks.
    Some,
    /// All ranks are on one host.
    All,
}

impl Topology {
    /// Creates a topology in which no two ranks share a host.
    #[must_use]
    pub const fn apart(world_size: usize) -> Self {
        Self {
            world_size,
            hosts: Hosts::APART,
        }
    }

    /// Creates a topology from a list that contains the ID of each rank's host, indexed by rank.
    #[must_use]
    pub fn of(hosts: &[usize]) -> Self {
        Self {
            world_size: hosts.len(),
            hosts: Hosts::of(hosts),
        }
    }

    /// Returns the number of hosts.
    #[must_use]
    pub fn host_count(&self) -> usize {
        match &self.hosts.kind {
            Kind::Each(ranks) => self.world_size / ranks,
            Kind::Listed(list) => list.starts.len() - 1,
        }
    }

    /// Returns the host of `rank`.
    #[must_use]
    pub fn host_of(&self, rank: usize) -> usize {
        match &self.hosts.kind {
            Kind::Each(ranks) => rank / ranks,
            Kind::Listed(list) => list.host_of[rank],
        }
    }

    /// Returns the ranks on `host`, in ascending order.
    ///
    /// ```
    /// use ringtree::plan::Topology;
    ///
    /// let hosts = Topology::of(&[7, 4, 4, 7, 4]);
    /// assert_eq!((hosts.ranks_of(0), hosts.ranks_of(1)), (vec![0, 3], vec![1, 2, 4]));
    /// assert_eq!(hosts.host_of(4), 1);
    /// ```
    #[must_use]
    pub fn ranks_of(&self, host: usize) -> Vec<usize> {
        (0..self.size_of(host))
            .map(|place| self.rank_at(host, place))
            .collect()
    }

    /// Returns the number of ranks on `host`.
    pub(crate) fn size_of(&self, host: usize) -> usize {
        match &self.hosts.kind {
            Kind::Each(ranks) => *ranks,
            Kind::Listed(list) => list.starts[host + 1] - list.starts[host],
        }
    }

    /// Returns the rank at position `place` on `host`.
    pub(crate) fn rank_at(&self, host: usize, place: usize) -> usize {
        match &self.hosts.kind {
            Kind::Each(ranks) => host * ranks + place,
            Kind::Listed(list) => list.ranks[list.starts[host] + place],
        }
    }

    /// Returns the position of `rank` among the ranks on its host.
    pub(crate) fn place_of(&self, rank: usize) -> usize {
        match &self.hosts.kind {
            Kind::Each(ranks) => rank % ranks,
            Kind::Listed(list) => {
                let host = list.host_of[rank];
                let ranks = &list.ranks[list.starts[host]..list.starts[host + 1]];
                ranks.partition_point(|one| *one < rank)
            }
        }
    }

    /// Returns the distinct numbers of ranks per host, in ascending order.
    #[must_use]
    pub fn sizes(&self) -> &[usize] {
        match &self.hosts.kind {
            Kind::Each(ranks) => slice::from_ref(ranks),
            Kind::Listed(list) => &list.sizes,
        }
    }

    /// Returns the number of sites.
    #[must_use]
    pub fn site_count(&self) -> usize {
        let sites = self.hosts.sites.as_ref();
        sites.map_or(1, |sites| sites.hosts.len())
    }

    /// Returns the site of `host`.
    #[must_use]
    pub fn site_of(&self, host: usize) -> usize {
        let sites = self.hosts.sites.as_ref();
        sites.map_or(0, |sites| sites.site_of[host])
    }

    /// Returns the number of hosts at `site`.
    pub(crate) fn hosts_at(&self, site: usize) -> usize {
        let sites = self.hosts.sites.as_ref();
        sites.map_or_else(|| self.host_count(), |sites| sites.hosts[site].len())
    }

    /// Returns the host at position `place` at `site`.
    pub(crate) fn host_at(&self, site: usize, place: usize) -> usize {
        let sites = self.hosts.sites.as_ref();
        sites.map_or(place, |sites| sites.hosts[site][place])
    }

    /// Returns the position of `host` among the hosts at its site.
    pub(crate) fn place_of_host(&self, host: usize) -> usize {
        let sites = self.hosts.sites.as_ref();
        sites.map_or(host, |sites| {
            let hosts = &sites.hosts[sites.site_of[host]];
            hosts.partition_point(|one| *one < host)
        })
    }

    /// Checks that the hosts and sites match the number of ranks.
    ///
    /// # Errors
    /// Returns an error if the number of ranks does not match the hosts, if a host has more
    /// than [`RANKS_PER_HOST_MAX`] ranks, or if the number of hosts does not match the sites.
    pub fn check(&self) -> Result<(), PlanError> {
        let world_size = self.world_size;
        match &self.hosts.kind {
            Kind::Each(ranks) if *ranks == 0 || !world_size.is_multiple_of(*ranks) => {
                return Err(refused!(
                    Invalid,
                    "cannot place {world_size} ranks on hosts with {ranks} ranks each: the number \
                     of ranks per host must divide the number of ranks"
                ));
            }
            Kind::Listed(list) if list.host_of.len() != world_size => {
                return Err(refused!(
                    Invalid,
                    "the hosts have {} ranks in total, expected {world_size}",
                    list.host_of.len()
                ));
            }
            _ => {}
        }
        let at_sites = self.hosts.sites.as_ref().map(|sites| sites.site_of.len());
        if let Some(hosts) = at_sites.filter(|hosts| *hosts != self.host_count()) {
            return Err(refused!(
                Invalid,
                "the sites have {hosts} hosts in total, expected {}",
                self.host_count()
            ));
        }
        match self.sizes().last() {
            Some(ranks) if *ranks > RANKS_PER_HOST_MAX => Err(refused!(
                Invalid,
                "{ranks} ranks on one host exceed the limit of {RANKS_PER_HOST_MAX}; \
                 use more hosts"
            )),
            _ => Ok(()),
        }
    }
}

/// Replaces each ID with its index in the order in which the IDs first appear.
fn numbered(names: &[usize]) -> Vec<usize> {
    let mut numbers = HashMap::new();
    let number = |name: &usize| {
        let next = numbers.len();
        *numbers.entry(*name).or_insert(next)
    };
    names.iter().map(number).collect()
}

/// Creates one host for each entry in `sizes`, with that number of consecutive ranks.
///
/// ```
/// use ringtree::plan::internal::topology::{Hosts, of_sizes};
/// assert_eq!(of_sizes(&[3, 1, 2]), Hosts::of(&[0, 0, 0, 1, 2, 2]));
/// ```
#[must_use]
pub fn of_sizes(sizes: &[usize]) -> Hosts {
    let ranks = |(host, size): (usize, &usize)| vec![host; *size];
    let hosts: Vec<usize> = sizes.iter().enumerate().flat_map(ranks).collect();
    Hosts::of(&hosts)
}

/// Assigns consecutive hosts to sites. `hosts` contains the number of hosts at each site.
///
/// ```
/// use ringtree::plan::internal::topology::{Hosts, in_sites_of};
/// assert_eq!(in_sites_of(Hosts::APART, &[2, 1]), Hosts::APART.in_sites(&[0, 0, 1]));
/// ```
#[must_use]
pub fn in_sites_of(placed: Hosts, hosts: &[usize]) -> Hosts {
    let hosts = hosts.iter().enumerate();
    let sites: Vec<usize> = hosts.flat_map(|(site, size)| vec![site; *size]).collect();
    placed.in_sites(&sites)
}

/// Creates a topology in which all ranks are on one host.
#[must_use]
pub const fn together(world_size: usize) -> Topology {
    Topology {
        world_size,
        hosts: Hosts::each(world_size),
    }
}

/// Creates a topology from lists that contain the ID of each rank's host and the ID of each rank's
/// site, both indexed by rank. A host belongs to the site of its lowest rank.
///
/// ```
/// use ringtree::plan::internal::topology::at_sites;
/// let four = at_sites(&[0, 0, 1, 2], &[5, 5, 5, 6]);
/// assert_eq!((four.host_count(), four.site_count()), (3, 2));
/// ```
#[must_use]
pub fn at_sites(hosts: &[usize], sites: &[usize]) -> Topology {
    let topology = Topology::of(hosts);
    let of_host = |host| sites[topology.rank_at(host, 0)];
    let sites: Vec<usize> = (0..topology.host_count()).map(of_host).collect();
    Topology {
        world_size: topology.world_size,
        hosts: topology.hosts.in_sites(&sites),
    }
}

/// Returns the extent to which ranks share hosts. A single rank does not share its host.
///
/// ```
/// use ringtree::plan::Topology;
/// use ringtree::plan::internal::topology::{Sharing, sharing, together};
///
/// assert_eq!(sharing(&Topology::of(&[0, 0, 0, 1])), Sharing::Some);
/// assert_eq!(sharing(&Topology::apart(8)), Sharing::None);
/// assert_eq!(sharing(&together(8)), Sharing::All);
/// ```
#[must_use]
pub fn sharing(topology: &Topology) -> Sharing {
    match topology.hosts.kind {
        Kind::Each(1) => Sharing::None,
        Kind::Each(ranks) if ranks == topology.world_size => Sharing::All,
        Kind::Each(_) | Kind::Listed(_) => Sharing::Some,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranks_per_host_must_divide_the_rank_count() {
        let not_full = Topology {
            world_size: 6,
            hosts: Hosts::each(4),
        };
        let error = not_full.check().unwrap_err();
        assert!(error.to_string().contains("must divide"));
    }

    #[test]
    fn hosts_with_equal_runs_of_ranks_are_stored_as_one_number() {
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
        // Hosts of different sizes, and hosts whose ranks are not consecutive.
        for hosts in [[1, 1, 2, 3], [1, 2, 1, 2], [1, 2, 2, 1], [1, 2, 2, 2]] {
            let topology = Topology::of(&hosts);
            assert_eq!(sharing(&topology), Sharing::Some, "{hosts:?}");
            assert_eq!(topology.check(), Ok(()));
        }
    }

    proptest! {
        #[test]
        fn every_rank_is_on_its_specified_host(
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
        fn every_host_is_at_its_specified_site(
            ranks in prop::collection::vec((0..6usize, 0..3usize), 1..30),
        ) {
            let (hosts, sites): (Vec<_>, Vec<_>) = ranks.into_iter().unzip();
            let topology = at_sites(&hosts, &sites);
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
