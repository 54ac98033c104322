//! Tests sums in which each rank's contribution is multiplied by the rank's own factor.

use ringtree::sim::World;
use ringtree::{Communicator, Element, ErrorKind, ReduceOp, Result};

/// Returns a factor, which differs between ranks and between calls. Ranks need not agree on it.
fn factor(rank: usize, call: usize) -> f64 {
    [0.5, -2.0, 0.25][(rank + call) % 3]
}

/// Sums with factors in every form of call, and checks the results.
fn sum_in_every_form<T: Element + From<i8> + Into<f64>>(comm: &Communicator) -> Result<()> {
    let numbers = |rank: usize| (0..1000).map(move |each| ((each * 3 + rank * 4) % 16) as i8);
    let own: Vec<T> = numbers(comm.rank()).map(T::from).collect();
    let sums = |call: usize| {
        let of_rank = |rank| numbers(rank).map(move |one| f64::from(one) * factor(rank, call));
        let first: Vec<f64> = of_rank(0).collect();
        (1..comm.world_size()).fold(first, |sums, rank| {
            sums.iter()
                .zip(of_rank(rank))
                .map(|(sum, term)| sum + term)
                .collect()
        })
    };
    let check = |call, found: &[T], at: std::ops::Range<usize>| {
        let found: Vec<f64> = found.iter().map(|one| (*one).into()).collect();
        assert_eq!(found, sums(call)[at], "call {call}");
    };
    for call in 0..60 {
        let op = ReduceOp::PreMulSum(factor(comm.rank(), call));
        let mut buffer = own.clone();
        match call % 8 {
            0 => comm.all_reduce(&mut buffer, op)?,
            1 => comm.all_reduce_into(&own, &mut buffer, op)?,
            2 => buffer = comm.start_all_reduce(own.clone(), op)?.wait()?,
            3 => {
                buffer = comm
                    .start_all_reduce_into(own.clone(), buffer, op)?
                    .wait()?
                    .1
            }
            4 => {
                let (read, written) = (&own, &mut buffer);
                comm.scope(|scope| scope.all_reduce_into(read, written, op).map(drop))?;
            }
            5 => {
                let shared = comm.alloc::<T>(own.len())?;
                let (input, output) = comm.start_all_reduce_into(shared, buffer, op)?.wait()?;
                assert_eq!(input[..], vec![T::from(0); own.len()]);
                assert!(output.iter().all(|one| *one == T::from(0)));
                continue;
            }
            6 => {
                comm.reduce_scatter(&mut buffer, op)?;
                let block = comm.block(1000);
                check(call, &buffer[block.clone()], block);
                continue;
            }
            _ => {
                comm.reduce_into(&own, &mut buffer, op, 1)?;
                if comm.rank() != 1 {
                    continue;
                }
            }
        }
        check(call, &buffer, 0..1000);
    }
    let expected: Vec<T> = numbers(comm.rank()).map(T::from).collect();
    assert_eq!(own, expected, "calls must not change their input");
    Ok(())
}

#[test]
fn every_call_sums_the_products() {
    assert_eq!(World::new(3).run(sum_in_every_form::<f32>), vec![Ok(()); 3]);
    assert_eq!(World::new(2).run(sum_in_every_form::<f64>), vec![Ok(()); 2]);
    assert_eq!(
        World::new(3).run(sum_in_every_form::<half::bf16>),
        vec![Ok(()); 3]
    );
    assert_eq!(
        World::new(3).run(sum_in_every_form::<half::f16>),
        vec![Ok(()); 3]
    );
}

#[test]
fn rejected_call_changes_no_buffer() {
    let ends = World::new(2).run(|comm| {
        let op = ReduceOp::PreMulSum(0.5);
        let (mut integers, mut floats, mut output) = ([4u32; 4], [4.0f32; 4], [9.0f32; 2]);
        let rejected = [
            comm.all_reduce(&mut integers, op),
            comm.all_reduce_into(&[1u32; 4], &mut integers, op),
            comm.reduce(&mut floats, op, 2),
            comm.all_reduce_into(&[1.0f32; 2], &mut floats, op),
            comm.reduce_scatter_into(&floats, &mut output, op),
        ];
        for end in rejected {
            assert!(
                end.as_ref()
                    .is_err_and(|error| error.kind() == ErrorKind::Usage),
                "{end:?}"
            );
        }
        assert_eq!((integers, floats, output), ([4; 4], [4.0; 4], [9.0; 2]));
        comm.all_reduce(&mut floats, op).map(|()| floats)
    });
    assert_eq!(ends, [Ok([4.0; 4]), Ok([4.0; 4])]);
}
