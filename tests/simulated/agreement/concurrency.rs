//! Tests several operations in flight at the same time.

use crate::long::short_or_long;
use proptest::prelude::*;
use ringtree::sim::{Faults, World};
use ringtree::{Communicator, ReduceOp, Result};
use std::time::Duration;

/// Issues asynchronous sums, blocking calls and a round of messages, and waits for the sums in an
/// order that depends on the rank. Returns `true` if every result is right.
fn busy(comm: &Communicator, operations: usize, shift: usize) -> Result<bool> {
    let (rank, world_size) = (comm.rank(), comm.world_size());
    let triangle = (world_size * (world_size - 1) / 2) as u64;
    let mut is_right = true;
    let mut pending = Vec::new();
    for operation in 0..operations {
        let input = vec![(rank + operation) as u64; 50 + 300 * operation];
        let result = triangle + (operation * world_size) as u64;
        pending.push((comm.start_all_reduce(input, ReduceOp::Sum)?, result));
    }
    let mut largest = [rank as i32; 100];
    comm.all_reduce(&mut largest, ReduceOp::Max)?;
    is_right &= largest == [world_size as i32 - 1; 100];

    let (right, left) = (
        (rank + 1) % world_size,
        (rank + world_size - 1) % world_size,
    );
    let mut from_left = [0u32; 200];
    if rank == 0 {
        comm.recv(&mut from_left, left)?;
        comm.send(&[rank as u32; 200], right)?;
    } else {
        comm.send(&[rank as u32; 200], right)?;
        comm.recv(&mut from_left, left)?;
    }
    is_right &= from_left == [left as u32; 200];

    pending.rotate_left(shift * rank % operations);
    if rank % 2 == 1 {
        pending.reverse();
    }
    for (work, result) in pending {
        is_right &= work.wait()?.iter().all(|value| *value == result);
    }
    let mut weights = [rank as f64; 33];
    comm.broadcast(&mut weights, world_size - 1)?;
    Ok(is_right && weights == [(world_size - 1) as f64; 33])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(short_or_long(20, 400)))]

    #[test]
    fn waiting_in_any_order_gives_the_right_results(
        world_size in 2usize..8,
        operations in 1usize..6,
        shift in 0usize..6,
        // The minimum is one byte more than a frame's header.
        window_bytes in prop::sample::select(vec![33usize, 64, 1000, 1 << 18]),
        seed: u64,
        short_io: bool,
        delay_us in 0u64..300,
    ) {
        let mut world = World::new(world_size);
        world.network.seed = seed;
        world.network.window_bytes = window_bytes;
        world.timeout = Duration::from_secs(60);
        world.network.faults = Faults {
            delay_max: Duration::from_micros(delay_us),
            short_io,
            ..Faults::default()
        };
        let ends = world.run(|comm| busy(comm, operations, shift));
        prop_assert_eq!(ends, vec![Ok(true); world_size]);
    }
}

#[test]
fn concurrent_operations_of_any_two_algorithms_complete() {
    let all_reduce = super::registry().into_iter();
    let all_reduce = all_reduce.filter(|(one, _)| *one == ringtree::plan::Collective::AllReduce);
    let algorithms: Vec<_> = all_reduce.map(|(_, algorithm)| algorithm).collect();
    for first in &algorithms {
        for second in &algorithms {
            let mut world = World::new(5);
            world.network.window_bytes = 48;
            world.timeout = Duration::from_secs(60);
            let ends = world.run(|comm| {
                comm.use_algorithm(Some(*first))?;
                let one = comm.start_all_reduce(vec![1u16; 700], ReduceOp::Sum)?;
                comm.use_algorithm(Some(*second))?;
                let two = comm.start_all_reduce(vec![2u32; 500], ReduceOp::Sum)?;
                if comm.rank() % 2 == 0 {
                    let one = one.wait()?;
                    Ok::<_, ringtree::Error>((one[699], two.wait()?[499]))
                } else {
                    let two = two.wait()?;
                    Ok((one.wait()?[699], two[499]))
                }
            });
            assert_eq!(ends, vec![Ok((5, 10)); 5], "{first} and {second}");
        }
    }
}
