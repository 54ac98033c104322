//! Tests messages that are in flight at the same time, are issued and waited for in any order, or
//! are received from any rank.

use super::run_timed;
use crate::long::short_or_long;
use proptest::prelude::*;
use ringtree::internal::sim::SplitMix64;
use ringtree::sim::{Faults, World, sleep};
use ringtree::{Communicator, Error, ErrorKind, ReduceOp, Result};
use std::time::Duration;

const LARGE: usize = 1 << 20;

/// Returns the content of message number `number` from one rank to another.
fn content(from: usize, to: usize, number: usize, count: usize) -> Vec<u32> {
    let start = (from * 1000 + to * 100 + number) as u32;
    (0..count as u32).map(|at| start.wrapping_add(at)).collect()
}

/// Messages of 4 MiB do not fit into any buffer on the way.
#[test]
fn all_ranks_may_send_before_they_receive() {
    for ranks in [2, 3, 5] {
        let ends = World::new(ranks).run(|comm| {
            let rank = comm.rank();
            let others: Vec<_> = (0..ranks).filter(|peer| *peer != rank).collect();
            let own: Vec<_> = (0..ranks).map(|to| content(rank, to, 0, LARGE)).collect();
            let mut theirs = vec![vec![0u32; LARGE]; ranks];
            comm.batch(|group| {
                others
                    .iter()
                    .try_for_each(|to| group.send(&own[*to], *to))?;
                let received = theirs.iter_mut().enumerate();
                let mut received = received.filter(|(from, _)| *from != rank);
                received.try_for_each(|(from, buffer)| group.recv(buffer, from))
            })?;
            let right = |from: &usize| theirs[*from] == content(*from, rank, 0, LARGE);
            Ok::<_, Error>(others.iter().all(right))
        });
        assert_eq!(ends, vec![Ok(true); ranks]);
    }
}

#[test]
fn ring_of_sendrecv_shifts_and_ring_of_one_copies() {
    for ranks in [1, 2, 3, 6] {
        let ends = World::new(ranks).run(|comm| {
            let (rank, mut left) = (comm.rank(), vec![0u32; LARGE / 8]);
            let from = (rank + ranks - 1) % ranks;
            let own = content(rank, 0, 7, left.len());
            comm.sendrecv(&own, (rank + 1) % ranks, &mut left, from)?;
            Ok::<_, Error>(left == content(from, 0, 7, left.len()))
        });
        assert_eq!(ends, vec![Ok(true); ranks]);
    }
    let alone = ringtree::simulate(1, |comm| comm.sendrecv(&[1u8; 3], 0, &mut [0u8; 4], 0));
    let error = alone[0].as_ref().unwrap_err();
    let text = error.to_string();
    assert!(
        error.kind() == ErrorKind::Usage && text.contains("3 u8 to itself, but receives 4 u8"),
        "{text}"
    );
}

/// Rank 1 receives from rank 2 first. Meanwhile, rank 0's message to rank 1 must not block its
/// message to rank 2, because rank 2 needs that message before it sends to rank 1.
#[test]
fn unreceived_message_does_not_block_messages_to_other_ranks() {
    let ends = World::new(3).run(|comm| {
        let mut buffer = vec![0u32; LARGE];
        match comm.rank() {
            0 => {
                let first = comm.start_send(content(0, 1, 0, LARGE), 1)?;
                comm.send(&content(0, 2, 0, LARGE), 2)?;
                first.wait()?;
            }
            1 => {
                comm.recv(&mut buffer, 2)?;
                comm.recv(&mut buffer, 0)?;
            }
            _ => {
                comm.recv(&mut buffer, 0)?;
                comm.send(&buffer, 1)?;
            }
        }
        Ok::<_, Error>(buffer[LARGE - 1])
    });
    let last = |from, to| content(from, to, 0, LARGE)[LARGE - 1];
    assert_eq!(ends, [Ok(0), Ok(last(0, 1)), Ok(last(0, 2))]);
}

#[test]
fn finished_part_can_be_used_while_the_next_is_in_flight() {
    let ends = World::new(2).run(|comm| {
        let mut layers = vec![vec![1.0f32; 5000]; 4];
        let mut total = 0.0;
        comm.scope(|scope| {
            let mut layers = layers.iter_mut();
            let first = layers.next().expect("there are four");
            let mut in_flight = scope.all_reduce(first, ReduceOp::Sum)?;
            for layer in layers {
                let next = scope.all_reduce(layer, ReduceOp::Sum)?;
                let finished = std::mem::replace(&mut in_flight, next).wait()?;
                finished[0] += 1.0;
                total += finished[0] + finished[4999];
            }
            total += in_flight.wait()?[0];
            Ok(())
        })?;
        Ok::<_, Error>((total, layers[0][0], layers[3][0]))
    });
    assert_eq!(ends, vec![Ok((17.0, 3.0, 2.0)); 2]);
}

#[test]
fn failed_operation_returns_its_buffer() {
    let (ends, _) = run_timed(&World::new(2), |comm| {
        // This is more than the links can hold.
        let buffer = vec![0u16; LARGE + comm.rank()];
        let place = buffer.as_ptr();
        let (own, peer) = (comm.rank(), 1 - comm.rank());
        let work = match own {
            0 => comm.start_send(buffer, peer),
            _ => comm.start_recv(buffer, peer),
        };
        let failed = work
            .and_then(ringtree::Work::wait)
            .expect_err("the lengths differ");
        // The group has failed. A rejected call returns its buffer as well.
        let again = comm.start_all_reduce(failed.buffer, ReduceOp::Sum);
        let again = again.map(drop).expect_err("the group has failed");
        assert_eq!(again.error, failed.error);
        let usage = comm
            .start_recv(again.buffer, 7)
            .map(drop)
            .expect_err("no such rank");
        assert!(usage.error.kind() == ErrorKind::Usage);
        (
            failed.error,
            usage.buffer.len(),
            usage.buffer.as_ptr() == place,
        )
    });
    let (error, ..) = &ends[0];
    assert!(error.kind() == ErrorKind::Mismatch, "{error}");
    assert_eq!(
        ends,
        [
            (error.clone(), LARGE, true),
            (error.clone(), LARGE + 1, true)
        ]
    );
}

/// Lets rank 0 receive 20 messages from each other rank. It receives the first message of rank 1
/// with an earlier receive, and the other messages from any rank. Returns the senders of these
/// other messages, in order.
fn received_from_any(world: &World) -> Vec<usize> {
    let ends = world.run(|comm| {
        if comm.rank() > 0 {
            for number in 0..20u64 {
                comm.send(&[comm.rank() as u64, number], 0)?;
            }
            return Ok(Vec::new());
        }
        let early = comm.start_recv(vec![0u64; 2], 1)?;
        let (mut next, mut all) = ([0u64; 3], Vec::new());
        next[1] = 1;
        for _ in 0..39 {
            let mut received = [0u64; 2];
            let from = comm.recv_any(&mut received)?;
            assert_eq!(received, [from as u64, next[from]]);
            next[from] += 1;
            all.push(from);
        }
        assert_eq!(early.wait()?, [1, 0]);
        Ok::<_, Error>(all)
    });
    ends.into_iter().next().expect("rank 0").unwrap()
}

/// The earliest receive gets a rank's next message, whether it names the rank or not.
#[test]
fn receive_from_any_rank_keeps_the_order_of_each_sender() {
    let order = received_from_any(&World::new(3));
    // Both senders make progress: their first messages are among the first five.
    assert!(
        order[..5].contains(&1) && order[..5].contains(&2),
        "{order:?}"
    );
    for seed in 0..20 {
        let mut world = World::new(3);
        world.network.seed = seed;
        world.network.window_bytes = 40 + 10 * seed as usize;
        world.network.faults = Faults {
            delay_max: Duration::from_micros(50 * seed),
            short_io: true,
            ..Faults::default()
        };
        let order = received_from_any(&world);
        assert_eq!(
            order.iter().filter(|from| **from == 1).count(),
            19,
            "seed {seed}"
        );
    }
}

#[test]
fn receive_from_any_rank_fails_on_timeout_death_or_mismatch() {
    let mut world = World::new(3);
    world.timeout = Duration::from_secs(5);
    let (ends, took) = run_timed(&world, |comm| match comm.rank() {
        0 => comm.recv_any(&mut [0u8; 4]).map(drop),
        _ => Ok(()).inspect(|()| sleep(comm, Duration::from_secs(8))),
    });
    assert!(took < Duration::from_secs(20), "{took:?}");
    let error = ends[0].as_ref().unwrap_err();
    assert!(error.kind() == ErrorKind::Deadline, "{error}");
    assert_eq!(error.missing(), [1, 2], "{error}");
    world.network.faults.deaths = vec![(2, Duration::from_secs(1))];
    let (ends, took) = run_timed(&world, |comm| match comm.rank() {
        0 => comm.recv_any(&mut [0u8; 4]).map(drop),
        _ => Ok(()).inspect(|()| sleep(comm, Duration::from_secs(2))),
    });
    assert!(took < Duration::from_secs(4), "{took:?}");
    assert!(
        ends[0]
            .as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::PeerLost && error.peer() == Some(2)),
        "{ends:?}"
    );
    let ends = World::new(2).run(|comm| match comm.rank() {
        0 => comm.recv_any(&mut [0u8; 4]).map(drop),
        _ => comm.send(&[1u8; 5], 0).and_then(|()| comm.barrier()),
    });
    assert!(
        ends[0]
            .as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::Mismatch),
        "{ends:?}"
    );
    let ends = World::new(2).run(|comm| comm.recv_any(&mut [0u8; 0]));
    assert!(
        ends[0]
            .as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::Usage),
        "{ends:?}"
    );
}

/// Workers send one message each and leave at different times.
#[test]
fn receive_from_any_rank_continues_after_senders_have_left() {
    let ends = World::new(4).run(|comm| {
        let rank = comm.rank();
        if rank > 0 {
            sleep(comm, Duration::from_secs(rank as u64));
            return comm.send(&[rank as u32], 0).map(|()| 0);
        }
        let mut sum = 0;
        for _ in 1..4 {
            let mut one = [0u32];
            comm.recv_any(&mut one)?;
            sum += one[0];
        }
        // No remaining rank could send.
        let end = comm.recv_any(&mut [0u32]);
        assert!(
            end.as_ref()
                .is_err_and(|error| error.kind() == ErrorKind::PeerLost),
            "{end:?}"
        );
        Ok(sum)
    });
    assert_eq!(ends, [Ok(6), Ok(0), Ok(0), Ok(0)]);
}

/// One message of a program that all ranks know.
#[derive(Clone, Copy, Debug)]
struct Sent {
    from: usize,
    to: usize,
    number: usize,
    count: usize,
}

fn program(ranks: usize, messages: usize, seed: u64) -> Vec<Sent> {
    let mut chance = SplitMix64::new(seed);
    let mut numbers = vec![0; ranks * ranks];
    (0..messages)
        .map(|_| {
            let from = chance.below(ranks as u64) as usize;
            let to = (from + 1 + chance.below(ranks as u64 - 1) as usize) % ranks;
            numbers[from * ranks + to] += 1;
            let count = [0, 1, 7, 300, 20_000][chance.below(5) as usize];
            let number = numbers[from * ranks + to];
            Sent {
                from,
                to,
                number,
                count,
            }
        })
        .collect()
}

/// Runs a rank's part of the program with asynchronous calls. Sleeps at random times, and finally
/// waits for all operations in random order. Returns `true` if every message arrived unchanged.
fn run_program(comm: &Communicator, program: &[Sent], seed: u64) -> Result<bool> {
    let (rank, mut is_right) = (comm.rank(), true);
    let mut chance = SplitMix64::new(seed ^ rank as u64);
    let (mut sends, mut receives) = (Vec::new(), Vec::new());
    for sent in program
        .iter()
        .filter(|sent| sent.from == rank || sent.to == rank)
    {
        let Sent {
            from,
            to,
            number,
            count,
        } = *sent;
        let expected = content(from, to, number, count);
        if from == rank {
            sends.push(comm.start_send(expected, to)?);
        } else {
            let buffer = vec![0u32; count].into_boxed_slice();
            receives.push((comm.start_recv(buffer, from)?, expected));
        }
        // Sleep at random while operations are in flight.
        if chance.below(4) == 0 && !sends.is_empty() && sends.len() == receives.len() {
            sleep(comm, Duration::from_micros(chance.below(300)));
        }
    }
    while !sends.is_empty() || !receives.is_empty() {
        let at = chance.below((sends.len() + receives.len()) as u64) as usize;
        if at < sends.len() {
            sends.swap_remove(at).wait()?;
        } else {
            let (work, expected) = receives.swap_remove(at - sends.len());
            is_right &= *work.wait()? == *expected;
        }
    }
    comm.barrier()?;
    Ok(is_right)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(short_or_long(24, 480)))]

    #[test]
    fn concurrent_messages_arrive_unchanged(
        ranks in 2usize..7,
        messages in 1usize..40,
        window_bytes in prop::sample::select(vec![33usize, 64, 1000, 1 << 18]),
        seed: u64,
        short_io: bool,
        delay_us in 0u64..300,
    ) {
        let mut world = World::new(ranks);
        world.network.seed = seed;
        world.network.window_bytes = window_bytes;
        world.timeout = Duration::from_secs(60);
        world.network.faults = Faults {
            delay_max: Duration::from_micros(delay_us),
            short_io,
            ..Faults::default()
        };
        let program = program(ranks, messages, seed);
        let ends = world.run(|comm| run_program(comm, &program, seed));
        prop_assert_eq!(ends, vec![Ok(true); ranks]);
    }
}

#[test]
fn messages_with_equal_numbers_from_two_ranks_are_not_compared() {
    let ends = World::new(3).run(|comm| match comm.rank() {
        0 => {
            comm.send(&[7u32], 2)?;
            comm.barrier()
        }
        1 => {
            // Long enough for rank 2 to ask the coordinator, rank 0, for its position.
            sleep(comm, Duration::from_secs(30));
            comm.send(&[1u32; 20_000], 2)?;
            comm.barrier()
        }
        _ => {
            comm.recv(&mut [0u32], 0)?;
            comm.recv(&mut vec![0u32; 20_000], 1)?;
            comm.barrier()
        }
    });
    assert_eq!(ends, [Ok(()), Ok(()), Ok(())]);
}

#[test]
fn receive_from_any_rank_fails_when_the_last_sender_has_left() {
    let ends = World::new(2).run(|comm| match comm.rank() {
        0 => comm.recv_any(&mut [0u8; 4]).map(drop),
        _ => Ok(()),
    });
    let error = ends[0].clone().unwrap_err().to_string();
    let text = "rank 1 left after call #0, but rank 0 still needs it for a receive from any rank; \
                every send needs a matching receive, and every receive needs a matching send";
    assert_eq!(error, text);
}
