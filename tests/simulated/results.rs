//! Checks every algorithm in the registry on simulated ranks against exactly known results, under
//! all faults that the network can simulate.

use crate::checked::{Case, check};
use crate::long::short_or_long;
use proptest::prelude::*;
use ringtree::internal::limits::{BUCKET_BYTES_MAX, SHARED_SEGMENT_BYTES};
use ringtree::plan::internal::algorithms;
use ringtree::plan::internal::topology::{at_sites, in_sites_of, of_sizes};
use ringtree::plan::{Algorithm, Collective, Hosts};
use ringtree::sim::{Faults, World};
use ringtree::{Dtype, Error, ErrorKind, ReduceOp};
use std::time::Duration;

fn pairs() -> Vec<(Collective, Algorithm)> {
    algorithms::pairs(&[2, 3])
}

/// Returns placements of the ranks: each rank on a separate host, all on one host, and ranks spread
/// irregularly over a few hosts. An algorithm that plans by hosts also gets hosts with the same
/// number of ranks, and sites.
fn hosts(algorithm: Algorithm, world_size: usize) -> Vec<Hosts> {
    let turns: Vec<usize> = (0..world_size).map(|rank| rank * rank % 5).collect();
    if short_or_long(algorithm != Algorithm::Hierarchical, false) {
        return vec![Hosts::APART, Hosts::each(world_size), Hosts::of(&turns)];
    }
    let equal = (1..=world_size).filter(|ranks| world_size.is_multiple_of(*ranks));
    let sites: Vec<usize> = (0..world_size).map(|rank| rank / 2 % 3).collect();
    let of_turns = [
        Hosts::of(&turns),
        at_sites(&turns, &sites).hosts,
        Hosts::APART.in_sites(&sites),
    ];
    equal.map(Hosts::each).chain(of_turns).collect()
}

/// Runs a call on `f32` with the world's algorithm for each of `counts`. Returns the number of
/// wrong elements on each rank.
fn wrong(world: &World, collective: Collective, counts: &[usize]) -> Vec<Result<usize, Error>> {
    world.run(|comm| {
        let mut wrong = 0;
        for &count in counts {
            let case = Case {
                collective,
                dtype: Dtype::F32,
                op: ReduceOp::Sum,
                root: (count * 3 + 1) % comm.world_size(),
                count,
                seed: count as u64,
            };
            wrong += check(comm, &case)?;
        }
        Ok(wrong)
    })
}

#[test]
fn every_algorithm_gives_the_right_result() {
    for (collective, algorithm) in pairs() {
        for world_size in 1usize..=9 {
            for hosts in hosts(algorithm, world_size) {
                let mut world = World::new(world_size);
                world.algorithm = Some(algorithm);
                world.hosts = hosts.clone();
                let ends = wrong(&world, collective, &[0, 1, world_size - 1, 17, 1000]);
                let case_text =
                    format!("{collective} by {algorithm}, {world_size} ranks, {hosts:?}");
                assert_eq!(ends, vec![Ok(0); world_size], "{case_text}");
            }
        }
    }
}

#[test]
fn large_calls_in_pieces_give_the_right_result() {
    // Each message takes several segments of shared memory, even if it contains only one block.
    let count = 4 * SHARED_SEGMENT_BYTES / size_of::<f32>() + 1;
    for (collective, algorithm) in pairs() {
        for sizes in [&[2][..], &[3], &[3, 3], &[1, 3, 2]] {
            let world_size = sizes.iter().sum();
            let mut world = World::new(world_size);
            world.algorithm = Some(algorithm);
            world.hosts = of_sizes(sizes);
            if sizes.len() > 2 {
                world.hosts = in_sites_of(world.hosts, &[2, 1]);
            }
            let ends = wrong(&world, collective, &[count]);
            let case_text = format!("{collective} by {algorithm}, hosts of {sizes:?}");
            assert_eq!(ends, vec![Ok(0); world_size], "{case_text}");
        }
    }
}

#[test]
fn every_type_and_operator_gives_the_right_result() {
    for dtype in Dtype::ALL {
        for op in ReduceOp::ALL.iter().filter(|op| op.supports(*dtype)) {
            let ends = ringtree::simulate(5, |comm| {
                let mut wrong = 0;
                for collective in Collective::ALL {
                    let case = Case {
                        collective: *collective,
                        dtype: *dtype,
                        op: *op,
                        root: 3,
                        count: 501,
                        seed: 7,
                    };
                    wrong += check(comm, &case)?;
                }
                Ok::<_, ringtree::Error>(wrong)
            });
            assert_eq!(ends, vec![Ok(0); 5], "{op} of {dtype}");
        }
    }
}

#[test]
fn link_that_holds_a_single_element_is_enough() {
    // A frame header has 32 bytes, and an element has 8.
    for (collective, algorithm) in pairs() {
        for world_size in [2, 3, 5, 8] {
            let mut world = World::new(world_size);
            world.algorithm = Some(algorithm);
            world.network.window_bytes = 40;
            let case = Case {
                collective,
                dtype: Dtype::F64,
                op: ReduceOp::Sum,
                root: world_size - 1,
                count: 100,
                seed: 3,
            };
            let ends = world.run(|comm| check(comm, &case));
            let case_text = format!("{collective} by {algorithm}, {world_size} ranks");
            assert_eq!(ends, vec![Ok(0); world_size], "{case_text}");
        }
    }
}

#[test]
fn tensors_of_a_list_are_summed_in_common_and_separate_buffers() {
    // The second tensor is too large to share a buffer with the others.
    let lengths = [3, BUCKET_BYTES_MAX / 8, 0, 5, 1];
    let ends = ringtree::simulate(2, |comm| {
        let mut tensors = lengths.map(|length| vec![comm.rank() as f64 + length as f64; length]);
        let mut list = tensors.each_mut().map(Vec::as_mut_slice);
        comm.all_reduce_many(&mut list, ReduceOp::Sum)?;
        let right = |(length, tensor): (&usize, &Vec<f64>)| {
            tensor.len() == *length && tensor.iter().all(|one| *one == 2.0 * *length as f64 + 1.0)
        };
        assert!(lengths.iter().zip(&tensors).all(right));
        // Rank 1 omits a tensor.
        let mut rest = [[0.0f64; 4], [0.0; 4]];
        let mut list: Vec<_> = rest.iter_mut().map(|one| &mut one[..]).collect();
        list.truncate(2 - comm.rank());
        comm.all_reduce_many(&mut list, ReduceOp::Sum)
    });
    for end in ends {
        assert_eq!(end.unwrap_err().kind(), ErrorKind::Mismatch);
    }
}

fn faults() -> impl Strategy<Value = Faults> {
    (0u64..500, any::<bool>()).prop_map(|(delay_us, short_io)| Faults {
        delay_max: Duration::from_micros(delay_us),
        stall_probability: 0.05,
        stall_max: Duration::from_millis(1),
        short_io,
        ..Faults::default()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(short_or_long(48, 1280)))]

    #[test]
    fn no_interleaving_changes_a_result(
        (collective, algorithm) in prop::sample::select(pairs()),
        world_size in 1usize..24,
        count in prop::sample::select(vec![0usize, 1, 5, 100, 3000, 20_000]),
        root in 0usize..24,
        dtype in prop::sample::select(Dtype::ALL),
        op in prop::sample::select(ReduceOp::ALL),
        seed: u64,
        window_bytes in prop::sample::select(vec![40usize, 1000, 1 << 18]),
        faults in faults(),
        hosts in prop::collection::vec(0usize..6, 24),
    ) {
        let op = if op.supports(dtype) { op } else { ReduceOp::Sum };
        let mut world = World::new(world_size);
        world.algorithm = Some(algorithm);
        world.network.seed = seed;
        world.network.window_bytes = window_bytes;
        world.network.faults = faults;
        world.hosts = Hosts::of(&hosts[..world_size]);
        let root = root % world_size;
        let case = Case { collective, dtype, op, root, count, seed };
        let ends = world.run(|comm| check(comm, &case));
        prop_assert_eq!(ends, vec![Ok(0); world_size]);
    }
}
