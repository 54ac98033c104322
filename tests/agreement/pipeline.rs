//! The example of a pipeline, with a death at every step of it.

use super::run_timed;
use ringtree::sim::simulate::World;
use ringtree::{Communicator, Error, Result};
use std::time::Duration;

#[allow(dead_code)]
#[path = "../../examples/08_pipeline.rs"]
mod example;

const STAGES: usize = 4;
const BATCHES: usize = 6;
/// Activations of 40 KiB on links that hold 1,000 bytes.
const ELEMENTS: usize = 10_000;

fn world() -> World {
    let mut world = World::new(STAGES);
    world.network.window_bytes = 1000;
    world.network.bandwidth_bytes_per_s = 1e9;
    world
}

/// The gradient of this rank's stage; all stages leave together.
fn step(comm: &Communicator) -> Result<f64> {
    let stage = example::train(comm, ELEMENTS, BATCHES)?;
    comm.barrier()?;
    Ok(stage.gradient)
}

#[test]
fn a_pipeline_of_large_activations_computes_what_one_program_would() {
    let alone = example::alone(STAGES, ELEMENTS, BATCHES);
    let expected: Vec<Result<f64>> = alone.into_iter().map(Ok).collect();
    assert_eq!(run_timed(&world(), step).0, expected);
}

#[test]
fn a_death_at_any_step_of_a_pipeline_is_named_by_all() {
    let (_, length) = run_timed(&world(), step);
    let moments = 3 * BATCHES as u32;
    for victim in 0..STAGES {
        for moment in 0..moments {
            let (mut world, at) = (world(), length * moment / moments);
            world.network.faults.deaths = vec![(victim, at)];
            let (ends, took) = run_timed(&world, step);
            assert!(
                took < at + Duration::from_secs(3),
                "{victim} at {at:?}: {took:?}"
            );
            let survivors = ends.iter().enumerate().filter(|(rank, _)| *rank != victim);
            for (rank, end) in survivors {
                let lost = end.as_ref().err().filter(|error| error.is_peer_lost());
                let lost = lost.and_then(Error::peer);
                let said = format!("rank {rank}, {victim} dies at {at:?}: {end:?}");
                assert_eq!(lost, Some(victim), "{said}");
            }
        }
    }
}
