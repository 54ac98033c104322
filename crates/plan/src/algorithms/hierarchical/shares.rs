//! Determines which part of the buffer each rank of a group holds after the group has reduced it.
//!
//! A single rank holds the complete buffer. A group that consists of k smaller groups divides the
//! buffer further. A *segment* is a maximal run that has a single holder in every group. Each
//! segment is split into k blocks, and block j belongs to the holder in group j. The ranks on a
//! host therefore hold one block each. The same rule determines what each rank holds for the hosts
//! at a site and for several sites, for any numbers of ranks:
//!
//! ```text
//! hosts of 2 and 3 ranks, 6 units   units     0   1   2   3   4   5
//!                                   host 0  │     0     │     1     │
//!                                   host 1  │   0   │   1   │   2   │
//!                                   segments│   0   │ 1 │ 2 │   3   │
//! ```
//!
//! Each group divides the buffer into its own number of units. Groups that exchange data agree on
//! the least common multiple of their numbers of units, so that equal shares remain equal, or on 8
//! times the largest number if that is smaller. In the latter case, shares differ by at most one of
//! the agreed units.

use std::ops::Range;

/// Largest number of units on which groups agree, as a multiple of the largest number of units in
/// any group.
const UNITS_MAX: usize = 8;

/// The parts of the buffer that the ranks of one group hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// Number of units into which the group divides the buffer.
    pub(super) units: usize,
    /// First units of the runs that have a single holder. A member may hold several runs.
    starts: Vec<usize>,
    /// Holder of each run, as an index into the ranks of the group.
    holders: Vec<usize>,
    /// Number of ranks in the group.
    members: usize,
}

impl Share {
    /// Returns the share of a single rank.
    pub(super) fn alone() -> Self {
        Self {
            units: 1,
            starts: vec![0],
            holders: vec![0],
            members: 1,
        }
    }

    /// Returns the share of the group that consists of `groups`. Its ranks are numbered group by
    /// group.
    pub(super) fn of_group(groups: &[&Self]) -> Self {
        let mut distinct: Vec<&Self> = Vec::new();
        let mut first_members = Vec::with_capacity(groups.len());
        let mut members = 0;
        for group in groups {
            if !distinct.iter().any(|one| std::ptr::eq(*one, *group)) {
                distinct.push(group);
            }
            first_members.push(members);
            members += group.members;
        }
        let common = common_units(&distinct);
        let (mut starts, mut holders) = (Vec::new(), Vec::new());
        for segment in segments(&distinct, common, 0..common) {
            for (place, group) in groups.iter().enumerate() {
                starts.push(segment.start * groups.len() + place * segment.len());
                holders.push(first_members[place] + group.holder(segment.start, common));
            }
        }
        Self {
            units: common * groups.len(),
            starts,
            holders,
            members,
        }
    }

    /// Returns the unit, out of `common`, at which a unit of the group begins. `common` is at least
    /// the group's number of units.
    pub(super) fn scaled(&self, unit: usize, common: usize) -> usize {
        unit * common / self.units
    }

    /// Returns the index of the rank that holds `unit` if the buffer is divided into `common`
    /// units.
    pub(super) fn holder(&self, unit: usize, common: usize) -> usize {
        self.holders[self.next_run(unit, common) - 1]
    }

    /// Returns the ranges of units that `member` holds if the buffer is divided into `common`
    /// units.
    pub(super) fn held(&self, member: usize, common: usize) -> Vec<Range<usize>> {
        let runs = self.holders.iter().enumerate();
        let own = runs.filter(|(_, holder)| **holder == member);
        own.map(|(run, _)| self.begin(run, common)..self.begin(run + 1, common))
            .collect()
    }

    /// Returns the number of units, out of `common`, that each member holds.
    pub(super) fn of_members(&self, common: usize) -> Vec<usize> {
        let mut of_member = vec![0; self.members];
        for (run, holder) in self.holders.iter().enumerate() {
            of_member[*holder] += self.begin(run + 1, common) - self.begin(run, common);
        }
        of_member
    }

    /// Returns the largest share of the buffer that a member holds.
    pub(super) fn most(&self, common: usize) -> f64 {
        let most = self.of_members(common).into_iter().max();
        most.unwrap_or(common) as f64 / common as f64
    }

    /// Counts, for each member, the members of `other` that hold some of the same units, and
    /// returns the largest count. The buffer is divided into `common` units.
    pub(super) fn partners(&self, other: &Self, common: usize) -> usize {
        let mut pairs: Vec<(usize, usize)> = segments(&[self, other], common, 0..common)
            .map(|segment| segment.start)
            .map(|unit| (self.holder(unit, common), other.holder(unit, common)))
            .collect();
        pairs.sort_unstable();
        pairs.dedup();
        let of_member = pairs.chunk_by(|one, next| one.0 == next.0);
        of_member.map(<[_]>::len).max().unwrap_or(0)
    }

    /// Returns the index of the first run that begins after `unit`.
    fn next_run(&self, unit: usize, common: usize) -> usize {
        let begins = |start: &usize| self.scaled(*start, common) <= unit;
        self.starts.partition_point(begins)
    }

    fn begin(&self, run: usize, common: usize) -> usize {
        let unit = self.starts.get(run).copied().unwrap_or(self.units);
        self.scaled(unit, common)
    }
}

/// Returns the number of units that all of these groups use when they exchange data.
pub(super) fn common_units(groups: &[&Share]) -> usize {
    let units = || groups.iter().map(|group| group.units);
    let most = UNITS_MAX * units().max().unwrap_or(1);
    units().fold(1, |common, units| {
        (common / divisor(common, units) * units).min(most)
    })
}

/// Splits a run into segments that have a single holder in every one of `groups`.
pub(super) fn segments(
    groups: &[&Share],
    common: usize,
    run: Range<usize>,
) -> impl Iterator<Item = Range<usize>> + use<> {
    let cuts_in = |group: &&Share| {
        let runs = group.next_run(run.start, common)..group.starts.len();
        let cuts = runs.map(|run| group.begin(run, common));
        cuts.take_while(|cut| *cut < run.end).collect::<Vec<_>>()
    };
    let mut cuts: Vec<usize> = groups.iter().flat_map(cuts_in).collect();
    cuts.extend([run.start, run.end]);
    cuts.sort_unstable();
    cuts.dedup();
    (1..cuts.len()).map(move |cut| cuts[cut - 1]..cuts[cut])
}

/// Returns the greatest common divisor.
fn divisor(one: usize, other: usize) -> usize {
    match other {
        0 => one,
        _ => divisor(other, one % other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn host(size: usize) -> Share {
        Share::of_group(&vec![&Share::alone(); size])
    }

    fn units(sizes: &[usize]) -> usize {
        let hosts: Vec<Share> = sizes.iter().copied().map(host).collect();
        common_units(&hosts.iter().collect::<Vec<_>>())
    }

    #[test]
    fn unit_count_is_a_common_multiple_up_to_a_limit() {
        assert_eq!((units(&[4, 4]), units(&[1, 1])), (4, 1));
        assert_eq!((units(&[2, 3]), units(&[4, 7, 8])), (6, 56));
        assert_eq!((units(&[1, 2, 3, 5]), units(&[5, 7, 8])), (30, 64));
    }

    #[test]
    fn ranks_of_equal_hosts_hold_equal_shares() {
        let (alone, four) = (Share::alone(), host(4));
        let site = Share::of_group(&[&four, &four, &four]);
        assert_eq!(
            (site.units, site.members, site.most(12)),
            (12, 12, 1.0 / 12.0)
        );
        assert_eq!((four.most(4), alone.most(1)), (0.25, 1.0));
        assert_eq!(
            (site.partners(&site, 12), site.partners(&alone, 12)),
            (1, 1)
        );
        assert_eq!(alone.partners(&site, 12), 12);
    }

    proptest! {
        #[test]
        fn units_and_segments_have_one_holder_in_each_group(
            sites in prop::collection::vec(prop::collection::vec(1..=9usize, 1..5), 1..4),
        ) {
            let hosts: Vec<Share> = (0..=9).map(host).collect();
            let site = |sizes: &Vec<usize>| {
                Share::of_group(&sizes.iter().map(|size| &hosts[*size]).collect::<Vec<_>>())
            };
            let sites: Vec<Share> = sites.iter().map(site).collect();
            let all: Vec<&Share> = sites.iter().collect();
            let common = common_units(&all);
            for one in &sites {
                let mut holders = vec![None; common];
                for member in 0..one.members {
                    let held = one.held(member, common);
                    prop_assert!(!held.is_empty());
                    for run in held {
                        prop_assert!(!run.is_empty());
                        holders[run.clone()].fill(Some(member));
                        let together = segments(&all, common, run.clone()).flatten();
                        prop_assert!(together.eq(run));
                    }
                }
                for (unit, holder) in holders.into_iter().enumerate() {
                    prop_assert_eq!(holder, Some(one.holder(unit, common)));
                }
            }
            for segment in segments(&all, common, 0..common) {
                for one in &sites {
                    let holder = one.holder(segment.start, common);
                    prop_assert!(segment.clone().all(|unit| one.holder(unit, common) == holder));
                }
            }
        }
    }
}
