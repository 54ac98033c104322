//! Tests `RINGTREE_CHECK=calls`, which makes ranks agree on each call before it starts, and makes a
//! send wait for its receive.

use super::{registry, run_timed};
use ringtree::plan::{Algorithm, Collective};
use ringtree::sim::{World, sleep};
use ringtree::{Communicator, Error, ErrorKind, ReduceOp, Result};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(5);
const SOON: Duration = Duration::from_secs(3);

fn checked(world_size: usize) -> World {
    let mut world = World::new(world_size);
    world.timeout = TIMEOUT;
    world.checks_calls = true;
    world
}

#[test]
fn mismatched_call_leaves_all_buffers_unchanged() {
    for (collective, algorithm) in registry() {
        if collective == Collective::Barrier {
            continue;
        }
        for odd in 0..5 {
            let mut world = checked(5);
            world.algorithm = Some(algorithm);
            let (ends, took) = run_timed(&world, |comm| {
                let rank = comm.rank();
                let mut data = vec![rank as u32 + 7; 5000];
                let op = [ReduceOp::Min, ReduceOp::Max][usize::from(rank == odd)];
                let end = match collective {
                    Collective::AllReduce => comm.all_reduce(&mut data, op),
                    Collective::Reduce => comm.reduce(&mut data, op, 0),
                    Collective::ReduceScatter => comm.reduce_scatter(&mut data, op),
                    _ if rank == odd => comm.all_gather(&mut data[..4999]),
                    Collective::AllGather => comm.all_gather(&mut data),
                    _ => comm.broadcast(&mut data, 0),
                };
                (end, data.iter().all(|value| *value == rank as u32 + 7))
            });
            assert!(took < SOON, "{collective} by {algorithm}: it took {took:?}");
            for (end, is_unchanged) in ends {
                assert!(end.is_err_and(|error| error.kind() == ErrorKind::Mismatch));
                assert!(is_unchanged, "{collective} by {algorithm} changed a buffer");
            }
        }
    }
}

/// Issues calls of every kind, and returns one value from each result.
fn program(comm: &Communicator) -> Result<Vec<u64>> {
    let (rank, size) = (comm.rank(), comm.world_size());
    let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
    let (mut one, mut two, mut own) = ([rank as u64; 3], [1u64; 9], [0u64]);
    let first = comm.start_all_reduce(vec![rank as u64; 4], ReduceOp::Max)?;
    let second = comm.start_broadcast(vec![rank as u64; 4], size - 1)?;
    match rank {
        0 => comm
            .send(&[17u64], next)
            .and_then(|()| comm.recv(&mut own, previous)),
        _ => comm
            .recv(&mut own, previous)
            .and_then(|()| comm.send(&own, next)),
    }?;
    comm.scope(|scope| {
        let work = scope.all_reduce(&mut one, ReduceOp::Sum)?;
        let _ = scope.all_reduce(&mut two, ReduceOp::Sum)?;
        work.wait()
    })?;
    comm.duplicate()?.barrier()?;
    comm.without_timeout().barrier()?;
    let (second, first) = (second.wait()?, first.wait()?);
    Ok(vec![first[0], second[3], own[0], one[2], two[8]])
}

#[test]
fn correct_program_gives_right_results() {
    for world_size in 2..=5 {
        let ends = checked(world_size).run(program);
        let n = world_size as u64;
        assert_eq!(
            ends,
            vec![Ok(vec![n - 1, n - 1, 17, n * (n - 1) / 2, n]); world_size]
        );
    }
}

#[test]
fn rank_death_ends_checked_calls() {
    for dead in 0..3 {
        for at_ms in 0..10 {
            let mut world = checked(3);
            world.network.faults.deaths = vec![(dead, Duration::from_millis(at_ms))];
            let (ends, took) = run_timed(&world, |comm| {
                (0..1000).try_for_each(|_| {
                    sleep(comm, Duration::from_micros(100));
                    program(comm).map(|_| ())
                })
            });
            assert!(took < SOON, "it took {took:?}");
            for (rank, end) in ends
                .into_iter()
                .enumerate()
                .filter(|(rank, _)| *rank != dead)
            {
                let error: Error = end.unwrap_err();
                assert!(
                    error.kind() == ErrorKind::PeerLost && error.peer() == Some(dead),
                    "rank {rank}: {error}"
                );
            }
        }
    }
}

#[test]
fn sends_that_rely_on_link_buffers_are_detected() {
    let exchange = |comm: &Communicator| {
        let (peer, mut number) = (1 - comm.rank(), [0u8]);
        comm.send(&[comm.rank() as u8 + 1], peer)?;
        comm.recv(&mut number, peer)?;
        Ok::<_, Error>(number[0])
    };
    assert_eq!(World::new(2).run(exchange), [Ok(2), Ok(1)]);
    let (ends, took) = run_timed(&checked(2), exchange);
    assert!(took < TIMEOUT + SOON, "it took {took:?}");
    for end in ends {
        let text = end.unwrap_err().to_string();
        assert!(text.contains("; they wait for each other; "), "{text}");
        assert!(!text.contains("made no call"), "{text}");
    }
}

#[test]
fn receive_from_any_rank_gets_its_messages() {
    let ends = checked(4).run(|comm| {
        let mut sum = 0;
        for _ in 0..3 {
            match comm.rank() {
                0 => {
                    for _ in 1..4 {
                        let mut number = [0u8];
                        comm.recv_any(&mut number)?;
                        sum += number[0];
                    }
                }
                rank => comm.send(&[rank as u8], 0)?,
            }
        }
        comm.barrier().map(|()| sum)
    });
    assert_eq!(ends, [Ok(18), Ok(0), Ok(0), Ok(0)]);
}

#[test]
fn send_returns_only_after_its_receive_was_posted() {
    let ends = checked(2).run(|comm| {
        let later = Duration::from_secs(3);
        if comm.rank() == 1 {
            sleep(comm, later);
            return comm.recv(&mut [0u8; 4], 0);
        }
        comm.send(&[1u8; 4], 1)?;
        assert!(comm.clock() >= later);
        Ok(())
    });
    assert_eq!(ends, [Ok(()), Ok(())]);
}

#[test]
fn mismatched_receive_fails_before_any_byte_moves() {
    let (ends, took) = run_timed(&checked(2), |comm| {
        let mut number = [7u16; 3];
        let end = match comm.rank() {
            0 => comm.send(&[1u16; 2], 1),
            _ => comm.recv(&mut number, 0),
        };
        (end, number)
    });
    assert!(took < SOON, "it took {took:?}");
    for (end, number) in ends {
        assert!(end.is_err_and(|error| error.kind() == ErrorKind::Mismatch));
        assert_eq!(number, [7; 3]);
    }
}

#[test]
fn rank_that_issues_no_call_is_named() {
    for missing in 0..4 {
        let mut world = checked(4);
        world.algorithm = Some(Algorithm::Binomial);
        let (ends, _) = run_timed(&world, |comm| {
            if comm.rank() == missing {
                sleep(comm, 3 * TIMEOUT);
            }
            comm.all_reduce(&mut [1u8; 9], ReduceOp::Sum)
        });
        let error = ends[0].clone().unwrap_err();
        assert!(error.kind() == ErrorKind::Deadline, "{error}");
        assert!(
            error.to_string().contains(&format!("rank {missing} has ")),
            "{error}"
        );
        assert_eq!(error.missing(), [missing], "{error}");
    }
}
