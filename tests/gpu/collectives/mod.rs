//! Tests collectives on device buffers. The ranks are processes on a fake driver that is as strict
//! as real drivers have been observed to be (`tests/gpu/device/fake_driver.cpp`).

mod broken;
mod cases;
mod ends;
mod habits;
mod paths;
mod world;

use world::{World, ok};

#[test]
fn child_entry() {
    world::child(|role| {
        cases::act(role)
            .or_else(|| ends::act(role))
            .or_else(|| habits::act(role))
            .or_else(|| paths::act(role))
            .or_else(|| broken::act(role))
    });
}

#[test]
fn every_algorithm() {
    for ranks in [1, 2, 3, 5] {
        World::new(ranks, "mapped").expect("algorithms", ok(ranks));
    }
    for ranks in [2, 3] {
        World::new(ranks, "shm").expect("algorithms", ok(ranks));
    }
    World::new(2, "tcp").expect("algorithms", ok(2));
}

#[test]
fn every_type_and_operator() {
    for path in ["mapped", "shm"] {
        World::new(2, path).expect("types", ok(2));
    }
}

/// The buffers are split into many pieces and several rounds. If the collective allows it, their
/// lengths are not multiples of the number of ranks.
#[test]
fn large_buffers_are_split_and_stay_exact() {
    for (ranks, path) in [(2, "mapped"), (3, "mapped"), (2, "shm"), (3, "tcp")] {
        World::new(ranks, path).expect("large", ok(ranks));
    }
}

/// The first two GPUs can access each other's memory.
#[test]
fn ranks_may_use_separate_gpus() {
    let world = World::new(2, "mapped").with("GPU_PER_RANK", "1");
    world.expect("types", ok(2));
    world.expect("large", ok(2));
}

/// The third GPU cannot access the memory of the others: all ranks detect this and stage the data.
#[test]
fn gpus_without_peer_access_are_staged() {
    let world = World::new(3, "mapped").with("GPU_PER_RANK", "1");
    world.expecting("shm").expect("types", ok(3));
}
