//! The thesis, in its short form: with the ring a step's exposed communication grows with the
//! number of ranks, with the logarithmic algorithms by a constant for each doubling.

// The pictures that the examples draw have their tests beside them.
#[path = "../../examples/drawing/mod.rs"]
mod drawing;
#[path = "../../examples/05_thesis/simulated.rs"]
mod simulated;
#[allow(dead_code)]
#[path = "../../examples/05_thesis/step.rs"]
mod step;

use ringtree::plan::Algorithm;
use std::time::Duration;
use step::{Link, WAYS};

/// Slow enough that messages cost more than bytes where the test looks: the ring's 2(n − 1) of
/// them from 17 ranks on.
const LINK: Link = Link {
    alpha: Duration::from_micros(2_600),
    bytes_per_s: 94e6 / 8.0,
};
/// The chooser prices one all-reduce at a time. At powers of two the circulant and Rabenseifner's
/// cost the same, and it takes the latter, whose exchanges go both ways over the same links: the
/// next bucket must wait for them longer.
const STEP_OF_AUTO_MAX: f64 = 1.15;

fn exposed_ms(ranks: usize, way: (&str, Option<Algorithm>)) -> f64 {
    simulated::execute(ranks, way, &LINK).unwrap().exposed_ms
}

#[test]
fn exposed_communication_grows_with_the_ranks_or_with_their_logarithm() {
    for way in WAYS {
        let [at_16, at_32, at_64] = [16, 32, 64].map(|ranks| exposed_ms(ranks, way));
        let (first, second) = (at_32 - at_16, at_64 - at_32);
        // What the second doubling adds: twice what the first did if growth is linear, the same
        // if it is logarithmic.
        let ratio = second / first;
        match way.0 {
            "ring" => {
                assert!((1.9..2.1).contains(&ratio), "the ring's grew by {ratio}");
                assert!(at_64 > 1.8 * at_32, "{at_32} ms became {at_64} ms");
            }
            name => {
                assert!((0.4..1.3).contains(&ratio), "{name}'s grew by {ratio}");
                assert!(at_64 < 1.4 * at_32, "{name}: {at_32} ms became {at_64} ms");
            }
        }
    }
}

#[test]
fn the_chooser_is_never_far_from_the_best() {
    for ranks in [2, 4, 8, 16, 32, 64] {
        let steps: Vec<_> = WAYS
            .iter()
            .map(|way| simulated::execute(ranks, *way, &LINK).unwrap())
            .collect();
        let (auto, named) = steps.split_last().unwrap();
        assert_eq!(auto.way, "auto");
        let best_ms = named.iter().map(|one| one.step_ms).fold(f64::MAX, f64::min);
        assert!(
            auto.step_ms <= STEP_OF_AUTO_MAX * best_ms,
            "at {ranks} ranks auto ({}) takes {} ms, the best {best_ms} ms",
            simulated::chosen(ranks, &LINK).unwrap(),
            auto.step_ms
        );
    }
}

#[test]
fn the_closed_forms_expect_what_the_engine_takes_or_more() {
    for way in WAYS {
        let priced_ms = simulated::priced_ms(32, way.1, &LINK).unwrap();
        let ratio = exposed_ms(32, way) / priced_ms;
        // Less where buckets overlap; more by what the last packet of a message takes to leave.
        assert!((0.6..1.15).contains(&ratio), "{}: {ratio}", way.0);
    }
}
