//! Ranks that do not come.

use super::{registry, run_timed};
use ringtree::plan::Algorithm;
use ringtree::sim::simulate::{World, sleep};
use ringtree::{Collective, Communicator, ReduceOp, Result};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(5);

fn calls(comm: &Communicator, number: usize) -> Result<()> {
    (0..number).try_for_each(|_| comm.barrier())
}

#[test]
fn a_deadline_says_who_has_not_called_and_where_they_are() {
    let mut world = World::new(4);
    world.timeout = TIMEOUT;
    world.algorithm = Some(Algorithm::Flat);
    let (ends, took) = run_timed(&world, |comm| {
        calls(comm, 11)?;
        if comm.rank() == 3 {
            sleep(comm, 4 * TIMEOUT);
        }
        comm.all_reduce(&mut [1u8; 9], ReduceOp::Sum)
    });
    assert!(took < 5 * TIMEOUT, "it took {took:?}");
    let Err(error) = &ends[0] else {
        panic!("no deadline: {ends:?}");
    };
    assert!(error.is_timeout(), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("rank 3 has made no call after #11"), "{text}");
    assert!(
        text.contains("gave up on all-reduce #12 of 9 u8, sum"),
        "{text}"
    );
    assert!(text.contains("after 5.0 s"), "{text}");
    let call = (error.collective(), error.sequence());
    assert_eq!(call, (Some(Collective::AllReduce), Some(12)));
    assert_eq!(error.missing(), [3], "{error:?}");
    assert!(
        error.rank().is_some() && error.elapsed() >= Some(TIMEOUT),
        "{error:?}"
    );
    // The late rank too, when it comes at last.
    assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
}

#[test]
fn no_algorithm_waits_longer_than_its_timeout() {
    for (_, algorithm) in registry() {
        for missing in [0, 4] {
            let mut world = World::new(5);
            world.timeout = TIMEOUT;
            world.algorithm = Some(algorithm);
            let (ends, took) = run_timed(&world, |comm| {
                if comm.rank() == missing {
                    sleep(comm, 2 * TIMEOUT);
                }
                comm.all_reduce(&mut [1u8; 999], ReduceOp::Sum)?;
                comm.barrier()
            });
            assert!(took < 3 * TIMEOUT, "it took {took:?}");
            let Err(error) = &ends[0] else {
                panic!("no deadline: {ends:?}");
            };
            assert!(error.is_timeout(), "{error:?}");
            let text = error.to_string();
            let named = format!("rank {missing} has made no call yet");
            assert!(text.contains(&named), "{algorithm}: {text}");
            assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
        }
    }
}

#[test]
fn a_rank_that_is_still_in_an_earlier_call_is_found_there() {
    let mut world = World::new(3);
    world.timeout = TIMEOUT;
    let (ends, took) = run_timed(&world, |comm| {
        calls(comm, 4)?;
        if comm.rank() == 2 {
            // Nobody sends.
            let waited = comm.recv(&mut [0u8], 0);
            assert!(waited.is_err());
            return waited;
        }
        sleep(comm, TIMEOUT / 5);
        comm.barrier()
    });
    assert!(took < 2 * TIMEOUT, "it took {took:?}");
    let Err(error) = &ends[0] else {
        panic!("no deadline: {ends:?}");
    };
    assert!(error.is_timeout(), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("rank 2 gave up on send-recv #1"), "{text}");
    assert!(text.contains("rank 0 is still in call #5"), "{text}");
    assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
}

#[test]
fn slow_ranks_within_the_timeout_are_no_error() {
    let mut world = World::new(4);
    world.timeout = TIMEOUT;
    let ends = world.run(|comm| {
        sleep(comm, TIMEOUT * comm.rank() as u32 / 4);
        comm.barrier()?;
        sleep(comm, TIMEOUT * (4 - comm.rank() as u32) / 5);
        comm.barrier()
    });
    assert_eq!(ends, vec![Ok(()); 4]);
}
