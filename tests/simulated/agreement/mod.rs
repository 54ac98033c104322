//! Tests the promises for ranks that disagree, leave or die, and for several operations in flight
//! at the same time. All tests run on simulated ranks in virtual time, so every run gives the same
//! results. Every call must end within a bounded time.

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

/// Runs `code` on every rank. Returns its results and the virtual time that it took.
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

/// Returns every collective with every algorithm that implements it.
fn registry() -> Vec<(Collective, Algorithm)> {
    let all = REGISTRY.iter().flat_map(|entry| {
        let collectives = entry.collectives.iter();
        collectives.map(|collective| (*collective, entry.algorithm))
    });
    all.collect()
}
