//! Tests the errors of calls that time out.

use super::{registry, run_timed};
use ringtree::plan::Algorithm;
use ringtree::plan::Collective;
use ringtree::sim::{World, sleep};
use ringtree::{Communicator, ErrorKind, ReduceOp, Result};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the text of a timeout error. Panics unless `end` is one.
fn timeout_text(end: &Result<()>) -> String {
    match end {
        Err(error) if error.kind() == ErrorKind::Deadline => error.to_string(),
        other => panic!("no timeout: {other:?}"),
    }
}

fn calls(comm: &Communicator, number: usize) -> Result<()> {
    (0..number).try_for_each(|_| comm.barrier())
}

#[test]
fn timeout_names_missing_ranks_and_their_positions() {
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
        panic!("no timeout: {ends:?}");
    };
    assert!(error.kind() == ErrorKind::Deadline, "{error:?}");
    let text = error.to_string();
    assert!(text.contains("rank 3 has made no call after #11"), "{text}");
    assert!(
        text.contains("timed out in all-reduce #12 of 9 u8, sum"),
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
    // The late rank gets the same error when it finally issues its call.
    assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
}

#[test]
fn timeout_counts_all_missing_ranks_and_lists_the_first() {
    let mut world = World::new(12);
    world.timeout = TIMEOUT;
    world.algorithm = Some(Algorithm::Flat);
    let ends = world.run(|comm| {
        if comm.rank() > 0 {
            sleep(comm, 2 * TIMEOUT);
            return Ok(());
        }
        comm.all_reduce(&mut [1u8; 9], ReduceOp::Sum)
    });
    let error = ends[0].as_ref().unwrap_err();
    assert_eq!(error.missing(), [1, 2, 3, 4, 5, 6, 7, 8], "{error}");
    assert_eq!(error.missing_count(), 11, "{error}");
    assert!(
        timeout_text(&ends[0]).contains("and 3 more ranks"),
        "{error}"
    );
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
                panic!("no timeout: {ends:?}");
            };
            assert!(error.kind() == ErrorKind::Deadline, "{error:?}");
            let text = error.to_string();
            let named = format!("rank {missing} has made no call yet");
            assert!(text.contains(&named), "{algorithm}: {text}");
            assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
        }
    }
}

#[test]
fn timeout_reports_a_rank_that_is_still_in_an_earlier_call() {
    let mut world = World::new(3);
    world.timeout = TIMEOUT;
    let (ends, took) = run_timed(&world, |comm| {
        calls(comm, 4)?;
        if comm.rank() == 2 {
            // No rank sends this message.
            let waited = comm.recv(&mut [0u8], 0);
            assert!(waited.is_err());
            return waited;
        }
        sleep(comm, TIMEOUT / 5);
        comm.barrier()
    });
    assert!(took < 2 * TIMEOUT, "it took {took:?}");
    let Err(error) = &ends[0] else {
        panic!("no timeout: {ends:?}");
    };
    assert!(error.kind() == ErrorKind::Deadline, "{error:?}");
    let text = error.to_string();
    assert!(text.contains("rank 2 timed out in send-recv #1"), "{text}");
    let start = ": rank 0 waits for rank 2 in barrier #5 of 1 u8, by ";
    let end = "on the communicator of all ranks; they wait for each other";
    assert!(text.contains(start) && text.contains(end), "{text}");
    assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
}

#[test]
fn slow_ranks_within_the_timeout_cause_no_error() {
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

#[test]
fn two_ranks_that_send_to_each_other_are_reported() {
    let mut world = World::new(3);
    world.timeout = TIMEOUT;
    let (ends, took) = run_timed(&world, |comm| {
        comm.barrier()?;
        match comm.rank() {
            // These are more bytes than the links can hold.
            rank @ 0..2 => comm.send(&vec![0u8; 4 << 20], 1 - rank),
            _ => comm.barrier(),
        }
    });
    assert!(took < 2 * TIMEOUT, "it took {took:?}");
    let text = timeout_text(&ends[0]);
    assert!(text.contains("they wait for each other"), "{text}");
    assert!(
        text.ends_with("use sendrecv, a batch or a started send"),
        "{text}"
    );
    assert!(!text.contains("made no call"), "{text}");
    assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
}

#[test]
fn cycle_of_sends_is_reported() {
    for world_size in 2..=6 {
        let mut world = World::new(world_size);
        // Each rank learns of one more rank of the cycle every second.
        world.timeout = 3 * TIMEOUT;
        let (ends, _) = run_timed(&world, |comm| {
            sleep(comm, TIMEOUT / 10 * comm.rank() as u32);
            comm.send(&vec![0u8; 4 << 20], (comm.rank() + 1) % world_size)
        });
        let text = timeout_text(&ends[0]);
        assert!(
            text.contains("rank 0 timed out in send-recv #1 of 4194304 u8 to rank 1"),
            "{text}"
        );
        for rank in 1..world_size {
            let next = (rank + 1) % world_size;
            let wait = format!("rank {rank} waits for rank {next} in send-recv #1 of 4194304 u8");
            assert!(text.contains(&wait), "{text}");
        }
        assert!(text.contains("; they wait for each other; "), "{text}");
        assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
    }
}

#[test]
fn chain_of_receives_blames_the_rank_at_its_end() {
    let mut world = World::new(4);
    world.timeout = TIMEOUT;
    // Rank 0 sends to rank 1 and then computes.
    let (ends, _) = run_timed(&world, |comm| {
        let (rank, mut number) = (comm.rank(), [0u8]);
        match rank {
            0 => {
                comm.send(&[1u8], 1)?;
                sleep(comm, 2 * TIMEOUT);
                comm.barrier()
            }
            _ => {
                if rank == 1 {
                    comm.recv(&mut number, 0)?;
                }
                comm.recv(&mut number, rank - 1)
            }
        }
    });
    let text = timeout_text(&ends[3]);
    let blamed = " s: rank 0 is not in a call after 0 collectives and 1 sends and receives; \
                  find out why";
    assert!(text.contains(blamed), "{text}");
}

#[test]
fn timeout_shorter_than_a_second_names_missing_ranks() {
    let (ends, _) = run_timed(&World::new(3), |comm| {
        if comm.rank() == 2 {
            sleep(comm, TIMEOUT);
        }
        let short = comm.with_timeout(Duration::from_millis(400));
        short.all_reduce(&mut [1u8; 9], ReduceOp::Sum)
    });
    let text = timeout_text(&ends[0]);
    assert!(
        text.contains("after 0.4 s: rank 2 has made no call yet"),
        "{text}"
    );
}
