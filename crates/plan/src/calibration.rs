//! From the times of a few calls to the numbers of a tuning table.
//!
//! Each number is found from the time of a call in which it weighs much ([`Probe`]), with the
//! prices that plans are chosen by. A price is linear in each number: subtract from the measured
//! time what the other numbers explain, and divide the rest by how often the number is paid. That
//! is repeated, as the Gauss-Seidel method solves linear equations, until the prices of all calls
//! are the times they took. L and o, of which both probes contain both, are solved together. So a
//! number stands for whatever makes calls take as long as they do: cores that are fewer than ranks,
//! caches that are shared, a network's queues.
//!
//! On one host the calls are the two plans between which an all-reduce chooses most often, so the
//! size at which it changes over is where their times meet.

use super::cost::shared;
use super::ir::Request;
use super::price::LinkCost;
use super::select::{choose, predicted_s};
use super::spec::{Algorithm, Collective};
use super::topology::{Sharing, Topology};
use super::tuning::TuningTable;
use crate::limits::{
    BOUNCE_BYTES, TUNING_FACTOR_MAX_SHM, TUNING_FACTOR_MAX_TCP, TUNING_FACTOR_MIN,
};

/// What calls are timed on: the element that gradients have most often.
const ELEMENT_BYTES: usize = 4;
/// A call in which latency is all.
const SHORT_BYTES: usize = 8;
/// A call in which bytes count, but which stays in the caches of the ranks of a host: well above
/// the size at which plans change over, so that no large call is far from it.
const SHARED_BYTES: usize = 512 << 10;
/// A message in which bytes count over a network, at first: where the window of a connection opens
/// slowly, longer ones follow.
const NETWORK_BYTES: usize = 64 << 10;

/// A class of link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkClass {
    /// Connections over TCP.
    Tcp,
    /// Memory that the ranks of a host share.
    Shm,
    /// The way between two sites, which the ranks of each share.
    Uplink,
}

/// A number of a [`LinkCost`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// L: seconds on the way, or a hand-over.
    Alpha,
    /// o: seconds a message, at each of its ends. In shared memory it is a quarter of a hand-over.
    Overhead,
    /// Seconds a byte moved.
    Beta,
    /// Seconds a byte folded.
    Gamma,
}

/// What is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exercise {
    /// An all-reduce of all ranks, which sums.
    AllReduce(Algorithm),
    /// A message between two ranks of one host, all hosts' pairs at once.
    Pair,
    /// A message to each of so many next ranks of a ring, at most to all, and one from each of as
    /// many before, all [`rings`] at once.
    Shift(usize),
    /// A fold of one buffer into another, by every rank for itself.
    Fold,
}

/// An exercise, and the number that is computed from its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// What is timed.
    pub exercise: Exercise,
    /// On how many bytes of f32.
    pub bytes: usize,
    /// The class of links that is measured.
    pub class: LinkClass,
    /// The number of it that is computed.
    pub number: Number,
}

const fn probe(exercise: Exercise, bytes: usize, class: LinkClass, number: Number) -> Probe {
    Probe {
        exercise,
        bytes,
        class,
        number,
    }
}

/// So many messages at once are enough to tell o from L, over not many more links than plans by
/// radix 2 have open.
const BURST: usize = 7;

/// One host: with all its ranks at once, so that the numbers contain what they do to each other.
const ONE_HOST: &[Probe] = &{
    use Exercise::AllReduce;
    use LinkClass::Shm;
    let flat = AllReduce(Algorithm::Flat);
    let two_shot = AllReduce(Algorithm::TwoShot);
    [
        probe(flat, SHORT_BYTES, Shm, Number::Alpha),
        probe(flat, SHARED_BYTES, Shm, Number::Gamma),
        probe(two_shot, SHARED_BYTES, Shm, Number::Beta),
    ]
};

/// Hosts of several ranks: inside a host by pairs.
const SHARED_HOSTS: &[Probe] = &{
    use Exercise::{Fold, Pair};
    use LinkClass::Shm;
    [
        probe(Fold, BOUNCE_BYTES, Shm, Number::Gamma),
        probe(Pair, SHORT_BYTES, Shm, Number::Alpha),
        probe(Pair, SHARED_BYTES, Shm, Number::Beta),
    ]
};

/// Between hosts, around a ring: every port sends one message and receives one, so no two messages
/// share a link. A short message tells of L and 2 o, a burst of them of L and many more o. Between
/// two ranks the two are the same, but then no choice depends on which of L and o a message pays.
const HOSTS: &[Probe] = &{
    use Exercise::{Fold, Shift};
    use LinkClass::Tcp;
    [
        probe(Fold, BOUNCE_BYTES, Tcp, Number::Gamma),
        probe(Shift(1), SHORT_BYTES, Tcp, Number::Alpha),
        probe(Shift(BURST), SHORT_BYTES, Tcp, Number::Overhead),
        probe(Shift(1), NETWORK_BYTES, Tcp, Number::Beta),
    ]
};

/// Between sites: one message out of each and one into it.
const SITES: &[Probe] = &{
    use Exercise::Shift;
    use LinkClass::Uplink;
    [
        probe(Shift(1), SHORT_BYTES, Uplink, Number::Alpha),
        probe(Shift(1), NETWORK_BYTES, Uplink, Number::Beta),
    ]
};

/// What to time where ranks share hosts like this, in order. Classes of links that no price of such
/// a world contains are left out.
///
/// ```
/// use ringtree::plan::calibration::{LinkClass, probes};
/// use ringtree::plan::Topology;
///
/// let one_host = probes(&Topology::together(4));
/// assert!(one_host.iter().all(|probe| probe.class == LinkClass::Shm));
/// ```
#[must_use]
pub fn probes(topology: &Topology) -> Vec<Probe> {
    let sites = if topology.site_count() > 1 {
        SITES
    } else {
        &[]
    };
    match topology.sharing() {
        _ if topology.world_size == 1 => Vec::new(),
        Sharing::All => ONE_HOST.to_vec(),
        Sharing::None => [HOSTS, sites].concat(),
        Sharing::Some => [SHARED_HOSTS, HOSTS, sites].concat(),
    }
}

/// The rings of ranks around which an [`Exercise::Shift`] sends: the first ranks of the hosts of
/// each site, or of the first hosts of the sites. A rank alone is no ring. Where no site has two
/// hosts, all hosts are one ring, as if there were no sites.
///
/// ```
/// use ringtree::plan::calibration::{LinkClass, rings};
/// use ringtree::plan::Topology;
///
/// // Three hosts of one site, the first with two ranks, and one of another.
/// let five = Topology::at_sites(&[0, 0, 1, 2, 3], &[7, 7, 7, 7, 8]);
/// assert_eq!(rings(&five, LinkClass::Tcp), [vec![0, 2, 3]]);
/// assert_eq!(rings(&five, LinkClass::Uplink), [vec![0, 4]]);
/// ```
#[must_use]
pub fn rings(topology: &Topology, class: LinkClass) -> Vec<Vec<usize>> {
    let leader = |host| topology.rank_at(host, 0);
    let of_site = |site| {
        let hosts = (0..topology.hosts_at(site)).map(|place| topology.host_at(site, place));
        hosts.map(leader).collect::<Vec<usize>>()
    };
    let sites = 0..topology.site_count();
    let is_ring = |ring: &Vec<usize>| ring.len() > 1;
    match class {
        LinkClass::Shm => Vec::new(),
        LinkClass::Uplink => vec![sites.map(|site| of_site(site)[0]).collect()],
        LinkClass::Tcp if sites.clone().all(|site| topology.hosts_at(site) == 1) => {
            vec![(0..topology.host_count()).map(leader).collect()]
        }
        LinkClass::Tcp => sites.map(of_site).filter(is_ring).collect(),
    }
}

/// To how many ranks of its ring a rank sends in such a [`Exercise::Shift`]: to as many in all
/// rings.
#[must_use]
pub fn reach(rings: &[Vec<usize>], messages: usize) -> usize {
    let others = rings.iter().map(|ring| ring.len() - 1);
    others.min().unwrap_or(0).min(messages)
}

/// The table by which probes take the times that they took: all [`probes`] of such a world, each
/// with its time in seconds, and with as many bytes as it had in the end.
///
/// A number that comes out as nothing or less is next to nothing. If one comes out far above the
/// built-in one, the machine was doing something else while it was measured, and its class of links
/// keeps the built-in numbers.
///
/// The numbers have three digits: there is no more in them, and so they are the same again when
/// they are read from text.
///
/// # Errors
/// A sentence, when there is no such plan.
///
/// ```
/// use ringtree::plan::calibration::{probes, table_from};
/// use ringtree::plan::Topology;
///
/// // Two ranks summed 8 bytes in half a microsecond, and 512 KiB in 100, flat or in two shots.
/// let two = Topology::together(2);
/// let timed: Vec<_> = probes(&two).into_iter().zip([0.5e-6, 100e-6, 100e-6]).collect();
/// let table = table_from(&two, &timed)?;
/// // The short call: 1.25 hand-overs, and next to nothing else.
/// assert_eq!(table.shm.alpha_s, 0.399e-6);
/// # Ok::<(), String>(())
/// ```
pub fn table_from(topology: &Topology, timed: &[(Probe, f64)]) -> Result<TuningTable, String> {
    let built_in = TuningTable::default();
    let mut table = built_in;
    let overhead = timed
        .iter()
        .find(|(probe, _)| probe.number == Number::Overhead);
    for _ in 0..SWEEPS {
        for one in timed {
            match (one.0.number, overhead) {
                (Number::Overhead, _) => {}
                (Number::Alpha, Some(other)) if other.0.class == one.0.class => {
                    set_both(topology, one, other, &mut table)?;
                }
                _ => {
                    let found = one.0.number(topology, one.1, &table)?;
                    one.0.set(&mut table, found);
                }
            }
        }
    }
    for (probe, _) in timed {
        let usual = *probe.place(&mut built_in.clone());
        let found = *probe.place(&mut table);
        let max = match probe.class {
            LinkClass::Tcp | LinkClass::Uplink => TUNING_FACTOR_MAX_TCP,
            LinkClass::Shm => TUNING_FACTOR_MAX_SHM,
        };
        if found > usual * max {
            match probe.class {
                LinkClass::Tcp => table.tcp = built_in.tcp,
                LinkClass::Shm => table.shm = built_in.shm,
                LinkClass::Uplink => table.uplink = None,
            }
        }
    }
    balance(&mut table.shm);
    Ok(table)
}

/// Makes L and o those with which two exercises, `alpha` and `overhead`, take the times that they
/// took. Where both pay them alike, they keep their proportion; where one would be negative, it is
/// next to nothing.
fn set_both(
    topology: &Topology,
    (alpha, alpha_s): &(Probe, f64),
    (overhead, overhead_s): &(Probe, f64),
    table: &mut TuningTable,
) -> Result<(), String> {
    let (alpha_s, overhead_s) = (*alpha_s, *overhead_s);
    let mut built_in = TuningTable::default();
    let usual = (*alpha.place(&mut built_in), *overhead.place(&mut built_in));
    // What a probe's time contains of L and of o, as the built-in table has them, and what is left
    // of the measured time when the rest is taken away.
    let parts = |probe: &Probe, time_s: f64| {
        let price_s = |(l, o): (f64, f64)| {
            let mut table = *table;
            *alpha.place(&mut table) = l;
            *overhead.place(&mut table) = o;
            probe.price_s(topology, &table)
        };
        let rest_s = price_s((0.0, 0.0))?;
        let of_l_s = price_s((usual.0, 0.0))? - rest_s;
        let of_o_s = price_s((0.0, usual.1))? - rest_s;
        Ok::<_, String>((of_l_s, of_o_s, time_s - rest_s))
    };
    let (a_l, a_o, a_s) = parts(alpha, alpha_s)?;
    let (b_l, b_o, b_s) = parts(overhead, overhead_s)?;
    let (straight, crossed) = (a_l * b_o, a_o * b_l);
    let (l, o) = match straight - crossed {
        difference if difference.abs() < ALIKE * straight.max(crossed) => {
            let both = a_s / (a_l + a_o);
            (both, both)
        }
        difference => (
            (a_s * b_o - b_s * a_o) / difference,
            (b_s * a_l - a_s * b_l) / difference,
        ),
    };
    let (l, o) = match (l < TUNING_FACTOR_MIN, o < TUNING_FACTOR_MIN) {
        (true, _) => (TUNING_FACTOR_MIN, b_s / b_o),
        (_, true) => (a_s / a_l, TUNING_FACTOR_MIN),
        _ => (l, o),
    };
    // Max takes the other one of a pair that is no number.
    let sane = |factor: f64| {
        factor
            .max(TUNING_FACTOR_MIN)
            .min(f64::MAX / usual.0.max(1.0))
    };
    *alpha.place(table) = three_digits(usual.0 * sane(l));
    *overhead.place(table) = three_digits(usual.1 * sane(o));
    Ok(())
}

/// Below this share of it, a difference says nothing about L and o.
const ALIKE: f64 = 0.02;

/// Copying a byte and folding one of an operand cost about the same; measured far apart, one has
/// got what the other lacks. They keep their product, and the larger is at most so many times the
/// smaller.
fn balance(shm: &mut LinkCost) {
    let (beta, gamma) = (shm.beta_s_per_byte, shm.gamma_s_per_byte);
    let mean = (beta * gamma).sqrt();
    let (least, most) = (
        mean / SHM_IMBALANCE_MAX.sqrt(),
        mean * SHM_IMBALANCE_MAX.sqrt(),
    );
    shm.beta_s_per_byte = beta.clamp(least, most);
    shm.gamma_s_per_byte = gamma.clamp(least, most);
}

/// A look for one more message, as a share of a hand-over.
const SHM_LOOK_SHARE: f64 = 0.25;

/// How many times more a byte copied can cost than a byte folded, or the other way round.
const SHM_IMBALANCE_MAX: f64 = 4.0;

/// Each sweep leaves at most a third of the error, and what is left is rounded away.
const SWEEPS: usize = 12;

fn three_digits(number: f64) -> f64 {
    let text = format!("{number:.2e}");
    text.parse()
        .expect("invariant: a number's text is a number's")
}

impl Probe {
    /// The number in question.
    fn place<'a>(&self, table: &'a mut TuningTable) -> &'a mut f64 {
        let link = match self.class {
            LinkClass::Tcp => &mut table.tcp,
            LinkClass::Shm => &mut table.shm,
            LinkClass::Uplink => {
                let usual = TuningTable::default().between_sites();
                let uplink = table.uplink.get_or_insert(usual);
                return match self.number {
                    Number::Alpha | Number::Overhead => &mut uplink.alpha_s,
                    Number::Beta | Number::Gamma => &mut uplink.beta_s_per_byte,
                };
            }
        };
        match self.number {
            Number::Alpha => &mut link.alpha_s,
            Number::Overhead => &mut link.overhead_s,
            Number::Beta => &mut link.beta_s_per_byte,
            Number::Gamma => &mut link.gamma_s_per_byte,
        }
    }

    /// Makes the number in question this one.
    fn set(&self, table: &mut TuningTable, number: f64) {
        *self.place(table) = number;
        if (self.class, self.number) == (LinkClass::Shm, Number::Alpha) {
            table.shm.overhead_s = number * SHM_LOOK_SHARE;
        }
    }

    /// The number with which the exercise takes `time_s`, if all others are as in `table`.
    fn number(&self, topology: &Topology, time_s: f64, table: &TuningTable) -> Result<f64, String> {
        let usual = *self.place(&mut TuningTable::default());
        let price_s = |number: f64| {
            let mut table = *table;
            self.set(&mut table, number);
            self.price_s(topology, &table)
        };
        // What an uplink costs shows only where it is slower than a port: the line is that of
        // numbers so large that it is.
        let least = match self.class {
            LinkClass::Tcp | LinkClass::Shm => 0.0,
            LinkClass::Uplink => usual * TUNING_FACTOR_MAX_TCP,
        };
        let least_s = price_s(least)?;
        let step_s = price_s(least + usual)? - least_s;
        let found = least + (time_s - least_s) / step_s * usual;
        // Max takes the other one of a pair that is no number.
        let found = found.max(usual * TUNING_FACTOR_MIN).min(f64::MAX);
        Ok(three_digits(found))
    }

    /// What the exercise is predicted to take.
    fn price_s(&self, topology: &Topology, table: &TuningTable) -> Result<f64, String> {
        let bytes = self.bytes;
        let request = |collective, algorithm, topology: &Topology| Request {
            collective,
            algorithm,
            world_size: topology.world_size,
            rank: 0,
            root: 0,
            pieces: 1,
            hosts: topology.hosts.clone(),
        };
        match self.exercise {
            Exercise::AllReduce(algorithm) => {
                let collective = Collective::AllReduce;
                // Calls are timed under the built-in table, so in as many pieces as that chooses.
                let built_in = TuningTable::default();
                let forced = Some(algorithm);
                let made = choose(
                    collective,
                    topology,
                    bytes,
                    ELEMENT_BYTES,
                    &built_in,
                    forced,
                )?;
                let request = Request {
                    pieces: made.pieces,
                    ..request(collective, algorithm, topology)
                };
                predicted_s(&request, bytes, table)
            }
            Exercise::Pair => {
                let two = Topology::together(2);
                let message = request(Collective::Broadcast, Algorithm::Flat, &two);
                shared::time_s(&message, bytes, &table.shm)
            }
            Exercise::Shift(messages) => {
                let ranks = 1 + reach(&rings(topology, self.class), messages);
                let numbers: Vec<usize> = (0..ranks).collect();
                let all = match self.class {
                    LinkClass::Uplink => Topology::at_sites(&numbers, &numbers),
                    LinkClass::Tcp | LinkClass::Shm => Topology::apart(ranks),
                };
                let messages = request(Collective::AllGather, Algorithm::Flat, &all);
                predicted_s(&messages, ranks * bytes, table)
            }
            Exercise::Fold => Ok(match self.class {
                // In shared memory every operand counts, the own one too.
                LinkClass::Shm => table.shm.gamma_s_per_byte * 2.0 * bytes as f64,
                LinkClass::Tcp | LinkClass::Uplink => table.tcp.gamma_s_per_byte * bytes as f64,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Hosts;
    use proptest::prelude::*;

    /// From a fifth of the built-in numbers to 50 times as much, each class by itself.
    fn tables() -> impl Strategy<Value = TuningTable> {
        let factor = || 0.2..50.0;
        let factors = prop::array::uniform7(factor());
        factors.prop_map(|factors| {
            let mut table = TuningTable::default();
            let mut factors = factors.into_iter();
            for class in [LinkClass::Tcp, LinkClass::Shm] {
                for number in NUMBERS {
                    if (class, number) == (LinkClass::Shm, Number::Overhead) {
                        continue;
                    }
                    let one = probe(Exercise::Fold, 0, class, number);
                    let usual = *one.place(&mut table);
                    one.set(&mut table, usual * factors.next().unwrap());
                }
            }
            table
        })
    }

    fn worlds() -> impl Strategy<Value = Topology> {
        let even = (1..=9usize, 1..=5usize).prop_map(|(size, hosts)| vec![size; hosts]);
        let uneven = prop::collection::vec(1..=9usize, 1..=5);
        let sites = prop::array::uniform5(0..2usize);
        (prop_oneof![even, uneven], sites).prop_map(|(sizes, sites)| Topology {
            world_size: sizes.iter().sum(),
            hosts: Hosts::of_sizes(&sizes).in_sites(&sites[..sizes.len()]),
        })
    }

    fn timed(topology: &Topology, times_s: &[f64]) -> Vec<(Probe, f64)> {
        let times_s = times_s.iter().copied();
        probes(topology).into_iter().zip(times_s).collect()
    }

    const NUMBERS: [Number; 4] = [Number::Alpha, Number::Overhead, Number::Beta, Number::Gamma];

    fn numbers(table: &TuningTable) -> Vec<f64> {
        let classes = [LinkClass::Tcp, LinkClass::Shm].into_iter();
        let all = classes.flat_map(|class| {
            NUMBERS.map(|number| *probe(Exercise::Fold, 0, class, number).place(&mut table.clone()))
        });
        all.collect()
    }

    proptest! {
        #[test]
        fn what_is_found_predicts_what_was_timed((truth, topology) in (tables(), worlds())) {
            let shares = truth.shm.beta_s_per_byte / truth.shm.gamma_s_per_byte;
            prop_assume!((1.0 / SHM_IMBALANCE_MAX..=SHM_IMBALANCE_MAX).contains(&shares));
            let price_s = |probe: &Probe, table| probe.price_s(&topology, table).unwrap();
            let timed = probes(&topology).into_iter().map(|probe| (probe, price_s(&probe, &truth)));
            let timed: Vec<(Probe, f64)> = timed.collect();
            let found = table_from(&topology, &timed).unwrap();
            for (probe, time_s) in timed {
                let again_s = price_s(&probe, &found);
                prop_assert!((again_s / time_s - 1.0).abs() < 0.02, "{:?}: {}", probe, again_s);
            }
            let built_in = TuningTable::default();
            let has = |class| probes(&topology).iter().any(|probe| probe.class == class);
            prop_assert!(has(LinkClass::Tcp) || found.tcp == built_in.tcp);
            prop_assert!(has(LinkClass::Shm) || found.shm == built_in.shm);
            prop_assert_eq!(TuningTable::parse(&found.to_string()), Ok(found));
        }

        #[test]
        fn whatever_the_times_the_numbers_are_sane(
            (topology, times_s) in (worlds(), prop::array::uniform7(prop::num::f64::ANY))
        ) {
            let found = table_from(&topology, &timed(&topology, &times_s)).unwrap();
            for (found, usual) in numbers(&found).iter().zip(numbers(&TuningTable::default())) {
                let max = TUNING_FACTOR_MAX_TCP.max(TUNING_FACTOR_MAX_SHM);
                prop_assert!((0.009 * usual..=max * usual).contains(found), "{}", found);
            }
        }
    }

    #[test]
    fn a_disturbed_measurement_is_worth_nothing() {
        let four = Topology::together(4);
        let table = table_from(&four, &timed(&four, &[20e-3, 30e-6, 30e-6])).unwrap();
        assert_eq!(table, TuningTable::default());
        // While what is only strange is taken as it is: two shots faster than they can be.
        let table = table_from(&four, &timed(&four, &[2e-6, 90e-6, 10e-6])).unwrap();
        assert_ne!(table.shm, TuningTable::default().shm);
    }
}
