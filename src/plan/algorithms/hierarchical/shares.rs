//! Which part of the buffer each rank of a host holds, where hosts have any numbers of ranks.
//!
//! The buffer is cut into u units. Of a host with g ranks, the rank in place l holds the units from
//! ⌊l·u/g⌋ to ⌊(l+1)·u/g⌋. u is the least common multiple of the numbers of ranks that hosts have,
//! so that the ranks of a host hold equally much; or 8 times the largest of these numbers, if that
//! is less: then the shares of a host's ranks differ by one unit at most. A *segment* is a longest
//! run of units that has one holder on every host:
//!
//! ```text
//! hosts of 2 and 3 ranks, u = 6     units     0   1   2   3   4   5
//!                                   host 0  │     0     │     1     │
//!                                   host 1  │   0   │   1   │   2   │
//!                                   segments│   0   │ 1 │ 2 │   3   │
//! ```

use crate::plan::topology::Topology;
use std::ops::Range;

/// The most units, as a multiple of the largest host's ranks.
const UNITS_A_RANK_MAX: usize = 8;

/// The cut of the buffer.
pub(super) struct Shares {
    /// How many units, u.
    pub(super) units: usize,
    /// The numbers of ranks that hosts have, in ascending order.
    sizes: Vec<usize>,
}

impl Shares {
    /// The cut that suits these hosts.
    pub(super) fn of(topology: &Topology) -> Self {
        let sizes = topology.sizes().to_vec();
        let most = sizes.last().map_or(1, |size| UNITS_A_RANK_MAX * size);
        let common = |units, size: &usize| (units / divisor(units, *size) * size).min(most);
        Self {
            units: sizes.iter().fold(1, common),
            sizes,
        }
    }

    /// The units that a rank holds on a host of `size` ranks.
    pub(super) fn held(&self, size: usize, place: usize) -> Range<usize> {
        self.cut(size, place)..self.cut(size, place + 1)
    }

    /// The share of the buffer that a rank of a host of `size` ranks holds at most.
    pub(super) fn share(&self, size: usize) -> f64 {
        self.units.div_ceil(size) as f64 / self.units as f64
    }

    /// Which place holds a unit on a host of `size` ranks.
    pub(super) fn holder(&self, size: usize, unit: usize) -> usize {
        ((unit + 1) * size - 1) / self.units
    }

    /// The segments of units that one rank holds.
    pub(super) fn segments(&self, held: &Range<usize>) -> Vec<Range<usize>> {
        let cuts_of = |size: &usize| {
            let first = self.holder(*size, held.start);
            let cuts = (first..=*size).map(|place| self.cut(*size, place));
            cuts.take_while(|cut| *cut < held.end).collect::<Vec<_>>()
        };
        let mut cuts: Vec<usize> = self.sizes.iter().flat_map(cuts_of).collect();
        cuts.retain(|cut| *cut > held.start);
        cuts.extend([held.start, held.end]);
        cuts.sort_unstable();
        cuts.dedup();
        cuts.windows(2).map(|pair| pair[0]..pair[1]).collect()
    }

    /// With how many ranks of a host of `others` ranks a rank of a host of `size` shares units, at
    /// most.
    pub(super) fn partners(&self, size: usize, others: usize) -> usize {
        let of_place = |place| {
            let held = self.held(size, place);
            self.holder(others, held.end - 1) - self.holder(others, held.start) + 1
        };
        (0..size).map(of_place).max().unwrap_or(0)
    }

    fn cut(&self, size: usize, place: usize) -> usize {
        place * self.units / size
    }
}

/// The greatest common divisor.
fn divisor(one: usize, other: usize) -> usize {
    match other {
        0 => one,
        _ => divisor(other, one % other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::topology::Hosts;
    use proptest::prelude::*;

    fn shares(sizes: &[usize]) -> Shares {
        Shares::of(&Topology {
            world_size: sizes.iter().sum(),
            hosts: Hosts::of_sizes(sizes),
        })
    }

    #[test]
    fn units_suit_all_hosts_or_are_many() {
        let units = |sizes: &[usize]| shares(sizes).units;
        assert_eq!((units(&[4, 4]), units(&[1, 1])), (4, 1));
        assert_eq!((units(&[2, 3]), units(&[8, 4, 8, 7])), (6, 56));
        assert_eq!((units(&[3, 1, 5, 2]), units(&[8, 7, 5])), (30, 64));
    }

    proptest! {
        #[test]
        fn every_unit_has_one_holder_on_each_host_and_segments_meet_no_cut(
            sizes in prop::collection::vec(1..=16usize, 1..6),
        ) {
            let shares = shares(&sizes);
            for &size in &sizes {
                for place in 0..size {
                    let held = shares.held(size, place);
                    let share = held.len() as f64 / shares.units as f64;
                    prop_assert!(share > 0.0 && share <= shares.share(size));
                    prop_assert!(held.clone().all(|unit| shares.holder(size, unit) == place));
                    let segments = shares.segments(&held);
                    let together: Vec<usize> = segments.iter().cloned().flatten().collect();
                    prop_assert!(together.into_iter().eq(held));
                    for segment in segments {
                        for &other in &sizes {
                            let holders = segment.clone().map(|unit| shares.holder(other, unit));
                            let first = shares.holder(other, segment.start);
                            prop_assert!(holders.into_iter().all(|one| one == first));
                        }
                    }
                }
                prop_assert_eq!(shares.held(size, size - 1).end, shares.units);
            }
        }
    }
}
