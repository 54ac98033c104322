//! From the times of a few calls to the numbers of a tuning table.
//!
//! Each number is found from one call in which it weighs most ([`Probe`]), by the same prices that
//! plans are chosen by: the price is linear in each number, so of the time measured what the other
//! numbers explain is taken away, and the rest is divided by how often the number is paid. So a
//! number stands for whatever makes that call take as long as it does: cores that are fewer than
//! ranks, caches that are shared, a network's queues.
//!
//! The order matters: α first, from calls so short that bytes hardly count, then bytes moved, then
//! bytes folded.

use super::cost::{LinkCost, shared};
use super::ir::Request;
use super::select::{choose, predicted_s};
use super::spec::{Algorithm, Collective};
use super::topology::{Sharing, Topology};
use super::tuning::TuningTable;
use crate::limits::{BOUNCE_BYTES, TUNING_FACTOR_MAX, TUNING_FACTOR_MIN};

/// What calls are timed on: the element that gradients have most often.
const ELEMENT_BYTES: usize = 4;
/// A call in which latency is all.
const SHORT_BYTES: usize = 8;
/// A call in which bytes count, but which stays in the caches of the ranks of a host.
const SHARED_BYTES: usize = 256 << 10;
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
    /// Seconds a message or a hand-over.
    Alpha,
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

/// An exercise, and the number that its time tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// What is timed.
    pub exercise: Exercise,
    /// On how many bytes of f32.
    pub bytes: usize,
    /// Which kind of link it tells something of.
    pub class: LinkClass,
    /// And what.
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

/// One host: with all its ranks at once, so that the numbers contain what they do to each other.
const ONE_HOST: &[Probe] = &{
    use Exercise::Call;
    use LinkClass::Shm;
    let flat = Call(Collective::AllReduce, Algorithm::Flat);
    let gather = Call(Collective::AllGather, Algorithm::Flat);
    let two_shot = Call(Collective::AllReduce, Algorithm::TwoShot);
    [
        probe(flat, SHORT_BYTES, Shm, Number::Alpha),
        probe(gather, SHARED_BYTES, Shm, Number::Beta),
        probe(two_shot, SHARED_BYTES, Shm, Number::Gamma),
    ]
};

/// Nobody shares memory: recursive doubling opens ⌈log₂ n⌉ links a rank, and two ranks that
/// exchange are in nobody's way.
const APART: &[Probe] = &{
    use Exercise::{Call, Fold};
    use LinkClass::Tcp;
    let exchange = Call(Collective::AllReduce, Algorithm::RecursiveDoubling);
    [
        probe(Fold, BOUNCE_BYTES, Tcp, Number::Gamma),
        probe(exchange, SHORT_BYTES, Tcp, Number::Alpha),
        probe(exchange, NETWORK_BYTES, Tcp, Number::Beta),
    ]
};

/// Hosts of several ranks: inside them by pairs, between them by the plan that tells them apart.
const SEVERAL_HOSTS: &[Probe] = &{
    use Exercise::{Call, Fold, Pair};
    use LinkClass::{Shm, Tcp};
    let between = Call(Collective::AllReduce, Algorithm::Hierarchical);
    [
        probe(Fold, BOUNCE_BYTES, Tcp, Number::Gamma),
        probe(Fold, BOUNCE_BYTES, Shm, Number::Gamma),
        probe(Pair, SHORT_BYTES, Shm, Number::Alpha),
        probe(Pair, SHARED_BYTES, Shm, Number::Beta),
        probe(between, SHORT_BYTES, Tcp, Number::Alpha),
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
/// let one_host = probes(Topology::together(4));
/// assert!(one_host.iter().all(|probe| probe.class == LinkClass::Shm));
/// ```
#[must_use]
pub fn probes(topology: Topology) -> &'static [Probe] {
    match topology.sharing() {
        _ if topology.world_size == 1 => &[],
        Sharing::All => ONE_HOST,
        Sharing::Nobody => APART,
        Sharing::Some => SEVERAL_HOSTS,
    }
}

/// Sets the number of `table` that `probe` tells, where it took `time_s`. A number out of all
/// reason (0 or less, or very far from the built-in one) is not taken over, so that a moment in
/// which the machine did something else cannot spoil the choice for good.
///
/// The result has three digits: there is no more in it, and so it is the same number again when it
/// is read from text.
///
/// # Errors
/// A sentence, when there is no such plan.
///
/// ```
/// use ringtree::plan::calibration::{probes, settle};
/// use ringtree::plan::select::TuningTable;
/// use ringtree::plan::Topology;
///
/// let (two, mut table) = (Topology::together(2), TuningTable::default());
/// // Two ranks summed 8 bytes in half a microsecond: 1.25 hand-overs, and next to nothing else.
/// settle(&probes(two)[0], two, 0.5e-6, &mut table)?;
/// assert_eq!(table.shm.alpha_s, 0.399e-6);
/// # Ok::<(), String>(())
/// ```
pub fn settle(
    probe: &Probe,
    topology: Topology,
    time_s: f64,
    table: &mut TuningTable,
) -> Result<(), String> {
    let mut built_in = TuningTable::default();
    let usual = *probe.place(&mut built_in);
    let price_s = |number: f64| {
        let mut table = *table;
        *probe.place(&mut table) = number;
        probe.price_s(topology, &table)
    };
    let others_s = price_s(0.0)?;
    let usual_s = price_s(usual)? - others_s;
    let found = (time_s - others_s) / usual_s * usual;
    let is_sane = (usual * TUNING_FACTOR_MIN..=usual * TUNING_FACTOR_MAX).contains(&found);
    *probe.place(table) = if is_sane { three_digits(found) } else { usual };
    Ok(())
}

fn three_digits(number: f64) -> f64 {
    let text = format!("{number:.2e}");
    text.parse()
        .expect("invariant: a number's text is a number's")
}

impl Probe {
    /// The number in question.
    fn place<'a>(&self, table: &'a mut TuningTable) -> &'a mut f64 {
        let link: &mut LinkCost = match self.class {
            LinkClass::Tcp => &mut table.tcp,
            LinkClass::Shm => &mut table.shm,
        };
        match self.number {
            Number::Alpha => &mut link.alpha_s,
            Number::Beta => &mut link.beta_s_per_byte,
            Number::Gamma => &mut link.gamma_s_per_byte,
        }
    }

    /// What the exercise is predicted to take.
    fn price_s(&self, topology: Topology, table: &TuningTable) -> Result<f64, String> {
        let bytes = self.bytes;
        let request = |collective, algorithm, topology: Topology| Request {
            collective,
            algorithm,
            world_size: topology.world_size,
            rank: 0,
            root: 0,
            pieces: 1,
            ranks_per_host: topology.ranks_per_host,
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
                let message = request(Collective::Broadcast, Algorithm::Flat, two);
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
    use proptest::prelude::*;

    fn links() -> impl Strategy<Value = LinkCost> {
        let number = |usual: f64| (0.1..1000.0).prop_map(move |factor: f64| factor * usual);
        (number(1e-6), number(1e-10), number(1e-10)).prop_map(|(alpha, beta, gamma)| LinkCost {
            alpha_s: alpha,
            beta_s_per_byte: beta,
            gamma_s_per_byte: gamma,
        })
    }

    fn worlds() -> impl Strategy<Value = Topology> {
        let size = |ranks_per_host, hosts| Topology {
            world_size: ranks_per_host * hosts,
            ranks_per_host,
        };
        (1..=9usize, 1..=5usize).prop_map(move |(ranks, hosts)| size(ranks, hosts))
    }

    fn numbers(link: &LinkCost) -> [f64; 3] {
        [link.alpha_s, link.beta_s_per_byte, link.gamma_s_per_byte]
    }

    proptest! {
        /// Where the model holds, the numbers that made the times come out again, to three digits
        /// and what these leave to the later ones.
        #[test]
        fn the_numbers_are_found_from_the_prices_they_make(
            (tcp, shm, topology) in (links(), links(), worlds())
        ) {
            let truth = TuningTable { tcp, shm };
            let mut found = TuningTable::default();
            for round in 0..2 {
                for probe in probes(topology) {
                    let time_s = probe.price_s(topology, &truth).unwrap();
                    settle(probe, topology, time_s, &mut found).unwrap();
                }
                prop_assert!(round == 0 || found == found);
            }
            let told: Vec<_> = probes(topology).iter().map(|one| (one.class, one.number)).collect();
            for (class, link, true_link) in [
                (LinkClass::Tcp, found.tcp, tcp),
                (LinkClass::Shm, found.shm, shm),
            ] {
                let usual = TuningTable::default();
                let usual = if class == LinkClass::Tcp { usual.tcp } else { usual.shm };
                if told.iter().all(|(one, _)| *one != class) {
                    prop_assert_eq!(link, usual);
                    continue;
                }
                prop_assert!(numbers(&link).iter().all(|number| *number > 0.0));
                let _ = true_link;
            }
            let text = found.to_string();
            prop_assert_eq!(TuningTable::parse(&text), Ok(found));
        }

        #[test]
        fn no_time_makes_a_number_that_is_not_one(
            (topology, time_s) in (worlds(), prop::num::f64::ANY)
        ) {
            let mut table = TuningTable::default();
            for probe in probes(topology) {
                settle(probe, topology, time_s, &mut table).unwrap();
            }
            let all = [numbers(&table.tcp), numbers(&table.shm)];
            prop_assert!(all.concat().iter().all(|number| number.is_finite() && *number > 0.0));
        }
    }
}
