//! Tests ranks that issue different calls.

use super::{registry, run_timed};
use ringtree::plan::{Algorithm, Collective};
use ringtree::sim::World;
use ringtree::{Communicator, ErrorKind, Layout, ReduceOp, Result};
use std::time::Duration;

/// A duration longer than the second that a rank waits before it asks, plus the time that the
/// answer takes.
const SOON: Duration = Duration::from_secs(3);

type Code<'a> = &'a (dyn Fn(&Communicator) -> Result<()> + Sync);

/// Issues the same call #1 on all ranks. Call #2 is `odd` on rank `odd_rank` and `even` on the
/// others, and barriers follow. Returns the text of the error, which must be the same on all ranks.
fn disagree(world_size: usize, odd_rank: usize, even: Code<'_>, odd: Code<'_>) -> String {
    let world = World::new(world_size);
    let (ends, took) = run_timed(&world, |comm| {
        comm.barrier()?;
        let mine = if comm.rank() == odd_rank { odd } else { even };
        let first = mine(comm)
            .and_then(|()| comm.barrier())
            .and_then(|()| comm.barrier());
        let again = comm.all_reduce(&mut [1u8], ReduceOp::Sum);
        assert_eq!(first, again, "every later call returns the first error");
        first
    });
    assert!(took < SOON, "it took {took:?}");
    let Err(error) = &ends[0] else {
        panic!("no mismatch: {:?}", ends[0]);
    };
    assert!(error.kind() == ErrorKind::Mismatch, "{error:?}");
    let text = error.to_string();
    for end in &ends {
        assert_eq!(*end, ends[0], "all ranks get the same error");
    }
    let (low, high) = (error.rank().unwrap(), error.peer().unwrap());
    assert!(
        low < high && (low == odd_rank || high == odd_rank),
        "{error:?}"
    );
    assert_eq!(error.sequence(), Some(2), "{error:?}");
    text
}

/// Like [`disagree`], but runs in worlds of several sizes, with each rank in turn as the odd one.
/// Asserts that the error quotes both calls in full and names the odd rank.
fn assert_quoted(even: Code<'_>, odd: Code<'_>, even_call: &str, odd_call: &str) {
    for world_size in [2, 3, 5] {
        for odd_rank in 0..world_size {
            let text = disagree(world_size, odd_rank, even, odd);
            let odd_part = format!("rank {odd_rank} {odd_call}");
            assert!(text.contains(&odd_part), "'{odd_part}' in: {text}");
            assert!(text.contains(even_call), "'{even_call}' in: {text}");
        }
    }
}

fn sum(comm: &Communicator) -> Result<()> {
    comm.all_reduce(&mut [1.0f32; 100], ReduceOp::Sum)
}

const SUM: &str = "all-reduce #2 of 100 f32, sum, by ";

#[test]
fn different_operators_are_quoted() {
    let odd = |comm: &Communicator| comm.all_reduce(&mut [1.0f32; 100], ReduceOp::Max);
    assert_quoted(&sum, &odd, SUM, "all-reduce #2 of 100 f32, max, by ");
}

#[test]
fn different_types_of_the_same_size_are_quoted() {
    let odd = |comm: &Communicator| comm.all_reduce(&mut [1i32; 100], ReduceOp::Sum);
    assert_quoted(&sum, &odd, SUM, "all-reduce #2 of 100 i32, sum, by ");
}

#[test]
fn different_counts_are_quoted() {
    for count in [99, 101, 100_000] {
        let odd =
            move |comm: &Communicator| comm.all_reduce(&mut vec![1.0f32; count], ReduceOp::Sum);
        let call = format!("all-reduce #2 of {count} f32, sum, by ");
        assert_quoted(&sum, &odd, SUM, &call);
    }
}

#[test]
fn empty_buffer_on_one_rank_is_quoted() {
    let odd = |comm: &Communicator| comm.all_reduce(&mut [0.0f32; 0], ReduceOp::Sum);
    assert_quoted(&sum, &odd, SUM, "all-reduce #2 of 0 f32, sum, by ");
}

#[test]
fn different_collectives_are_quoted() {
    let odd = |comm: &Communicator| comm.reduce_scatter(&mut [1.0f32; 100], ReduceOp::Sum);
    assert_quoted(&sum, &odd, SUM, "reduce-scatter #2 of 100 f32, sum, by ");
    let odd = |comm: &Communicator| comm.all_gather(&mut [1.0f32; 100]);
    assert_quoted(&sum, &odd, SUM, "all-gather #2 of 100 f32, by ");
    let odd = |comm: &Communicator| {
        let counts = vec![1; comm.world_size()];
        let (input, mut output) = (vec![1u8; counts.len()], vec![0u8; counts.len()]);
        let counts = Layout::Counts(&counts);
        comm.all_to_all_into(&counts.of(&input), &mut counts.of(&mut output))
    };
    let agreement = "all-to-all #2 by counts (agreeing on the counts)";
    assert_quoted(&sum, &odd, SUM, agreement);
}

#[test]
fn different_order_is_quoted() {
    let even = |comm: &Communicator| comm.barrier().and_then(|()| sum(comm));
    let odd = |comm: &Communicator| sum(comm).and_then(|()| comm.barrier());
    assert_quoted(&even, &odd, "barrier #2", SUM);
}

#[test]
fn different_algorithm_on_one_rank_is_quoted() {
    let with = |algorithm| {
        move |comm: &Communicator| {
            comm.use_algorithm(Some(algorithm))?;
            sum(comm)
        }
    };
    assert_quoted(
        &with(Algorithm::Ring),
        &with(Algorithm::Flat),
        "all-reduce #2 of 100 f32, sum, by ring",
        "all-reduce #2 of 100 f32, sum, by flat",
    );
}

#[test]
fn different_roots_are_quoted() {
    for world_size in [3, 4, 6] {
        for odd_rank in 0..world_size {
            let root = |root| {
                move |comm: &Communicator| comm.broadcast(&mut [1u64; 10], root % world_size)
            };
            let text = disagree(world_size, odd_rank, &root(1), &root(2));
            assert!(text.contains("broadcast #2 of 10 u64, root 1"), "{text}");
            let other = format!(
                "rank {odd_rank} broadcast #2 of 10 u64, root {}",
                2 % world_size
            );
            assert!(text.contains(&other), "{text}");
        }
    }
}

#[test]
fn different_roots_with_no_sender_are_a_mismatch() {
    let (ends, took) = run_timed(&World::new(3), |comm| {
        comm.broadcast(&mut [0u8; 4], (comm.rank() + 1) % 3)
    });
    assert!(took < SOON, "it took {took:?}");
    let Err(error) = &ends[0] else {
        panic!("no mismatch: {ends:?}");
    };
    assert!(error.kind() == ErrorKind::Mismatch, "{error:?}");
    let text = error.to_string();
    assert!(
        text.contains("rank 0 broadcast #1 of 4 u8, root 1"),
        "{text}"
    );
    assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
}

#[test]
fn no_byte_of_a_mismatched_call_is_stored_or_reduced() {
    for (collective, algorithm) in registry() {
        if collective == Collective::Barrier {
            continue;
        }
        let mut world = World::new(2);
        world.algorithm = Some(algorithm);
        let (ends, _) = run_timed(&world, |comm| {
            let rank = comm.rank();
            let mut data = vec![rank as u32 + 7; 5000];
            // The calls send the same bytes except for the digest.
            let op = [ReduceOp::Min, ReduceOp::Max][rank];
            let end = match collective {
                Collective::AllReduce => comm.all_reduce(&mut data, op),
                Collective::Reduce => comm.reduce(&mut data, op, 0),
                Collective::ReduceScatter => comm.reduce_scatter(&mut data, op),
                _ if rank == 0 => comm.all_gather(&mut data),
                _ => comm.broadcast(&mut data, 0),
            };
            let end = end.and_then(|()| comm.barrier());
            (end, data.iter().all(|value| *value == rank as u32 + 7))
        });
        for (end, is_unchanged) in ends {
            assert!(
                matches!(&end, Err(error) if error.kind() == ErrorKind::Mismatch),
                "{algorithm}: {end:?}"
            );
            assert!(
                is_unchanged,
                "{collective} by {algorithm} changed the buffer"
            );
        }
    }
}

#[test]
fn receive_that_does_not_match_its_send_is_quoted() {
    let counts = "rank 1 sends 5 u8 as message #1, and rank 2 receives 6 u8 as message #1";
    let tags = "rank 1 sends message #1 with tag 0, and rank 2 receives it with tag 9";
    for (count, tag, expected) in [(6, 0, counts), (5, 9, tags)] {
        let (ends, took) = run_timed(&World::new(3), |comm| {
            comm.barrier()?;
            match comm.rank() {
                0 => Ok(()),
                1 => comm.send(&[1u8; 5], 2),
                _ => comm.with_tag(tag).recv(&mut vec![0u8; count], 1),
            }?;
            comm.barrier()
        });
        assert!(took < SOON, "it took {took:?}");
        let Err(error) = &ends[0] else {
            panic!("no mismatch: {ends:?}");
        };
        assert!(error.kind() == ErrorKind::Mismatch, "{error:?}");
        let text = error.to_string();
        assert!(text.contains(expected), "{text}");
        assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
    }
}
