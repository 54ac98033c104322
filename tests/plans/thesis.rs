//! Tests a short form of the thesis: a step's exposed communication grows linearly with the number
//! of ranks if the algorithm is a ring, but only by a constant per doubling if it is logarithmic.

// The module `drawing` also contains the tests of the figures that the examples draw.
#[path = "../../examples/drawing/mod.rs"]
mod drawing;
#[path = "../../examples/05_thesis/growth.rs"]
mod growth;
#[path = "../../examples/05_thesis/simulated.rs"]
mod simulated;
#[path = "../../examples/05_thesis/step.rs"]
mod step;

use ringtree::plan::Algorithm;
use std::time::Duration;
use step::{Link, MODELS, Model, WAYS};

/// Maximum ratio of the exposed communication of `auto` to that of the best algorithm.
const AUTO_MAX: f64 = 1.05;
/// Like [`AUTO_MAX`], for cases in which `auto` chooses a ring. If predictions are close, `auto`
/// prefers a ring, in which every rank has one sender. On real links, long streams that share a
/// port cost more than in the simulator: with the large model on 7 hosts, a ring took 918 ms and
/// circulant 1,690 ms.
const RING_MAX: f64 = 1.25;

/// Returns a link whose latency is so large that, in this test, it costs more than the bytes. With
/// the small model, this holds for the ring's 2(n − 1) messages from 6 ranks on.
fn link() -> Link {
    Link::new(Duration::from_micros(5_500), 9.4)
}

fn small() -> &'static Model {
    &MODELS[0]
}

fn exposed_ms(ranks: usize, algorithm: Option<Algorithm>, model: &Model) -> f64 {
    simulated::exposed_ms(ranks, algorithm, model, &link()).unwrap()
}

#[test]
fn exposed_communication_grows_linearly_or_logarithmically() {
    for (name, algorithm) in WAYS {
        let [at_16, at_32, at_64] = [16, 32, 64].map(|ranks| exposed_ms(ranks, algorithm, small()));
        let (first, second) = (at_32 - at_16, at_64 - at_32);
        // The second doubling adds twice as much as the first if growth is linear, and the same
        // amount if it is logarithmic.
        let ratio = second / first;
        match name {
            "ring" => {
                assert!(
                    (1.9..2.1).contains(&ratio),
                    "the growth ratio of the ring is {ratio}"
                );
                assert!(at_64 > 1.8 * at_32, "{at_32} ms became {at_64} ms");
            }
            name => {
                assert!(
                    (0.4..1.3).contains(&ratio),
                    "the growth ratio of {name} is {ratio}"
                );
                assert!(at_64 < 1.4 * at_32, "{name}: {at_32} ms became {at_64} ms");
            }
        }
    }
}

#[test]
fn auto_is_never_much_worse_than_the_best_algorithm() {
    for model in &MODELS {
        for ranks in [2, 4, 7, 8, 16, 23, 32, 64] {
            let (auto, named) = WAYS.split_last().unwrap();
            let auto_ms = exposed_ms(ranks, auto.1, model);
            let named = named
                .iter()
                .map(|(name, algorithm)| (exposed_ms(ranks, *algorithm, model), *name));
            let best = named
                .min_by(|one, other| one.0.total_cmp(&other.0))
                .unwrap();
            let choice = simulated::choice(ranks, None, model, &link().tuning()).unwrap();
            let most = match choice.algorithm {
                Algorithm::Ring => RING_MAX,
                _ => AUTO_MAX,
            };
            assert!(
                auto_ms <= most * best.0,
                "{} model, {ranks} ranks: {} exposes {auto_ms} ms, but {} only {} ms",
                model.name,
                choice.algorithm,
                best.1,
                best.0
            );
        }
    }
}

#[test]
fn closed_forms_approximate_the_time_of_the_engine() {
    for (name, algorithm) in WAYS {
        let predicted_ms = simulated::predicted_ms(32, algorithm, small(), &link()).unwrap();
        let ratio = exposed_ms(32, algorithm, small()) / predicted_ms;
        // The ratio is below 1 if buckets overlap. It can exceed 1 by the time that the last packet
        // of a message takes to leave.
        assert!((0.6..1.15).contains(&ratio), "{name}: {ratio}");
    }
}

#[test]
fn linear_and_logarithmic_growth_are_distinguished() {
    let ranks = [2.0_f64, 4.0, 7.0, 16.0, 64.0];
    let [linear, _] = growth::growth(&ranks.map(|n| (n, 3.0 * n + 1.0)));
    assert!((linear.slope - 3.0).abs() < 1e-9 && linear.fit > 0.999_999);
    let steps = ranks.map(|n| (n, 5.0 * n.log2()));
    assert!(growth::growth(&steps)[0].fit < 0.9);
    assert_eq!(
        growth::describe(&steps[..2]),
        "+5.0 ms per doubling (R² over n 1.000, over log₂ n 1.000)"
    );
}
