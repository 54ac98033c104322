//! Collectives on device buffers, by processes on a pretended driver that is as unkind as real ones
//! were seen to be (`tests/device/pretended_driver.cpp`).

#![allow(clippy::unwrap_used)]

mod cases;
#[path = "../device/driver.rs"]
mod driver;
mod ends;
mod habits;
mod world;

use world::{World, ok};

#[test]
fn child_entry() {
    world::child(|role| {
        cases::act(role)
            .or_else(|| ends::act(role))
            .or_else(|| habits::act(role))
    });
}

#[test]
fn every_algorithm() {
    for ranks in [1, 2, 3] {
        World::new(ranks, "shm").expect("algorithms", ok(ranks));
    }
    World::new(2, "tcp").expect("algorithms", ok(2));
}

#[test]
fn every_type_and_operator() {
    World::new(2, "shm").expect("types", ok(2));
}

/// Many pieces, of which no two ranks have equally much, and several rounds of them.
#[test]
fn large_buffers_are_cut_into_pieces_and_stay_exact() {
    for (ranks, transport) in [(2, "shm"), (3, "tcp")] {
        World::new(ranks, transport).expect("large", ok(ranks));
    }
}

/// Whoever joins, on the GPUs there are, and where GPUs can be told apart or not.
#[test]
fn each_rank_may_have_a_gpu_of_its_own() {
    let world = World::new(3, "shm").with("GPU_OF_ITS_OWN", "1");
    world.expect("types", ok(3));
}
