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
/// A call in which bytes count over a network.
const NETWORK_BYTES: usize = 1 << 20;

/// A class of link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkClass {
    /// Connections over TCP.
    Tcp,
    /// Memory that the ranks of a host share.
    Shm,
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
    /// A collective of all ranks, summing where it reduces.
    Call(Collective, Algorithm),
    /// A message between two ranks of one host, all hosts' pairs at once.
    Pair,
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

/// A barrier in which a rank sends up to seven messages at once: enough to tell o from L, over not
/// many more links than by radix 2.
const BURST: Algorithm = Algorithm::Dissemination.with_known_radix(8);

/// One host: with all its ranks at once, so that the numbers contain what they do to each other.
const ONE_HOST: &[Probe] = &{
    use Exercise::Call;
    use LinkClass::Shm;
    let flat = Call(Collective::AllReduce, Algorithm::Flat);
    let two_shot = Call(Collective::AllReduce, Algorithm::TwoShot);
    [
        probe(flat, SHORT_BYTES, Shm, Number::Alpha),
        probe(flat, SHARED_BYTES, Shm, Number::Gamma),
        probe(two_shot, SHARED_BYTES, Shm, Number::Beta),
    ]
};

/// No two ranks share memory. In a barrier all ranks wait for all. By radix 2 each round has one
/// message, so latency counts most; by radix 8 it has up to seven, and o counts. Between two ranks
/// the two are the same, but then no choice depends on which of L and o a message pays.
///
/// In the exchange no pair of ranks shares a link with another. Where n is no power of two some
/// ranks of the exchange only contribute and wait, so that consecutive calls overlap: G comes out
/// up to a third too low.
const APART: &[Probe] = &{
    use Exercise::{Call, Fold};
    use LinkClass::Tcp;
    let signal = Call(Collective::Barrier, Algorithm::Dissemination);
    let burst = Call(Collective::Barrier, BURST);
    let exchange = Call(Collective::AllReduce, Algorithm::RecursiveDoubling);
    [
        probe(Fold, BOUNCE_BYTES, Tcp, Number::Gamma),
        probe(signal, 0, Tcp, Number::Alpha),
        probe(burst, 0, Tcp, Number::Overhead),
        probe(exchange, NETWORK_BYTES, Tcp, Number::Beta),
    ]
};

/// Hosts of several ranks: inside a host by pairs, between hosts by the hierarchical plan.
const SEVERAL_HOSTS: &[Probe] = &{
    use Exercise::{Call, Fold, Pair};
    use LinkClass::{Shm, Tcp};
    let between = Call(Collective::AllReduce, Algorithm::Hierarchical);
    let burst = Call(Collective::Barrier, BURST);
    [
        probe(Fold, BOUNCE_BYTES, Tcp, Number::Gamma),
        probe(Fold, BOUNCE_BYTES, Shm, Number::Gamma),
        probe(Pair, SHORT_BYTES, Shm, Number::Alpha),
        probe(Pair, SHARED_BYTES, Shm, Number::Beta),
        probe(between, SHORT_BYTES, Tcp, Number::Alpha),
        probe(burst, 0, Tcp, Number::Overhead),
        probe(between, NETWORK_BYTES, Tcp, Number::Beta),
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
pub fn probes(topology: &Topology) -> &'static [Probe] {
    match topology.sharing() {
        _ if topology.world_size == 1 => &[],
        Sharing::All => ONE_HOST,
        Sharing::None => APART,
        Sharing::Some => SEVERAL_HOSTS,
    }
}

/// The table by which the [`probes`] of such a world take the times that they took, in their order.
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
/// use ringtree::plan::calibration::table_from;
/// use ringtree::plan::Topology;
///
/// // Two ranks summed 8 bytes in half a microsecond, and 512 KiB in 100, flat or in two shots.
/// let table = table_from(&Topology::together(2), &[0.5e-6, 100e-6, 100e-6])?;
/// // The short call: 1.25 hand-overs, and next to nothing else.
/// assert_eq!(table.shm.alpha_s, 0.399e-6);
/// # Ok::<(), String>(())
/// ```
pub fn table_from(topology: &Topology, times_s: &[f64]) -> Result<TuningTable, String> {
    let built_in = TuningTable::default();
    let mut table = built_in;
    let timed: Vec<(&Probe, f64)> = probes(topology)
        .iter()
        .zip(times_s.iter().copied())
        .collect();
    let overhead = timed
        .iter()
        .find(|(probe, _)| probe.number == Number::Overhead);
    for _ in 0..SWEEPS {
        for one in &timed {
            match (one.0.number, overhead) {
                (Number::Overhead, _) => {}
                (Number::Alpha, Some(other)) if other.0.class == one.0.class => {
                    set_both(topology, *one, *other, &mut table)?;
                }
                _ => {
                    let found = one.0.number(topology, one.1, &table)?;
                    one.0.set(&mut table, found);
                }
            }
        }
    }
    for probe in probes(topology) {
        let usual = *probe.place(&mut built_in.clone());
        let found = *probe.place(&mut table);
        let max = match probe.class {
            LinkClass::Tcp => TUNING_FACTOR_MAX_TCP,
            LinkClass::Shm => TUNING_FACTOR_MAX_SHM,
        };
        if found > usual * max {
            *probe.class.link(&mut table) = *probe.class.link(&mut built_in.clone());
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
    (alpha, alpha_s): (&Probe, f64),
    (overhead, overhead_s): (&Probe, f64),
    table: &mut TuningTable,
) -> Result<(), String> {
    let usual = *overhead.class.link(&mut TuningTable::default());
    let usual = (usual.alpha_s, usual.overhead_s);
    // What a probe's time contains of L and of o, as the built-in table has them, and what is left
    // of the measured time when the rest is taken away.
    let parts = |probe: &Probe, time_s: f64| {
        let price_s = |(l, o): (f64, f64)| {
            let mut table = *table;
            let link = probe.class.link(&mut table);
            (link.alpha_s, link.overhead_s) = (l, o);
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
    let link = overhead.class.link(table);
    link.alpha_s = three_digits(usual.0 * sane(l));
    link.overhead_s = three_digits(usual.1 * sane(o));
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

impl LinkClass {
    fn link(self, table: &mut TuningTable) -> &mut LinkCost {
        match self {
            LinkClass::Tcp => &mut table.tcp,
            LinkClass::Shm => &mut table.shm,
        }
    }
}

impl Probe {
    /// The number in question.
    fn place<'a>(&self, table: &'a mut TuningTable) -> &'a mut f64 {
        let link = self.class.link(table);
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
        let others_s = price_s(0.0)?;
        let usual_s = price_s(usual)? - others_s;
        let found = (time_s - others_s) / usual_s * usual;
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
            Exercise::Call(collective, algorithm) => {
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
            Exercise::Fold => Ok(match self.class {
                LinkClass::Tcp => table.tcp.gamma_s_per_byte * bytes as f64,
                // There every operand counts, the own one too.
                LinkClass::Shm => table.shm.gamma_s_per_byte * 2.0 * bytes as f64,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::topology::Hosts;
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
        prop_oneof![even, uneven].prop_map(|sizes| Topology {
            world_size: sizes.iter().sum(),
            hosts: Hosts::of_sizes(&sizes),
        })
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
            let times_s: Vec<f64> =
                probes(&topology).iter().map(|probe| price_s(probe, &truth)).collect();
            let found = table_from(&topology, &times_s).unwrap();
            for (probe, time_s) in probes(&topology).iter().zip(times_s) {
                let again_s = price_s(probe, &found);
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
            let found = table_from(&topology, &times_s).unwrap();
            for (found, usual) in numbers(&found).iter().zip(numbers(&TuningTable::default())) {
                let max = TUNING_FACTOR_MAX_TCP.max(TUNING_FACTOR_MAX_SHM);
                prop_assert!((0.009 * usual..=max * usual).contains(found), "{}", found);
            }
        }
    }

    #[test]
    fn a_disturbed_measurement_is_worth_nothing() {
        let four = Topology::together(4);
        let table = table_from(&four, &[20e-3, 30e-6, 30e-6]).unwrap();
        assert_eq!(table, TuningTable::default());
        // While what is only strange is taken as it is: two shots faster than they can be.
        let table = table_from(&four, &[2e-6, 90e-6, 10e-6]).unwrap();
        assert_ne!(table.shm, TuningTable::default().shm);
    }
}
