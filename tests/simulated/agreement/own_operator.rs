//! Tests all-reduce with a custom operator.

use ringtree::sim::World;
use ringtree::{Communicator, Error, Result};

/// Returns the last operand that is not zero. The operator is associative but not commutative, so
/// its result depends on the order of the operands.
fn last_nonzero(left: u32, right: u32) -> u32 {
    if right == 0 { left } else { right }
}

fn contribution(rank: usize, index: usize) -> u32 {
    let is_nonzero = !(rank * 7 + index).is_multiple_of(3);
    if is_nonzero {
        (rank * 1_000_000 + index + 1) as u32
    } else {
        0
    }
}

#[test]
fn custom_operator_is_applied_in_rank_order() {
    for world_size in [1, 2, 3, 5] {
        for count in [0, 1, 1000, 300_001] {
            let ends = World::new(world_size).run(|comm| {
                let element = |index| contribution(comm.rank(), index);
                let mut numbers: Vec<_> = (0..count).map(element).collect();
                comm.all_reduce_with(&mut numbers, "last", last_nonzero)?;
                Ok::<_, Error>(numbers)
            });
            let fold = |index| {
                let operands = (0..world_size).map(|rank| contribution(rank, index));
                operands.reduce(last_nonzero).unwrap()
            };
            let expected: Vec<_> = (0..count).map(fold).collect();
            assert!(ends.iter().all(|end| end.as_ref() == Ok(&expected)));
        }
    }
}

#[test]
fn different_operators_are_named_on_every_rank() {
    fn reduce(comm: &Communicator, case: usize) -> Result<()> {
        let is_odd = comm.rank() == 1;
        match case {
            0 if is_odd => comm.all_reduce_with(&mut [1u32; 5], "least", u32::min),
            1 if is_odd => comm.all_reduce_with(&mut [1u32; 6], "last", last_nonzero),
            2 if is_odd => comm.all_reduce_with(&mut [1i64; 5], "last", i64::max),
            _ => comm.all_reduce_with(&mut [1u32; 5], "last", last_nonzero),
        }
    }
    let descriptions = ["5 u32 by 'least'", "6 u32 by 'last'", "5 i64 by 'last'"];
    for (case, other) in descriptions.into_iter().enumerate() {
        for end in World::new(3).run(|comm| reduce(comm, case)) {
            let line = end.unwrap_err().to_string();
            let expected = format!("rank 0 reduces 5 u32 by 'last', but rank 1 reduces {other};");
            assert!(line.starts_with(&expected), "{line}");
        }
    }
}

#[test]
fn operator_panic_on_one_rank_does_not_block_others() {
    let ends = World::new(3).run(|comm| {
        let combine = |left: u64, right: u64| {
            assert!(comm.rank() != 1 || left < 2_500_000, "never");
            left + right
        };
        let mut numbers: Vec<u64> = (1_000_000..1_400_000).collect();
        let end = comm.all_reduce_with(&mut numbers, "sum", combine);
        comm.barrier()?;
        Ok::<_, Error>((end, numbers[399_999]))
    });
    let [first, second, third] = ends.try_into().unwrap();
    assert_eq!(first, Ok((Ok(()), 3 * 1_399_999)));
    assert_eq!(first, third);
    let line = second.unwrap().0.unwrap_err().to_string();
    assert_eq!(line, "the operator 'sum' panicked on rank 1");
}
