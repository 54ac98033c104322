//! Tests calls in which the process of a rank dies.

use super::{registry, run_timed};
use crate::long::short_or_long;
use proptest::prelude::*;
use ringtree::plan::internal::spec::whole_count;
use ringtree::plan::{Algorithm, Collective};
use ringtree::sim::World;
use ringtree::{Communicator, ErrorKind, ReduceOp, Result};
use std::time::Duration;

fn one_call(comm: &Communicator, collective: Collective) -> Result<()> {
    let mut data = vec![1u8; whole_count(collective, 3000, comm.world_size())];
    ringtree::internal::calls::collective(comm, collective, &mut data, ReduceOp::Sum, 0)
}

/// Issues calls until `victim` dies at `at`. Asserts that every rank names the victim shortly
/// afterwards.
fn check(world: &World, victim: usize, at: Duration, collective: Collective) {
    let mut world = world.clone();
    world.network.faults.deaths = vec![(victim, at)];
    let (ends, took) = run_timed(&world, |comm| {
        loop {
            let end = one_call(comm, collective).and_then(|()| comm.barrier());
            if let Err(error) = end {
                assert_eq!(
                    comm.barrier(),
                    Err(error.clone()),
                    "the first error persists"
                );
                return error;
            }
        }
    });
    assert!(took < at + Duration::from_secs(2), "it took {took:?}");
    for (rank, end) in ends.iter().enumerate() {
        assert!(end.kind() == ErrorKind::PeerLost, "rank {rank}: {end:?}");
        let message = end.to_string();
        assert_eq!(end.peer(), Some(victim), "rank {rank}: {message}");
        let observer = end.rank();
        assert!(
            observer.is_some() && (rank == victim || observer != Some(victim)),
            "{end:?}"
        );
        assert!(
            message.contains(&format!("rank {victim} is gone")),
            "{message}"
        );
    }
}

#[test]
fn survivors_name_the_dead_rank_with_any_algorithm() {
    for (collective, algorithm) in registry() {
        for victim in [0, 2, 4] {
            let mut world = World::new(5);
            world.algorithm = Some(algorithm);
            check(&world, victim, Duration::from_micros(777), collective);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(short_or_long(24, 480)))]

    #[test]
    fn survivors_name_the_dead_rank_at_any_time_of_death(
        pair in prop::sample::select(registry()),
        world_size in 2usize..9,
        victim in 0usize..9,
        at_us in 0u64..3000,
        seed: u64,
        window_bytes in prop::sample::select(vec![500usize, 1 << 18]),
        delay_us in 0u64..200,
    ) {
        let (collective, algorithm): (Collective, Algorithm) = pair;
        let mut world = World::new(world_size);
        world.algorithm = Some(algorithm);
        world.network.seed = seed;
        world.network.window_bytes = window_bytes;
        world.network.faults.delay_max = Duration::from_micros(delay_us);
        check(&world, victim % world_size, Duration::from_micros(at_us), collective);
    }
}
