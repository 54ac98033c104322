//! Ranks that make different calls.

use super::{registry, run_timed};
use ringtree::plan::{Algorithm, Collective};
use ringtree::sim::World;
use ringtree::{Communicator, ErrorKind, Layout, ReduceOp, Result};
use std::time::Duration;

/// Waiting a second before asking, and what the answer takes.
const SOON: Duration = Duration::from_secs(3);

type Code<'a> = &'a (dyn Fn(&Communicator) -> Result<()> + Sync);

/// Call #1 is the same on all ranks, #2 is `odd` on rank `who` and `even` on the others, barriers
/// follow. Returns the error that all ranks must have got, whatever came first on each.
fn disagree(world_size: usize, who: usize, even: Code<'_>, odd: Code<'_>) -> String {
    let world = World::new(world_size);
    let (ends, took) = run_timed(&world, |comm| {
        comm.barrier()?;
        let mine = if comm.rank() == who { odd } else { even };
        let first = mine(comm)
            .and_then(|()| comm.barrier())
            .and_then(|()| comm.barrier());
        let again = comm.all_reduce(&mut [1u8], ReduceOp::Sum);
        assert_eq!(first, again, "every later call gets the same first cause");
        first
    });
    assert!(took < SOON, "it took {took:?}");
    let Err(error) = &ends[0] else {
        panic!("no mismatch: {:?}", ends[0]);
    };
    assert!(error.kind() == ErrorKind::Mismatch, "{error:?}");
    let text = error.to_string();
    for end in &ends {
        assert_eq!(*end, ends[0], "all ranks get the same first cause");
    }
    let (low, high) = (error.rank().unwrap(), error.peer().unwrap());
    assert!(low < high && (low == who || high == who), "{error:?}");
    assert_eq!(error.sequence(), Some(2), "{error:?}");
    text
}

/// As [`disagree`], in worlds of several sizes, each rank in turn being the odd one; the error
/// must name both calls in full, and the odd rank.
fn expect(even: Code<'_>, odd: Code<'_>, even_call: &str, odd_call: &str) {
    for world_size in [2, 3, 5] {
        for who in 0..world_size {
            let text = disagree(world_size, who, even, odd);
            let odd_part = format!("rank {who} {odd_call}");
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
fn different_operators() {
    let odd = |comm: &Communicator| comm.all_reduce(&mut [1.0f32; 100], ReduceOp::Max);
    expect(&sum, &odd, SUM, "all-reduce #2 of 100 f32, max, by ");
}

#[test]
fn different_types_of_the_same_size() {
    let odd = |comm: &Communicator| comm.all_reduce(&mut [1i32; 100], ReduceOp::Sum);
    expect(&sum, &odd, SUM, "all-reduce #2 of 100 i32, sum, by ");
}

#[test]
fn different_counts() {
    for count in [99, 101, 100_000] {
        let odd =
            move |comm: &Communicator| comm.all_reduce(&mut vec![1.0f32; count], ReduceOp::Sum);
        let call = format!("all-reduce #2 of {count} f32, sum, by ");
        expect(&sum, &odd, SUM, &call);
    }
}

#[test]
fn nothing_on_one_rank_only() {
    let odd = |comm: &Communicator| comm.all_reduce(&mut [0.0f32; 0], ReduceOp::Sum);
    expect(&sum, &odd, SUM, "all-reduce #2 of 0 f32, sum, by ");
}

#[test]
fn different_collectives() {
    let odd = |comm: &Communicator| comm.reduce_scatter(&mut [1.0f32; 100], ReduceOp::Sum);
    expect(&sum, &odd, SUM, "reduce-scatter #2 of 100 f32, sum, by ");
    let odd = |comm: &Communicator| comm.all_gather(&mut [1.0f32; 100]);
    expect(&sum, &odd, SUM, "all-gather #2 of 100 f32, by ");
    let odd = |comm: &Communicator| {
        let counts = vec![1; comm.world_size()];
        let (input, mut output) = (vec![1u8; counts.len()], vec![0u8; counts.len()]);
        let counts = Layout::Counts(&counts);
        comm.all_to_all_into(&counts.of(&input), &mut counts.of(&mut output))
    };
    let agreement = "all-to-all #2 by counts (agreeing on the counts)";
    expect(&sum, &odd, SUM, agreement);
}

#[test]
fn another_order() {
    let even = |comm: &Communicator| comm.barrier().and_then(|()| sum(comm));
    let odd = |comm: &Communicator| sum(comm).and_then(|()| comm.barrier());
    expect(&even, &odd, "barrier #2", SUM);
}

#[test]
fn another_algorithm_on_one_rank() {
    let with = |algorithm| {
        move |comm: &Communicator| {
            comm.use_algorithm(Some(algorithm))?;
            sum(comm)
        }
    };
    expect(
        &with(Algorithm::Ring),
        &with(Algorithm::Flat),
        "all-reduce #2 of 100 f32, sum, by ring",
        "all-reduce #2 of 100 f32, sum, by flat",
    );
}

#[test]
fn different_roots() {
    for world_size in [3, 4, 6] {
        for who in 0..world_size {
            let root = |root| {
                move |comm: &Communicator| comm.broadcast(&mut [1u64; 10], root % world_size)
            };
            let text = disagree(world_size, who, &root(1), &root(2));
            assert!(text.contains("broadcast #2 of 10 u64, root 1"), "{text}");
            let other = format!("rank {who} broadcast #2 of 10 u64, root {}", 2 % world_size);
            assert!(text.contains(&other), "{text}");
        }
    }
}

#[test]
fn roots_that_leave_everybody_waiting_without_a_frame() {
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
fn no_byte_of_another_call_is_stored_or_folded() {
    for (collective, algorithm) in registry() {
        if collective == Collective::Barrier {
            continue;
        }
        let mut world = World::new(2);
        world.algorithm = Some(algorithm);
        let (ends, _) = run_timed(&world, |comm| {
            let rank = comm.rank();
            let mut data = vec![rank as u32 + 7; 5000];
            // The same bytes on the wire, but for the digest.
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
                "{collective} by {algorithm} stored foreign bytes"
            );
        }
    }
}

#[test]
fn a_receive_of_something_else_than_was_sent() {
    let (ends, took) = run_timed(&World::new(3), |comm| {
        comm.barrier()?;
        match comm.rank() {
            0 => Ok(()),
            1 => comm.send(&[1u8; 5], 2),
            _ => comm.recv(&mut [0u8; 6], 1),
        }?;
        comm.barrier()
    });
    assert!(took < SOON, "it took {took:?}");
    let Err(error) = &ends[0] else {
        panic!("no mismatch: {ends:?}");
    };
    assert!(error.kind() == ErrorKind::Mismatch, "{error:?}");
    let text = error.to_string();
    let told = "rank 1 sends 5 u8 as message #1, and rank 2 receives 6 u8 as message #1";
    assert!(text.contains(told), "{text}");
    assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
}
