//! Tests that, with `RINGTREE_REPRODUCIBLE=1`, an element of a sum depends only on its operands.
//!
//! The buffers repeat the same operands, so each operand occurs at every position of buffers of
//! every length. Every result is compared with the rule itself: all contributions are added in rank
//! order, in f32, and rounded once.

mod links;
mod simulated;

use crate::ranks::{ROLE, Suite, exit};
use half::bf16;
use ringtree::{Communicator, Element, ReduceOp, Result};

/// Starts ranks that run this module's `child_entry`.
const SUITE: Suite = Suite(module_path!());

/// Runs the role of a rank that is a process.
#[test]
fn child_entry() {
    match std::env::var(ROLE).as_deref() {
        Ok("sums") => exit(links::every_sum()),
        Ok("largest") => exit(links::largest()),
        _ => {}
    }
}

/// Number of elements after which the operands repeat. No segment, block or piece is a multiple of
/// this number.
const PERIOD: usize = 97;

/// An element type whose sums are rounded.
trait Rounded: Element + PartialEq {
    fn wide(self) -> f32;
    fn rounded(wide: f32) -> Self;
}

impl Rounded for f32 {
    fn wide(self) -> f32 {
        self
    }

    fn rounded(wide: f32) -> Self {
        wide
    }
}

impl Rounded for bf16 {
    fn wide(self) -> f32 {
        self.to_f32()
    }

    fn rounded(wide: f32) -> Self {
        bf16::from_f32(wide)
    }
}

/// Returns the contribution of `rank` to an element. Magnitudes range from 2⁻¹⁰ to 2¹⁰, with both
/// signs.
fn operand<T: Rounded>(rank: usize, element: usize) -> T {
    let hash = ((element % PERIOD) * 1009 + rank + 1) as u64;
    let hash = hash.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(31);
    let hash = hash.wrapping_mul(0xD1B5_4A32_D192_ED03);
    let fraction = 1.0 + (hash >> 41) as f32 / (1u64 << 23) as f32;
    let sign = if hash & 1 == 0 { 1.0 } else { -1.0 };
    T::rounded(sign * fraction * ((hash >> 8 & 31) as f32 - 16.0).exp2().min(1024.0))
}

fn operands<T: Rounded>(rank: usize, count: usize) -> Vec<T> {
    (0..count).map(|element| operand(rank, element)).collect()
}

/// Returns the sums of one period of elements, computed according to the rule.
fn sums<T: Rounded>(world_size: usize, op: ReduceOp) -> Vec<T> {
    let sum = |element| {
        let own = |rank| operand::<T>(rank, element).wide();
        let sum = (1..world_size).fold(own(0), |sum, rank| sum + own(rank));
        match op {
            ReduceOp::Avg => T::rounded(sum / world_size as f32),
            _ => T::rounded(sum),
        }
    };
    (0..PERIOD).map(sum).collect()
}

/// Returns the index of the first element in `part` that violates the rule. In the whole buffer,
/// `part` begins at element `start`.
fn wrong<T: Rounded>(part: &[T], start: usize, sums: &[T]) -> Option<usize> {
    let is_wrong = |(place, element): (usize, &T)| *element != sums[(start + place) % PERIOD];
    part.iter().enumerate().position(is_wrong)
}

/// Runs every call that sums `count` elements, in place and with separate input and output. Returns
/// a description of the first wrong result.
fn every_call<T: Rounded>(
    comm: &Communicator,
    count: usize,
    op: ReduceOp,
) -> Result<Option<String>> {
    let (rank, world_size) = (comm.rank(), comm.world_size());
    let sums = sums::<T>(world_size, op);
    let input = operands::<T>(rank, count);
    let block = comm.block(count);
    let root = count % world_size;
    let mut wrongs = Vec::new();
    let mut check = |what: &str, part: &[T], start: usize| {
        let found = wrong(part, start, &sums);
        wrongs.extend(found.map(|at| format!("{what} of {count}, element {}", start + at)));
    };

    let mut buffer = input.clone();
    comm.all_reduce(&mut buffer, op)?;
    check("all_reduce", &buffer, 0);
    let mut output = vec![T::zeroed(); count];
    comm.all_reduce_into(&input, &mut output, op)?;
    check("all_reduce_into", &output, 0);

    buffer.copy_from_slice(&input);
    comm.reduce_scatter(&mut buffer, op)?;
    check("reduce_scatter", &buffer[block.clone()], block.start);
    let own = &mut output[..block.len()];
    comm.reduce_scatter_into(&input, own, op)?;
    check("reduce_scatter_into", own, block.start);

    buffer.copy_from_slice(&input);
    comm.reduce(&mut buffer, op, root)?;
    comm.reduce_into(&input, &mut output, op, root)?;
    if rank == root {
        check("reduce", &buffer, 0);
        check("reduce_into", &output, 0);
    }
    Ok(wrongs.into_iter().next())
}
