//! The promises that hold when ranks disagree, leave or die, and when several operations are
//! under way at once. All on simulated ranks, in virtual time: every end is bounded, and the same
//! in every run.

mod checks;
mod concurrency;
mod deadlines;
mod death;
mod departures;
mod factors;
mod leaving;
mod messages;
mod mismatch;
mod model;
mod own_operator;
mod patience;
mod steps;
mod threads;
mod usage;
mod values;

use ringtree::Communicator;
use ringtree::internal::sim::Network;
use ringtree::plan::{Algorithm, Collective, REGISTRY};
use ringtree::sim::World;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Runs `code` on every rank; also says how much virtual time that took.
fn run_timed<R: Send>(
    world: &World,
    code: impl Fn(&Communicator) -> R + Sync,
) -> (Vec<R>, Duration) {
    let network = Network::new(world.network.clone(), world.world_size);
    let network = Arc::new(Mutex::new(network));
    let ends = ringtree::internal::sim::run_on(world, &network, code);
    let took = network.lock().unwrap().now();
    (ends, took)
}

/// Every collective with every algorithm that carries it out.
fn registry() -> Vec<(Collective, Algorithm)> {
    let all = REGISTRY.iter().flat_map(|entry| {
        let collectives = entry.collectives.iter();
        collectives.map(|collective| (*collective, entry.algorithm))
    });
    all.collect()
}
