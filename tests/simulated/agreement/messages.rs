//! Messages under way at once: issued in any order, waited for in any order, from any rank.

use super::run_timed;
use crate::long::short_or_long;
use proptest::prelude::*;
use ringtree::internal::sim::SplitMix64;
use ringtree::sim::{Faults, World, sleep};
use ringtree::{Communicator, Error, ErrorKind, ReduceOp, Result};
use std::time::Duration;

const LARGE: usize = 1 << 20;

/// What message number `number` from one rank to another holds.
fn content(from: usize, to: usize, number: usize, count: usize) -> Vec<u32> {
    let start = (from * 1000 + to * 100 + number) as u32;
    (0..count as u32).map(|at| start.wrapping_add(at)).collect()
}

/// Messages of 4 MiB fit into nothing on the way.
#[test]
fn all_ranks_may_send_first_and_receive_then() {
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
fn a_ring_shifts_at_once_and_a_ring_of_one_copies() {
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
        error.kind() == ErrorKind::Mismatch && text.contains("3 u8 to itself, but receives 4 u8"),
        "{text}"
    );
}

/// Rank 1 receives from rank 2 first. What rank 0 sends it meanwhile must not hold up what rank 0
/// sends rank 2, on which rank 2's message depends.
#[test]
fn a_message_that_is_not_received_yet_holds_up_none_to_another_rank() {
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
fn a_part_that_was_waited_for_is_used_while_the_next_travels() {
    let ends = World::new(2).run(|comm| {
        let mut layers = vec![vec![1.0f32; 5000]; 4];
        let mut total = 0.0;
        comm.scope(|scope| {
            let mut layers = layers.iter_mut();
            let first = layers.next().expect("there are four");
            let mut travels = scope.all_reduce(first, ReduceOp::Sum)?;
            for layer in layers {
                let next = scope.all_reduce(layer, ReduceOp::Sum)?;
                let here = std::mem::replace(&mut travels, next).wait()?;
                here[0] += 1.0;
                total += here[0] + here[4999];
            }
            total += travels.wait()?[0];
            Ok(())
        })?;
        Ok::<_, Error>((total, layers[0][0], layers[3][0]))
    });
    assert_eq!(ends, vec![Ok((17.0, 3.0, 2.0)); 2]);
}

#[test]
fn a_failed_operation_gives_its_buffer_back() {
    let (ends, _) = run_timed(&World::new(2), |comm| {
        // More than the links hold.
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
        // The group has failed; what is refused comes back as well.
        let again = comm.start_all_reduce(failed.buffer, ReduceOp::Sum);
        let again = again.map(drop).expect_err("it has failed");
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

/// Rank 0 receives 20 messages of each other rank, one of rank 1 by a receive that it issued
/// before; the ranks that the others came from.
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
            let mut came = [0u64; 2];
            let from = comm.recv_any(&mut came)?;
            assert_eq!(came, [from as u64, next[from]]);
            next[from] += 1;
            all.push(from);
        }
        assert_eq!(early.wait()?, [1, 0]);
        Ok::<_, Error>(all)
    });
    ends.into_iter().next().expect("rank 0").unwrap()
}

/// The earliest receive gets a rank's next message, whichever kind it is.
#[test]
fn a_receive_from_any_rank_keeps_the_order_of_each_pair() {
    let order = received_from_any(&World::new(3));
    // Each sender gets its turn: none has all its messages received before the other's first.
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
fn a_receive_from_any_rank_ends_with_the_deadline_a_death_or_a_mismatch() {
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

/// Workers that leave when their work is done, at different times.
#[test]
fn ranks_that_have_left_do_not_end_a_receive_from_any_rank() {
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
        // No rank is left that could send.
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

/// A rank's part of the program, by calls of all kinds: what is under way is waited for whenever
/// chance has it, and all of it at the end. Returns whether everything came as it was sent.
fn carry_out(comm: &Communicator, program: &[Sent], seed: u64) -> Result<bool> {
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
        // What is waited for here depends on nothing that is issued later.
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
    fn whatever_is_under_way_comes_as_it_was_sent(
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
        let ends = world.run(|comm| carry_out(comm, &program, seed));
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
fn a_rank_that_waits_for_any_message_hears_that_the_last_sender_has_left() {
    let ends = World::new(2).run(|comm| match comm.rank() {
        0 => comm.recv_any(&mut [0u8; 4]).map(drop),
        _ => Ok(()),
    });
    let error = ends[0].clone().unwrap_err().to_string();
    let text = "rank 1 left after call #0, but rank 0 still needs it for a receive from any rank; \
                every send needs a matching receive, and every receive needs a matching send";
    assert_eq!(error, text);
}
