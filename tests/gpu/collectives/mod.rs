//! Collectives on device buffers, by processes on a pretended driver that is as unkind as real ones
//! were seen to be (`tests/gpu/device/pretended_driver.cpp`).

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

/// Many pieces, of which no two ranks have equally much, and several rounds of them.
#[test]
fn large_buffers_are_cut_into_pieces_and_stay_exact() {
    for (ranks, path) in [(2, "mapped"), (3, "mapped"), (2, "shm"), (3, "tcp")] {
        World::new(ranks, path).expect("large", ok(ranks));
    }
}

/// The first two GPUs reach each other's memory.
#[test]
fn each_rank_may_have_a_gpu_of_its_own() {
    let world = World::new(2, "mapped").with("GPU_OF_ITS_OWN", "1");
    world.expect("types", ok(2));
    world.expect("large", ok(2));
}

/// The third GPU reaches no other's: all ranks find so, and say which and why.
#[test]
fn gpus_that_do_not_reach_each_other_are_staged() {
    let world = World::new(3, "mapped").with("GPU_OF_ITS_OWN", "1");
    world.expecting("shm").expect("types", ok(3));
}
