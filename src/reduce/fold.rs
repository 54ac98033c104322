//! The loops: one generic source, compiled per element type, operator and instruction set.

use super::cell::Cell;
use super::number::{Number, Operator};
use crate::sys::simd::{Body, Isa, Level};
use std::marker::PhantomData;

/// What one fold works on; [`super::Kernel::fold`] has checked it.
pub(super) struct Task<'a> {
    pub(super) destination: &'a mut [u8],
    pub(super) own: Option<usize>,
    pub(super) sources: &'a [&'a [u8]],
    pub(super) divisor: Option<u32>,
}

/// A kernel's entry point.
pub(super) type Entry = fn(Level, Task<'_>);

/// The fold of `C` by `O`.
pub(super) fn fold<C: Cell, O: Operator<C::Wide>>(level: Level, task: Task<'_>) {
    level.run(Fold::<C, O> {
        task,
        types: PhantomData,
    });
}

struct Fold<'a, C, O> {
    task: Task<'a>,
    types: PhantomData<(C, O)>,
}

impl<C: Cell, O: Operator<C::Wide>> Body for Fold<'_, C, O> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        match self.task.divisor {
            Some(divisor) if O::DIVIDES => {
                let combine = |left, right| O::combine(left, right).divide(divisor);
                passes::<C, O, I>(isa, self.task, combine, |wide| wide.divide(divisor));
            }
            _ => passes::<C, O, I>(isa, self.task, O::combine, |wide| wide),
        }
    }
}

/// `last` is the combination whose result is stored: the operator, then the division if any.
/// `only` does the same for a fold of a single operand.
#[inline(always)]
fn passes<C: Cell, O: Operator<C::Wide>, I: Isa>(
    isa: I,
    task: Task<'_>,
    last: impl Fn(C::Wide, C::Wide) -> C::Wide + Copy,
    only: impl Fn(C::Wide) -> C::Wide + Copy,
) {
    match (task.own, task.sources) {
        // Commutative to the bit, so either order is one loop.
        (Some(0 | 1), [source]) => update::<C, I>(isa, task.destination, source, last),
        (None, [source]) => {
            task.destination.copy_from_slice(source);
            if task.divisor.is_some() {
                update::<C, I>(isa, task.destination, source, |wide, _| only(wide));
            }
        }
        _ => blocks::<C, O, I>(isa, task, last),
    }
}

/// destination[i] = combine(destination[i], source[i]), in one stream.
#[inline(always)]
fn update<C: Cell, I: Isa>(
    isa: I,
    destination: &mut [u8],
    source: &[u8],
    combine: impl Fn(C::Wide, C::Wide) -> C::Wide,
) {
    let whole = destination.len() - destination.len() % size_of::<C::Bytes>();
    let (destination, destination_rest) = destination.split_at_mut(whole);
    let (source, source_rest) = source.split_at(whole);
    let destination: &mut [C::Bytes] = bytemuck::cast_slice_mut(destination);
    for (left, right) in destination.iter_mut().zip(bytemuck::cast_slice(source)) {
        *left = C::store(isa, combine(C::load(isa, *left), C::load(isa, *right)));
    }
    if !destination_rest.is_empty() {
        let left = C::load(isa, padded::<C>(destination_rest));
        let right = C::load(isa, padded::<C>(source_rest));
        put_rest::<C>(C::store(isa, combine(left, right)), destination_rest);
    }
}

/// Folds block by block through an accumulator, so that each operand crosses memory once.
#[inline(always)]
fn blocks<C: Cell, O: Operator<C::Wide>, I: Isa>(
    isa: I,
    task: Task<'_>,
    last: impl Fn(C::Wide, C::Wide) -> C::Wide + Copy,
) {
    let Task {
        destination,
        own,
        sources,
        ..
    } = task;
    let final_operand = sources.len() - usize::from(own.is_none());
    let mut accumulator = C::BLOCK;
    let accumulator = accumulator.as_mut();
    let block_bytes = accumulator.len() * size_of::<C::Bytes>();
    for (block, destination) in destination.chunks_mut(block_bytes).enumerate() {
        let start = block * block_bytes;
        let mut next_source = sources
            .iter()
            .map(|source| &source[start..][..destination.len()]);
        for operand in 0..=final_operand {
            let bytes = match own {
                Some(position) if position == operand => &*destination,
                _ => next_source
                    .next()
                    .expect("invariant: one operand a source, and the own"),
            };
            match operand {
                0 => accumulate::<C, I>(isa, accumulator, bytes, |_, first| first),
                _ if operand < final_operand => {
                    accumulate::<C, I>(isa, accumulator, bytes, O::combine);
                }
                _ => accumulate::<C, I>(isa, accumulator, bytes, last),
            }
        }
        put::<C, I>(isa, accumulator, destination);
    }
}

/// accumulator[i] = combine(accumulator[i], operand[i]).
#[inline(always)]
fn accumulate<C: Cell, I: Isa>(
    isa: I,
    accumulator: &mut [C::Wide],
    operand: &[u8],
    combine: impl Fn(C::Wide, C::Wide) -> C::Wide,
) {
    let whole = operand.len() - operand.len() % size_of::<C::Bytes>();
    let (operand, rest) = operand.split_at(whole);
    let operand: &[C::Bytes] = bytemuck::cast_slice(operand);
    for (wide, bytes) in accumulator.iter_mut().zip(operand) {
        *wide = combine(*wide, C::load(isa, *bytes));
    }
    if !rest.is_empty() {
        let wide = &mut accumulator[operand.len()];
        *wide = combine(*wide, C::load(isa, padded::<C>(rest)));
    }
}

/// destination[i] = accumulator[i], rounded.
#[inline(always)]
fn put<C: Cell, I: Isa>(isa: I, accumulator: &[C::Wide], destination: &mut [u8]) {
    let whole = destination.len() - destination.len() % size_of::<C::Bytes>();
    let (destination, rest) = destination.split_at_mut(whole);
    let destination: &mut [C::Bytes] = bytemuck::cast_slice_mut(destination);
    for (bytes, wide) in destination.iter_mut().zip(accumulator) {
        *bytes = C::store(isa, *wide);
    }
    if !rest.is_empty() {
        put_rest::<C>(C::store(isa, accumulator[destination.len()]), rest);
    }
}

/// The elements of an incomplete cell, followed by zeros.
#[inline(always)]
fn padded<C: Cell>(rest: &[u8]) -> C::Bytes {
    let mut cell: C::Bytes = bytemuck::Zeroable::zeroed();
    bytemuck::bytes_of_mut(&mut cell)[..rest.len()].copy_from_slice(rest);
    cell
}

#[inline(always)]
fn put_rest<C: Cell>(cell: C::Bytes, rest: &mut [u8]) {
    rest.copy_from_slice(&bytemuck::bytes_of(&cell)[..rest.len()]);
}
