//! Every algorithm of the registry on simulated ranks, with everything the network may do.

use proptest::prelude::*;
use ringtree::plan::{Algorithm, Collective, REGISTRY};
use ringtree::sim::faults::Faults;
use ringtree::sim::simulate::World;
use ringtree::{Communicator, Error, ReduceOp};
use std::time::Duration;

fn pairs() -> Vec<(Collective, Algorithm)> {
    let all = REGISTRY.iter().flat_map(|entry| {
        entry
            .collectives
            .iter()
            .map(|collective| (*collective, entry.algorithm))
    });
    all.collect()
}

fn contribution(rank: usize, index: usize) -> i64 {
    (rank as i64 + 1) * 1000 + index as i64
}

/// What `rank` must hold where the collective says anything.
fn check(
    comm: &Communicator,
    collective: Collective,
    root: usize,
    count: usize,
) -> Result<bool, Error> {
    let (rank, world_size) = (comm.rank(), comm.world_size());
    let mut data: Vec<i64> = (0..count).map(|index| contribution(rank, index)).collect();
    let sum = |index| {
        (0..world_size)
            .map(|rank| contribution(rank, index))
            .sum::<i64>()
    };
    let all = |data: &[i64], expected: &dyn Fn(usize) -> i64| {
        data.iter()
            .enumerate()
            .all(|(index, value)| *value == expected(index))
    };
    Ok(match collective {
        Collective::AllReduce => {
            comm.all_reduce(&mut data, ReduceOp::Sum)?;
            all(&data, &sum)
        }
        Collective::Broadcast => {
            comm.broadcast(&mut data, root)?;
            all(&data, &|index| contribution(root, index))
        }
        Collective::Reduce => {
            comm.reduce(&mut data, ReduceOp::Sum, root)?;
            rank != root || all(&data, &sum)
        }
        Collective::ReduceScatter => {
            comm.reduce_scatter(&mut data, ReduceOp::Sum)?;
            let block = comm.block(count);
            let start = block.start;
            all(&data[block], &|index| sum(start + index))
        }
        Collective::AllGather => {
            comm.all_gather(&mut data)?;
            let owner = |index: usize| {
                let start = |rank| ringtree::plan::layout::part_start(count, world_size, rank);
                (0..world_size)
                    .rfind(|rank| start(*rank) <= index)
                    .unwrap_or(0)
            };
            all(&data, &|index| contribution(owner(index), index))
        }
        Collective::Barrier => {
            comm.barrier()?;
            true
        }
    })
}

#[test]
fn every_algorithm_gives_the_right_result() {
    for (collective, algorithm) in pairs() {
        for world_size in 1usize..=9 {
            for count in [0, 1, world_size - 1, 17, 1000] {
                let mut world = World::new(world_size);
                world.algorithm = Some(algorithm);
                let root = (count * 3 + 1) % world_size;
                let ends = world.run(|comm| check(comm, collective, root, count));
                for (rank, end) in ends.into_iter().enumerate() {
                    assert_eq!(
                        end,
                        Ok(true),
                        "{collective} by {algorithm}, rank {rank} of {world_size}, {count} elements"
                    );
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn no_interleaving_changes_a_result(
        pair in prop::sample::select(pairs()),
        world_size in 1usize..24,
        count in prop::sample::select(vec![0usize, 1, 5, 100, 3000, 40_000]),
        root in 0usize..24,
        seed: u64,
        short_io: bool,
        window_bytes in prop::sample::select(vec![64usize, 1000, 1 << 18]),
        delay_us in 0u64..500,
    ) {
        let (collective, algorithm) = pair;
        let mut world = World::new(world_size);
        world.algorithm = Some(algorithm);
        world.network.seed = seed;
        world.network.window_bytes = window_bytes;
        world.network.faults = Faults {
            delay_max: Duration::from_micros(delay_us),
            stall_probability: 0.05,
            stall_max: Duration::from_millis(1),
            short_io,
            ..Faults::default()
        };
        let ends = world.run(|comm| check(comm, collective, root % world_size, count));
        for end in ends {
            prop_assert_eq!(end, Ok(true));
        }
    }
}
