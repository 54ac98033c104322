//! Determines which ranks exchange data at each level of an all-reduce, and for which chunks.
//!
//! The levels are the ranks on a host, the hosts at a site, and the sites. Each level divides the
//! buffer into its own units (see [`super::shares`]). Plans convert these units to chunks.

use super::shares::{Share, common_units, segments};
use crate::algorithms::circulant::exchange::Circle;
use crate::ir::{ChunkRange, Round, Step};
use crate::topology::Topology;
use std::ops::Range;

/// The division of the buffer among all ranks.
pub(super) struct BufferDivision<'a> {
    topology: &'a Topology,
    /// The shares of hosts, one for each distinct number of ranks per host.
    hosts: Vec<Share>,
    /// The kinds of sites, one for each distinct list of hosts.
    pub(super) kinds: Vec<Kind>,
    /// Kind of each site, as an index into `kinds`.
    kind_of: Vec<usize>,
    /// Number of units into which the sites divide the buffer.
    pub(super) common: usize,
}

/// Sites whose hosts have the same numbers of ranks, in the same order.
pub(super) struct Kind {
    /// The first site of this kind.
    pub(super) site: usize,
    /// Distinct numbers of ranks per host, in ascending order.
    pub(super) sizes: Vec<usize>,
    /// Number of units into which the hosts at such a site divide the buffer.
    pub(super) common: usize,
    /// The parts that the ranks at such a site hold; `None` if there is only one site.
    pub(super) share: Option<Share>,
}

/// An exchange between groups from the perspective of one rank.
struct Level<'a> {
    places: usize,
    own: usize,
    /// Runs of this rank's units that have a single holder in every group.
    segments: Vec<Range<usize>>,
    /// Returns the rank that holds a given unit in the group at a given position.
    rank_in: Box<dyn Fn(usize, usize) -> usize + 'a>,
    /// Returns the first chunk of a fine unit. Each unit in `segments` consists of `places` fine
    /// units.
    chunk: Box<dyn Fn(usize) -> usize + 'a>,
}

impl<'a> BufferDivision<'a> {
    pub(super) fn of(topology: &'a Topology) -> Self {
        let sizes = topology.sizes().iter();
        let host = |size: &usize| Share::of_group(&vec![&Share::alone(); *size]);
        let mut cut = Self {
            topology,
            hosts: sizes.map(host).collect(),
            kinds: Vec::new(),
            kind_of: Vec::new(),
            common: 1,
        };
        if topology.site_count() == 1 {
            cut.kinds = vec![cut.kind(0, topology.sizes().to_vec(), None)];
            cut.kind_of = vec![0];
        } else {
            cut.classify_sites();
        }
        cut
    }

    fn classify_sites(&mut self) {
        let topology = self.topology;
        let mut known: Vec<Vec<usize>> = Vec::new();
        for site in 0..topology.site_count() {
            let hosts = (0..topology.hosts_at(site)).map(|place| topology.host_at(site, place));
            let sizes: Vec<usize> = hosts.map(|host| topology.size_of(host)).collect();
            let kind = known.iter().position(|one| *one == sizes);
            if kind.is_none() {
                let hosts: Vec<&Share> = sizes.iter().map(|size| self.host(*size)).collect();
                let share = Share::of_group(&hosts);
                let mut distinct = sizes.clone();
                distinct.sort_unstable();
                distinct.dedup();
                let kind = self.kind(site, distinct, Some(share));
                self.kinds.push(kind);
                known.push(sizes);
            }
            self.kind_of.push(kind.unwrap_or(known.len() - 1));
        }
        let shares: Vec<&Share> = self.shares().collect();
        self.common = common_units(&shares);
    }

    fn kind(&self, site: usize, sizes: Vec<usize>, share: Option<Share>) -> Kind {
        let hosts: Vec<&Share> = sizes.iter().map(|size| self.host(*size)).collect();
        Kind {
            site,
            common: common_units(&hosts),
            sizes,
            share,
        }
    }

    /// Returns the share of a host with `size` ranks.
    pub(super) fn host(&self, size: usize) -> &Share {
        &self.hosts[self.topology.sizes().partition_point(|one| *one < size)]
    }

    /// Returns the kind of a site.
    pub(super) fn kind_of(&self, site: usize) -> &Kind {
        &self.kinds[self.kind_of[site]]
    }

    fn shares(&self) -> impl Iterator<Item = &Share> {
        self.kinds.iter().filter_map(|kind| kind.share.as_ref())
    }

    /// Returns the number of chunks per piece.
    pub(super) fn units(&self) -> usize {
        match self.topology.site_count() {
            1 => self.kinds[0].common * self.topology.host_count(),
            sites => self.common * sites,
        }
    }

    /// Returns the unit of the complete buffer at which a unit of the hosts at `site` begins.
    fn of_site(&self, site: usize, unit: usize) -> usize {
        match &self.kind_of(site).share {
            Some(share) => share.scaled(unit, self.common) * self.topology.site_count(),
            None => unit,
        }
    }

    /// Returns the chunks of one piece that a rank reduces inside its host. Pieces are cut from the
    /// rank's part regardless of the blocks that the rank exchanges later. The part and its first
    /// block begin at the same chunk.
    pub(super) fn inside(&self, rank: usize, (piece, pieces): (usize, usize)) -> Vec<ChunkRange> {
        let topology = self.topology;
        let host = topology.host_of(rank);
        let (site, size) = (topology.site_of(host), topology.size_of(host));
        let kind = self.kind_of(site);
        let begin = |place| {
            let unit = self.host(size).scaled(place, kind.common);
            self.of_site(site, unit * topology.hosts_at(site))
        };
        let place = topology.place_of(rank);
        let (start, end) = (begin(place), begin(place + 1));
        let count = end - start;
        vec![ChunkRange::new(start * pieces + count * piece, count)]
    }

    /// Returns the exchange between the hosts at a rank's site.
    fn between_hosts(&self, rank: usize, pieces: usize) -> Level<'_> {
        let topology = self.topology;
        let host = topology.host_of(rank);
        let site = topology.site_of(host);
        let kind = self.kind_of(site);
        let common = kind.common;
        let share_of = move |host| self.host(topology.size_of(host));
        let groups: Vec<&Share> = kind.sizes.iter().map(|size| self.host(*size)).collect();
        let held = share_of(host).held(topology.place_of(rank), common);
        Level {
            places: topology.hosts_at(site),
            own: topology.place_of_host(host),
            segments: split_segments(&groups, common, held),
            rank_in: Box::new(move |place, unit| {
                let host = topology.host_at(site, place);
                topology.rank_at(host, share_of(host).holder(unit, common))
            }),
            chunk: Box::new(move |unit| self.of_site(site, unit) * pieces),
        }
    }

    /// Returns the exchange between the sites, or `None` if there is only one site.
    fn between_sites(&self, rank: usize, pieces: usize) -> Option<Level<'_>> {
        let (topology, common) = (self.topology, self.common);
        let site = topology.site_of(topology.host_of(rank));
        let groups: Vec<&Share> = self.shares().collect();
        let held = self.kind_of(site).share.as_ref()?;
        let held = held.held(number_at_site(topology, rank), common);
        Some(Level {
            places: topology.site_count(),
            own: site,
            segments: split_segments(&groups, common, held),
            rank_in: Box::new(move |site, unit| {
                let share = self.kind_of(site).share.as_ref();
                let number = share.map_or(0, |share| share.holder(unit, common));
                rank_of_number(topology, site, number)
            }),
            chunk: Box::new(move |unit| unit * pieces),
        })
    }

    /// Returns the rounds of one rank between the two stages inside its host: among the hosts at
    /// its site, among the sites, and back.
    pub(super) fn between(&self, rank: usize, pieces: usize) -> Vec<Round> {
        let hosts = self.between_hosts(rank, pieces);
        let rounds = |kind: &Kind| super::rounds_one_way(self.topology.hosts_at(kind.site));
        let most = self.kinds.iter().map(rounds).max().unwrap_or(0);
        let mut folding = hosts.rounds(|circle| circle.reduce_scatter());
        let mut handing_out = hosts.rounds(|circle| circle.all_gather());
        if let Some(sites) = self.between_sites(rank, pieces) {
            clear_completes(&mut folding);
            folding.resize_with(most, Vec::new);
            folding.extend(sites.rounds(|circle| circle.reduce_scatter()));
            let mut across = sites.rounds(|circle| circle.all_gather());
            handing_out.resize_with(most, Vec::new);
            across.append(&mut handing_out);
            handing_out = across;
        }
        folding.append(&mut handing_out);
        folding
    }
}

/// Returns the index of a rank among the ranks at its site, counted host by host.
fn number_at_site(topology: &Topology, rank: usize) -> usize {
    let host = topology.host_of(rank);
    let site = topology.site_of(host);
    let before = (0..topology.place_of_host(host)).map(|place| topology.host_at(site, place));
    let ranks: usize = before.map(|host| topology.size_of(host)).sum();
    ranks + topology.place_of(rank)
}

/// Returns the rank with index `number` at `site` (see [`number_at_site`]).
fn rank_of_number(topology: &Topology, site: usize, number: usize) -> usize {
    let (mut place, mut left) = (0, number);
    loop {
        let host = topology.host_at(site, place);
        let size = topology.size_of(host);
        if left < size {
            return topology.rank_at(host, left);
        }
        (place, left) = (place + 1, left - size);
    }
}

fn split_segments(groups: &[&Share], common: usize, held: Vec<Range<usize>>) -> Vec<Range<usize>> {
    let of_run = |run| segments(groups, common, run);
    held.into_iter().flat_map(of_run).collect()
}

/// Marks reductions as incomplete, because the groups of one level do not hold all contributions.
pub(super) fn clear_completes(rounds: &mut [Round]) {
    for step in rounds.iter_mut().flatten() {
        if let Step::Receive { completes, .. } = step {
            *completes = false;
        }
    }
}

/// A function that returns the rounds of an exchange.
type ExchangeRounds<'a> = &'a dyn Fn(&Exchange<'_>) -> Vec<Round>;

/// The exchange of one segment.
type Exchange<'a> = Circle<&'a dyn Fn(usize) -> usize, &'a dyn Fn(usize) -> usize>;

impl Level<'_> {
    /// Returns the rounds that exchange all segments in parallel.
    fn rounds(&self, way: impl Fn(&Exchange<'_>) -> Vec<Round>) -> Vec<Round> {
        let of_segment = |segment: &Range<usize>| self.of_segment(segment, &way);
        merge_rounds(self.segments.iter().map(of_segment))
    }

    fn of_segment(&self, segment: &Range<usize>, way: ExchangeRounds<'_>) -> Vec<Round> {
        let start = segment.start * self.places;
        way(&Circle {
            places: self.places,
            radix: 2,
            own: self.own,
            begin: &|block| (self.chunk)(start + block * segment.len()),
            rank_in: &|place| (self.rank_in)(place, segment.start),
        })
    }
}

/// Merges exchanges into the same rounds. Everything that one rank sends to another in a round
/// becomes one message.
fn merge_rounds(exchanges: impl Iterator<Item = Vec<Round>>) -> Vec<Round> {
    let mut rounds: Vec<Round> = Vec::new();
    for exchange in exchanges {
        rounds.resize_with(exchange.len(), Vec::new);
        for (round, steps) in rounds.iter_mut().zip(exchange) {
            for step in steps {
                if !round.iter_mut().any(|one| joins(one, &step)) {
                    round.push(step);
                }
            }
        }
    }
    for round in &mut rounds {
        round.sort_by_key(|step| !matches!(step, Step::Send { .. }));
    }
    rounds
}

/// Adds the chunks of `other` to those of `step` and returns `true` if both are parts of one
/// message.
fn joins(step: &mut Step, other: &Step) -> bool {
    match (step, other) {
        (
            Step::Send { peers, ranges },
            Step::Send {
                peers: other_peers,
                ranges: more,
            },
        ) if peers == other_peers => ranges.extend(more),
        (
            Step::Receive {
                sources, ranges, ..
            },
            Step::Receive {
                sources: other_sources,
                ranges: more,
                ..
            },
        ) if sources == other_sources => ranges.extend(more),
        _ => return false,
    }
    true
}
