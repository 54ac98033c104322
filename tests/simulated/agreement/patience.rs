//! Tests calls with an individual timeout, and calls without a timeout.

use super::{registry, run_timed};
use ringtree::plan::{Algorithm, Collective};
use ringtree::sim::{World, sleep};
use ringtree::{Communicator, Error, ErrorKind, ReduceOp, Result};
use std::time::Duration;

/// A duration longer than any timeout.
const LONG: Duration = Duration::from_secs(600);
const TIMEOUT: Duration = Duration::from_secs(5);
/// A duration longer than a rank takes to notice a failure and to notify the others.
const SOON: Duration = Duration::from_secs(3);

/// Returns the text of a timeout error. Panics unless `end` is one.
fn timeout_text<R: std::fmt::Debug>(end: &Result<R>) -> String {
    match end {
        Err(error) if error.kind() == ErrorKind::Deadline => error.to_string(),
        other => panic!("no timeout: {other:?}"),
    }
}

fn world(world_size: usize, algorithm: Option<Algorithm>) -> World {
    let mut world = World::new(world_size);
    world.timeout = TIMEOUT;
    world.algorithm = algorithm;
    world
}

#[test]
fn untimed_call_waits_longer_than_the_timeout() {
    for (collective, algorithm) in registry() {
        if collective != Collective::Broadcast {
            continue;
        }
        let (ends, took) = run_timed(&world(5, Some(algorithm)), |comm| {
            let mut request = [0u32];
            for number in 1..=2 {
                if comm.rank() == 3 {
                    sleep(comm, LONG);
                    request = [number];
                    comm.broadcast(&mut request, 3)?;
                } else {
                    comm.without_timeout().broadcast(&mut request, 3)?;
                    assert_eq!(request, [number]);
                }
                comm.all_reduce(&mut request, ReduceOp::Sum)?;
            }
            Ok::<_, Error>(request[0])
        });
        assert_eq!(ends, vec![Ok(10); 5], "{algorithm}");
        assert!(
            took >= 2 * LONG && took < 2 * LONG + SOON,
            "it took {took:?}"
        );
    }
}

#[test]
fn untimed_barrier_completes_after_waiting_for_hours() {
    let hours = Duration::from_secs(6 * 3600);
    let (ends, took) = run_timed(&world(3, None), |comm| {
        if comm.rank() == 0 {
            sleep(comm, hours);
        }
        // Ranks 1 and 2 wait for each other's answers and for rank 0.
        comm.without_timeout().barrier()
    });
    assert_eq!(ends, [Ok(()), Ok(()), Ok(())]);
    assert!(took < hours + SOON, "it took {took:?}");
}

#[test]
fn first_timed_call_starts_the_timeout_of_all_ranks() {
    // The root's call completes as soon as it has sent its few bytes, so its own timeout no longer
    // runs. Before the root's call, the other ranks have waited for a long time, or too briefly to
    // have reported that they wait.
    for before in [Duration::ZERO, Duration::from_millis(10), LONG] {
        for (collective, algorithm) in registry() {
            if collective != Collective::Broadcast {
                continue;
            }
            let (ends, took) = run_timed(&world(8, Some(algorithm)), |comm| {
                match comm.rank() {
                    // This rank issues no call in time.
                    4 => {
                        sleep(comm, 4 * LONG);
                        comm.barrier()
                    }
                    0 => {
                        sleep(comm, before);
                        let of_root = comm.broadcast(&mut [1u8; 16], 0);
                        sleep(comm, LONG);
                        of_root.and_then(|()| comm.barrier())
                    }
                    _ => {
                        let patient = comm.without_timeout();
                        patient.broadcast(&mut [0u8; 16], 0)?;
                        patient.barrier()
                    }
                }
            });
            assert!(took < 4 * LONG + SOON, "{algorithm}: it took {took:?}");
            let text = timeout_text(&ends[0]);
            assert!(text.contains("rank 4 has"), "{algorithm}: {text}");
            assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
        }
    }
}

#[test]
fn untimed_wait_in_a_later_call_does_not_hide_an_earlier_one() {
    let (ends, _) = run_timed(&world(4, Some(Algorithm::Binomial)), |comm| {
        let patient = comm.without_timeout();
        match comm.rank() {
            // Rank 0 sends to ranks 1 and 2, and its call completes. Its own timeout no longer
            // runs.
            0 => {
                let of_root = comm.broadcast(&mut [1u8; 16], 0);
                sleep(comm, 4 * LONG);
                of_root.and_then(|()| comm.barrier())
            }
            // Rank 2 issues no call in time.
            2 => {
                sleep(comm, 4 * LONG);
                comm.barrier()
            }
            // Rank 1 waits in the barrier first. Later, rank 3 waits in the broadcast, because it
            // gets the request through rank 2.
            rank => {
                sleep(comm, if rank == 3 { LONG } else { Duration::ZERO });
                patient.broadcast(&mut [0u8; 16], 0)?;
                patient.barrier()
            }
        }
    });
    for end in [&ends[1], &ends[3]] {
        let text = timeout_text(end);
        assert!(text.contains("rank 2 has"), "{text}");
    }
}

#[test]
fn timeout_set_by_another_rank_names_that_rank() {
    let (ends, took) = run_timed(&world(8, Some(Algorithm::Binomial)), |comm| {
        let mut request = [comm.rank() as u8; 16];
        match comm.rank() {
            4 => {
                sleep(comm, 2 * LONG);
                comm.barrier()
            }
            0 => {
                sleep(comm, LONG);
                let sent = comm.with_timeout(2 * TIMEOUT).broadcast(&mut request, 0);
                sent.and_then(|()| comm.without_timeout().barrier())
            }
            // In the binomial tree, ranks 5, 6 and 7 get the request through rank 4. The other
            // ranks continue.
            _ => {
                comm.without_timeout().broadcast(&mut request, 0)?;
                comm.without_timeout().barrier()
            }
        }
    });
    // Rank 4 sleeps for 2 × LONG.
    assert!(took < 2 * LONG + SOON, "it took {took:?}");
    let text = timeout_text(&ends[0]);
    for part in [
        "timed out in broadcast #1 of 16 u8, root 0, by binomial 10.0 s after it learned that \
         rank 0 had made the same call with this timeout",
        "rank 4 has made no call yet",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
}

#[test]
fn shortest_timeout_ends_the_call_and_is_named() {
    for quick in 0..3 {
        let (ends, took) = run_timed(&world(4, None), |comm| {
            if comm.rank() == 3 {
                sleep(comm, LONG);
                return comm.barrier();
            }
            let seconds = if comm.rank() == quick { 2 } else { 600 };
            let view = comm.with_timeout(Duration::from_secs(seconds));
            assert_eq!(view.timeout(), Duration::from_secs(seconds));
            view.all_reduce(&mut [1.0f32; 100], ReduceOp::Sum)
        });
        assert!(took < LONG + SOON, "it took {took:?}");
        let text = timeout_text(&ends[0]);
        assert!(
            text.contains(&format!("rank {quick} timed out in all-reduce #1")),
            "{text}"
        );
        assert!(
            text.contains("after 2.0 s: rank 3 has made no call yet"),
            "{text}"
        );
        assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
    }
}

#[test]
fn calls_of_all_views_share_one_order() {
    let ends = world(3, None).run(|comm| {
        let (short, patient) = (comm.with_timeout(TIMEOUT / 2), comm.without_timeout());
        let work = short.start_all_reduce(vec![1u64; 4], ReduceOp::Sum)?;
        patient.barrier()?;
        let mut own = [comm.rank() as u32; 2];
        patient.scope(|scope| scope.broadcast(&mut own, 2)?.wait())?;
        let (next, previous) = ((comm.rank() + 1) % 3, (comm.rank() + 2) % 3);
        let mut number = [0u8];
        match comm.rank() {
            0 => comm
                .send(&[7u8], next)
                .and_then(|()| patient.recv(&mut number, previous)),
            _ => {
                patient.recv(&mut number, previous)?;
                short.send(&number, next)
            }
        }?;
        let other = short.duplicate()?;
        assert_eq!(other.timeout(), TIMEOUT / 2);
        other.barrier()?;
        Ok::<_, Error>((work.wait()?[0], own[0], number[0]))
    });
    assert_eq!(ends, vec![Ok((3, 2, 7)); 3]);
}

/// Waits in a call without a timeout.
fn wait_untimed(comm: &Communicator) -> Result<()> {
    comm.without_timeout().broadcast(&mut [0u8; 3], 0)
}

#[test]
fn death_is_reported_immediately_to_untimed_calls() {
    for dead in 0..4 {
        let mut world = world(4, None);
        world.network.faults.deaths = vec![(dead, LONG)];
        let ends = world.run(|comm| {
            if comm.rank() == 0 {
                sleep(comm, 2 * LONG);
            }
            (wait_untimed(comm), comm.clock())
        });
        let ends = ends.into_iter().enumerate();
        for (rank, (end, at)) in ends.filter(|(rank, _)| *rank != dead) {
            // Rank 0 learns of the death when it issues its call.
            let due = if rank == 0 { 2 * LONG } else { LONG };
            assert!(at < due + SOON, "rank {rank}: {at:?}");
            let text = end.unwrap_err().to_string();
            assert!(
                text.contains(&format!("rank {dead} is gone")),
                "rank {rank}: {text}"
            );
        }
    }
}

#[test]
fn mismatch_is_reported_to_untimed_calls() {
    // No rank sends a byte, because each waits for the other as the root.
    let (ends, took) = run_timed(&world(2, None), |comm| {
        sleep(comm, LONG * comm.rank() as u32);
        comm.without_timeout()
            .broadcast(&mut [0u8], 1 - comm.rank())
    });
    assert!(took < LONG + SOON, "it took {took:?}");
    for end in ends {
        assert!(
            matches!(&end, Err(error) if error.kind() == ErrorKind::Mismatch),
            "{end:?}"
        );
    }
}

#[test]
fn dropped_untimed_work_ends_with_its_communicator() {
    let (ends, took) = run_timed(&world(2, None), |comm| {
        if comm.rank() == 1 {
            sleep(comm, LONG);
            return Ok(());
        }
        drop(comm.without_timeout().start_broadcast(vec![0u8], 1)?);
        Ok::<_, Error>(())
    });
    assert_eq!(ends, [Ok(()), Ok(())]);
    assert!(took < LONG + SOON, "it took {took:?}");
}
