//! Tests ranks that leave cleanly or too early.

use super::{registry, run_timed};
use ringtree::sim::{World, sleep};
use ringtree::{Error, ErrorKind, ReduceOp};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(3);

#[test]
fn finished_rank_may_leave_while_others_still_receive() {
    for (collective, algorithm) in registry() {
        for seed in 0..3 {
            let mut world = World::new(6);
            world.algorithm = Some(algorithm);
            world.network.seed = seed;
            world.network.window_bytes = 2000;
            world.network.faults.delay_max = Duration::from_millis(300);
            let ends = world.run(|comm| {
                let mut data = vec![1u16 << comm.rank(); 5004];
                ringtree::internal::calls::collective(comm, collective, &mut data, ReduceOp::Sum, 2)
            });
            assert_eq!(ends, vec![Ok(()); 6], "{collective} by {algorithm}");
        }
    }
}

#[test]
fn rank_that_issues_one_call_fewer_is_named() {
    for world_size in [2, 3, 5, 8] {
        for early in 0..world_size {
            let (ends, took) = run_timed(&World::new(world_size), |comm| {
                let calls = if comm.rank() == early { 3 } else { 4 };
                (0..calls).try_for_each(|_| comm.all_reduce(&mut [1u8; 100], ReduceOp::Sum))
            });
            assert!(took < SOON, "it took {took:?}");
            for (rank, end) in ends.iter().enumerate() {
                if rank == early {
                    assert_eq!(*end, Ok(()));
                    continue;
                }
                let Err(error) = end else {
                    panic!("rank {rank} of {world_size}, {early} left early: {end:?}");
                };
                assert!(error.kind() == ErrorKind::PeerLost, "{error:?}");
                let lost = error.peer().unwrap();
                let message = error.to_string();
                if early != 0 {
                    let named = format!("rank {early} left after call #3");
                    assert!(message.contains(&named), "{message}");
                    assert_eq!(lost, early);
                }
            }
        }
    }
}

#[test]
fn goodbye_is_noticed_without_a_data_link() {
    let (ends, took) = run_timed(&World::new(3), |comm| {
        if comm.rank() == 2 {
            return Ok(());
        }
        sleep(comm, Duration::from_secs(1));
        comm.barrier()
    });
    assert!(took < SOON, "it took {took:?}");
    for end in &ends[..2] {
        let Err(error) = end else {
            panic!("{ends:?}");
        };
        assert!(error.kind() == ErrorKind::PeerLost, "{error:?}");
        assert_eq!(error.peer(), Some(2));
        let message = error.to_string();
        assert!(message.contains("rank 2 left after call #0"), "{message}");
    }
}

#[test]
fn dropped_communicator_completes_operations_in_flight() {
    let mut world = World::new(4);
    world.network.window_bytes = 64;
    let ends = world.run(|comm| {
        let first = comm.start_all_reduce(vec![1u32; 3000], ReduceOp::Sum)?;
        let second = comm.start_broadcast(vec![comm.rank() as u8; 3000], 3)?;
        if comm.rank() == 1 {
            // Do not wait for the operations. The other ranks must still get their results.
            drop((first, second));
            return Ok((4, 3));
        }
        Ok::<_, Error>((first.wait()?[2999], second.wait()?[2999]))
    });
    assert_eq!(ends, vec![Ok((4, 3)); 4]);
}
