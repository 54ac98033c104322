//! Computes the costs in a tuning table from the measured times of a few calls.
//!
//! Each cost is computed from the time of a call that is dominated by that cost (see [`Probe`]).
//! The computation uses the same predictions as plan selection. A prediction is linear in each
//! cost. Therefore, to compute a cost, the part that the other costs explain is subtracted from the
//! measured time, and the result is divided by the number of times that the cost is incurred. This
//! is repeated, as in the Gauss-Seidel method for linear equations, until the predictions for all
//! calls equal their measured times. L and o are determined together because the same two probes
//! contain both. A cost computed in this way includes everything that makes calls slow, such as
//! having fewer cores than ranks, shared caches, or queues in the network.
//!
//! On a single host, the timed calls run the two plans between which an all-reduce most often has
//! to choose. The choice therefore changes at the size at which both plans take equally long.

use super::cost::shared;
use super::ir::Request;
use super::price::LinkCost;
pub use super::price::Number;
use super::select::{choose, predicted_s};
use super::spec::{Algorithm, Collective};
use super::topology::{Sharing, Topology, at_sites, sharing, together};
use super::tuning::TuningTable;
use crate::error::PlanError;
use crate::limits::{
    BOUNCE_BYTES, TUNING_FACTOR_MAX_SHM, TUNING_FACTOR_MAX_TCP, TUNING_FACTOR_MIN,
};
use crate::tuning::between_sites;

/// Bytes per element in timed calls. Most gradients have elements of this size.
const ELEMENT_BYTES: usize = 4;
/// Number of bytes in a call whose time is dominated by latency.
const SHORT_BYTES: usize = 8;
/// Number of bytes in a call whose time is dominated by the time per byte, but whose data stays in
/// the caches of a host's ranks. The size is well above the size at which the choice of plans
/// changes, so that it is representative of all large calls.
const SHARED_BYTES: usize = 512 << 10;
/// Initial number of bytes in a message whose time over a network is dominated by the time per
/// byte. If the window of a connection opens slowly, longer messages are timed after it.
const NETWORK_BYTES: usize = 64 << 10;

/// A class of link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkClass {
    /// TCP connections.
    Tcp,
    /// Memory shared by the ranks on a host.
    Shm,
    /// The path between two sites, which is shared by the ranks at each site.
    Uplink,
}

/// An operation to time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exercise {
    /// An all-reduce over all ranks with the operator `sum`.
    AllReduce(Algorithm),
    /// A message from one rank to another rank on the same host. Pairs of ranks on all hosts send
    /// their messages at the same time.
    Pair,
    /// Each rank sends a message to each of the given number of ranks that follow it in its ring,
    /// or to all other ranks if there are fewer. It receives as many messages from the ranks that
    /// precede it. All [`rings`] run at the same time.
    Shift(usize),
    /// A reduction of one buffer into another, performed separately on each rank.
    Fold,
}

/// An operation to time, and the cost that is computed from its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The operation to time.
    pub exercise: Exercise,
    /// Size of the f32 buffer, in bytes.
    pub bytes: usize,
    /// The class of link that is measured.
    pub class: LinkClass,
    /// The link cost that is computed from the time.
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

/// Number of messages in a burst. The number is large enough to distinguish o from L, but so small
/// that a burst needs only a few more links than radix-2 plans open.
const BURST: usize = 7;

/// Probes for ranks on a single host. All ranks take part simultaneously, so that the costs include
/// how the ranks affect each other.
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

/// Probes for links inside hosts, which are used if some hosts have several ranks. Ranks exchange
/// messages in pairs.
const SHARED_HOSTS: &[Probe] = &{
    use Exercise::{Fold, Pair};
    use LinkClass::Shm;
    [
        probe(Fold, BOUNCE_BYTES, Shm, Number::Gamma),
        probe(Pair, SHORT_BYTES, Shm, Number::Alpha),
        probe(Pair, SHARED_BYTES, Shm, Number::Beta),
    ]
};

/// Probes for links between hosts, which send messages around a ring. Each rank receives as many
/// messages as it sends, and no two messages share a link. The time of a single short message
/// contains L and 2 o, and the time of a burst contains L and many more o. Between two ranks, a
/// burst is a single message, but in that case no choice depends on how the time is divided between
/// L and o.
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

/// Probes for links between sites. One message leaves each site, and one enters it.
const SITES: &[Probe] = &{
    use Exercise::Shift;
    use LinkClass::Uplink;
    [
        probe(Shift(1), SHORT_BYTES, Uplink, Number::Alpha),
        probe(Shift(1), NETWORK_BYTES, Uplink, Number::Beta),
    ]
};

/// Returns the probes to time, in order, for ranks that are placed according to `topology`. Classes
/// of link that do not occur in predictions for these ranks are omitted.
///
/// ```
/// use ringtree::plan::internal::calibration::{LinkClass, probes};
/// use ringtree::plan::internal::topology::together;
///
/// let one_host = probes(&together(4));
/// assert!(one_host.iter().all(|probe| probe.class == LinkClass::Shm));
/// ```
#[must_use]
pub fn probes(topology: &Topology) -> Vec<Probe> {
    let sites = if topology.site_count() > 1 {
        SITES
    } else {
        &[]
    };
    match sharing(topology) {
        _ if topology.world_size == 1 => Vec::new(),
        Sharing::All => ONE_HOST.to_vec(),
        Sharing::None => [HOSTS, sites].concat(),
        Sharing::Some => [SHARED_HOSTS, HOSTS, sites].concat(),
    }
}

/// Returns the rings of ranks around which an [`Exercise::Shift`] sends messages. A ring consists
/// of the first rank on each host at a site or, for uplinks, of the first rank on each site's first
/// host. A single rank does not form a ring. If no site has two or more hosts, all hosts form one
/// ring, as if there were no sites.
///
/// ```
/// use ringtree::plan::internal::calibration::{LinkClass, rings};
/// use ringtree::plan::internal::topology::at_sites;
///
/// // Three hosts of one site, the first with two ranks, and one host of another site.
/// let five = at_sites(&[0, 0, 1, 2, 3], &[7, 7, 7, 7, 8]);
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

/// Returns the number of messages that each rank actually sends in an [`Exercise::Shift`] of
/// `messages` messages. This number is the same in all rings, so it is limited by the smallest
/// ring.
#[must_use]
pub fn reach(rings: &[Vec<usize>], messages: usize) -> usize {
    let others = rings.iter().map(|ring| ring.len() - 1);
    others.min().unwrap_or(0).min(messages)
}

/// Returns a table with which the predictions for the probes equal their measured times. `timed`
/// contains all [`probes`] for the topology, each with its measured time in seconds. The number of
/// bytes in a probe must be the one used in its last measurement.
///
/// A cost that would be zero or negative is set to a value slightly above zero. If a cost is far
/// above the built-in cost, it is assumed that the machine was busy with something else during the
/// measurement. In this case, the class of link keeps its built-in costs. (For uplinks, the table
/// then has no entry.)
///
/// Costs are rounded to three significant digits. The measurements do not support more digits, and
/// rounded costs do not change when they are converted to text and back.
///
/// # Errors
/// Returns an error if there is no plan for a probe.
///
/// ```
/// use ringtree::plan::internal::calibration::{probes, table_from};
/// use ringtree::plan::internal::topology::together;
///
/// // Two ranks summed 8 bytes in 0.5 µs, and 512 KiB in 100 µs with both algorithms.
/// let two = together(2);
/// let timed: Vec<_> = probes(&two).into_iter().zip([0.5e-6, 100e-6, 100e-6]).collect();
/// let table = table_from(&two, &timed)?;
/// // The short call takes 1.25 handoffs and almost nothing else.
/// assert_eq!(table.shm.alpha_s, 0.399e-6);
/// # Ok::<(), String>(())
/// ```
pub fn table_from(topology: &Topology, timed: &[(Probe, f64)]) -> Result<TuningTable, PlanError> {
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

/// Sets L and o such that the predictions for two probes, `alpha` and `overhead`, equal their
/// measured times. If both probes contain L and o in the same ratio, L and o keep their built-in
/// ratio. If one of the costs would be negative, it is set to almost zero.
fn set_both(
    topology: &Topology,
    (alpha, alpha_s): &(Probe, f64),
    (overhead, overhead_s): &(Probe, f64),
    table: &mut TuningTable,
) -> Result<(), PlanError> {
    let (alpha_s, overhead_s) = (*alpha_s, *overhead_s);
    let mut built_in = TuningTable::default();
    let usual = (*alpha.place(&mut built_in), *overhead.place(&mut built_in));
    // Returns the parts of a probe's prediction that are due to L and o with their built-in values,
    // and the measured time minus everything else.
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
        Ok::<_, PlanError>((of_l_s, of_o_s, time_s - rest_s))
    };
    let (a_l, a_o, a_s) = parts(alpha, alpha_s)?;
    let (b_l, b_o, b_s) = parts(overhead, overhead_s)?;
    let (straight, crossed) = (a_l * b_o, a_o * b_l);
    let (l, o) = match straight - crossed {
        difference if difference.abs() < DISTINGUISHABLE_MIN * straight.max(crossed) => {
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
    // `max` ignores a NaN.
    let sane = |factor: f64| {
        factor
            .max(TUNING_FACTOR_MIN)
            .min(f64::MAX / usual.0.max(1.0))
    };
    *alpha.place(table) = three_digits(usual.0 * sane(l));
    *overhead.place(table) = three_digits(usual.1 * sane(o));
    Ok(())
}

/// Relative difference below which the probes cannot distinguish L from o.
const DISTINGUISHABLE_MIN: f64 = 0.02;

/// Limits the ratio between the cost of copying and the cost of reducing. Per byte, copying and
/// reducing cost about the same. If the computed costs are far apart, a part of one was attributed
/// to the other. Their product does not change, and the larger becomes at most
/// [`SHM_IMBALANCE_MAX`] times the smaller.
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

/// Cost of polling for one more message, as a fraction of the cost of a handoff.
const SHM_LOOK_SHARE: f64 = 0.25;

/// Largest ratio between the costs of copying and reducing a byte, in either direction.
const SHM_IMBALANCE_MAX: f64 = 4.0;

/// Number of sweeps over the probes. Each leaves at most a third of the error, and the remaining
/// error is rounded away.
const SWEEPS: usize = 12;

fn three_digits(number: f64) -> f64 {
    let text = format!("{number:.2e}");
    text.parse()
        .expect("invariant: a formatted number can be parsed")
}

impl Probe {
    /// Returns a mutable reference to this probe's cost in `table`.
    fn place<'a>(&self, table: &'a mut TuningTable) -> &'a mut f64 {
        let link = match self.class {
            LinkClass::Tcp => &mut table.tcp,
            LinkClass::Shm => &mut table.shm,
            LinkClass::Uplink => {
                let usual = between_sites(&TuningTable::default());
                let uplink = table.uplink.get_or_insert(usual);
                return match self.number {
                    Number::Alpha | Number::Overhead => &mut uplink.alpha_s,
                    Number::Beta | Number::Gamma => &mut uplink.beta_s_per_byte,
                };
            }
        };
        self.number.of(link)
    }

    /// Sets this probe's cost in `table`.
    fn set(&self, table: &mut TuningTable, number: f64) {
        *self.place(table) = number;
        if (self.class, self.number) == (LinkClass::Shm, Number::Alpha) {
            table.shm.overhead_s = number * SHM_LOOK_SHARE;
        }
    }

    /// Returns the cost with which the exercise is predicted to take `time_s` if all other costs
    /// are those in `table`.
    fn number(
        &self,
        topology: &Topology,
        time_s: f64,
        table: &TuningTable,
    ) -> Result<f64, PlanError> {
        let usual = *self.place(&mut TuningTable::default());
        let price_s = |number: f64| {
            let mut table = *table;
            self.set(&mut table, number);
            self.price_s(topology, &table)
        };
        // An uplink affects the prediction only if it is slower than a port. Therefore, extrapolate
        // from a cost at which the uplink is certainly slower.
        let least = match self.class {
            LinkClass::Tcp | LinkClass::Shm => 0.0,
            LinkClass::Uplink => usual * TUNING_FACTOR_MAX_TCP,
        };
        let least_s = price_s(least)?;
        let step_s = price_s(least + usual)? - least_s;
        let found = least + (time_s - least_s) / step_s * usual;
        // `max` ignores a NaN.
        let found = found.max(usual * TUNING_FACTOR_MIN).min(f64::MAX);
        Ok(three_digits(found))
    }

    /// Returns the predicted time of the exercise in seconds.
    fn price_s(&self, topology: &Topology, table: &TuningTable) -> Result<f64, PlanError> {
        let bytes = self.bytes;
        match self.exercise {
            Exercise::AllReduce(algorithm) => {
                let collective = Collective::AllReduce;
                // Calls are timed with the built-in table, so it determines the number of pieces.
                let (built_in, forced) = (&TuningTable::default(), Some(algorithm));
                let made = choose(collective, topology, bytes, ELEMENT_BYTES, built_in, forced)?;
                let request = Request {
                    pieces: made.pieces,
                    ..Request::new(collective, algorithm, topology)
                };
                predicted_s(&request, bytes, table)
            }
            Exercise::Pair => {
                let two = together(2);
                let message = Request::new(Collective::Broadcast, Algorithm::Flat, &two);
                shared::time_s(&message, bytes, &table.shm)
            }
            Exercise::Shift(messages) => {
                let ranks = 1 + reach(&rings(topology, self.class), messages);
                let numbers: Vec<usize> = (0..ranks).collect();
                let all = match self.class {
                    LinkClass::Uplink => at_sites(&numbers, &numbers),
                    LinkClass::Tcp | LinkClass::Shm => Topology::apart(ranks),
                };
                let messages = Request::new(Collective::AllGather, Algorithm::Flat, &all);
                predicted_s(&messages, ranks * bytes, table)
            }
            Exercise::Fold => Ok(match self.class {
                // In shared memory, every operand counts, including the rank's own.
                LinkClass::Shm => table.shm.gamma_s_per_byte * 2.0 * bytes as f64,
                LinkClass::Tcp | LinkClass::Uplink => table.tcp.gamma_s_per_byte * bytes as f64,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::of_sizes;
    use proptest::prelude::*;

    /// Generates tables with 0.2 to 50 times the built-in costs. The costs vary independently,
    /// except that the overhead in shared memory follows from the handoff time.
    fn tables() -> impl Strategy<Value = TuningTable> {
        let factor = || 0.2..50.0;
        let factors = prop::array::uniform7(factor());
        factors.prop_map(|factors| {
            let mut table = TuningTable::default();
            let mut factors = factors.into_iter();
            for class in [LinkClass::Tcp, LinkClass::Shm] {
                for number in Number::ALL {
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
            hosts: of_sizes(&sizes).in_sites(&sites[..sizes.len()]),
        })
    }

    fn timed(topology: &Topology, times_s: &[f64]) -> Vec<(Probe, f64)> {
        let times_s = times_s.iter().copied();
        probes(topology).into_iter().zip(times_s).collect()
    }

    fn numbers(table: &TuningTable) -> Vec<f64> {
        let classes = [LinkClass::Tcp, LinkClass::Shm].into_iter();
        let all = classes.flat_map(|class| {
            Number::ALL
                .map(|number| *probe(Exercise::Fold, 0, class, number).place(&mut table.clone()))
        });
        all.collect()
    }

    proptest! {
        #[test]
        fn computed_costs_predict_the_measured_times((truth, topology) in (tables(), worlds())) {
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
        fn costs_stay_in_range_for_any_measured_times(
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
    fn only_implausible_measurements_keep_built_in_costs() {
        let four = together(4);
        let table = table_from(&four, &timed(&four, &[20e-3, 30e-6, 30e-6])).unwrap();
        assert_eq!(table, TuningTable::default());
        // A measurement that is merely unusual is used. Here, two-shot is faster than possible.
        let table = table_from(&four, &timed(&four, &[2e-6, 90e-6, 10e-6])).unwrap();
        assert_ne!(table.shm, TuningTable::default().shm);
    }
}
