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
                passes::<C, O, I>(isa, self.task, |wide| wide.divide(divisor));
            }
            _ => passes::<C, O, I>(isa, self.task, |wide| wide),
        }
    }
}

/// `finish` is what happens between the last combination and the rounding: nothing, or a division.
#[inline(always)]
fn passes<C: Cell, O: Operator<C::Wide>, I: Isa>(
    isa: I,
    task: Task<'_>,
    finish: impl Fn(C::Wide) -> C::Wide + Copy,
) {
    let Task {
        destination,
        own,
        sources,
        ..
    } = task;
    let rest_start = destination.len() - destination.len() % size_of::<C::Bytes>();
    let (destination, rest) = destination.split_at_mut(rest_start);
    if !rest.is_empty() {
        fold_rest::<C, O, I>(isa, rest, rest_start, own, sources, finish);
    }
    let destination: &mut [C::Bytes] = bytemuck::cast_slice_mut(destination);
    let last = |left, right| finish(O::combine(left, right));
    match (own, sources) {
        // Commutative to the bit, so either order is one loop.
        (Some(0 | 1), [source]) => {
            let source = loads::<C, I>(isa, &source[..rest_start]);
            update::<C, I, _>(isa, destination, source, last);
        }
        // A plain copy never comes here: this one is divided.
        (None, [source]) => {
            destination.copy_from_slice(bytemuck::cast_slice(&source[..rest_start]));
            let nothing = std::iter::repeat(());
            update::<C, I, _>(isa, destination, nothing, |wide, ()| finish(wide));
        }
        (None, [left, right]) => {
            let left = loads::<C, I>(isa, &left[..rest_start]);
            let pairs = left.zip(loads::<C, I>(isa, &right[..rest_start]));
            update::<C, I, _>(isa, destination, pairs, |_, (left, right)| {
                last(left, right)
            });
        }
        _ => blocks::<C, O, I>(isa, destination, own, sources, last),
    }
}

/// Folds block by block through an accumulator, so that each operand crosses memory once. There
/// are at least three operands.
#[inline(always)]
fn blocks<C: Cell, O: Operator<C::Wide>, I: Isa>(
    isa: I,
    destination: &mut [C::Bytes],
    own: Option<usize>,
    sources: &[&[u8]],
    last: impl Fn(C::Wide, C::Wide) -> C::Wide + Copy,
) {
    let final_operand = sources.len() - usize::from(own.is_none());
    let mut accumulator = C::BLOCK;
    let accumulator = accumulator.as_mut();
    let block_cells = accumulator.len();
    for (block, destination) in destination.chunks_mut(block_cells).enumerate() {
        let start = block * block_cells * size_of::<C::Bytes>();
        let own_bytes: &[u8] = bytemuck::cast_slice(destination);
        let mut operands = Operands {
            own,
            own_bytes,
            sources,
            start,
            next: 0,
        };
        let first = loads::<C, I>(isa, operands.take());
        let pairs = first.zip(loads::<C, I>(isa, operands.take()));
        for (wide, (left, right)) in accumulator.iter_mut().zip(pairs) {
            *wide = O::combine(left, right);
        }
        for _ in 2..final_operand {
            let operand = loads::<C, I>(isa, operands.take());
            for (wide, right) in accumulator.iter_mut().zip(operand) {
                *wide = O::combine(*wide, right);
            }
        }
        let left = accumulator.iter().copied();
        if own == Some(final_operand) {
            update::<C, I, _>(isa, destination, left, |own, left| last(left, own));
        } else {
            let source = sources[sources.len() - 1];
            let right = &source[start..][..size_of_val(destination)];
            let pairs = left.zip(loads::<C, I>(isa, right));
            update::<C, I, _>(isa, destination, pairs, |_, (left, right)| {
                last(left, right)
            });
        }
    }
}

/// The operands of a block, in order.
struct Operands<'a> {
    own: Option<usize>,
    own_bytes: &'a [u8],
    sources: &'a [&'a [u8]],
    start: usize,
    next: usize,
}

impl<'a> Operands<'a> {
    #[inline(always)]
    fn take(&mut self) -> &'a [u8] {
        let position = self.next;
        self.next += 1;
        if self.own == Some(position) {
            return self.own_bytes;
        }
        let passed_own = self.own.is_some_and(|own| own < position);
        &self.sources[position - usize::from(passed_own)][self.start..][..self.own_bytes.len()]
    }
}

/// destination[i] = combine(destination[i], others[i]), rounded, in one stream.
#[inline(always)]
fn update<C: Cell, I: Isa, T>(
    isa: I,
    destination: &mut [C::Bytes],
    others: impl Iterator<Item = T>,
    combine: impl Fn(C::Wide, T) -> C::Wide,
) {
    for (bytes, other) in destination.iter_mut().zip(others) {
        *bytes = C::store(isa, combine(C::load(isa, *bytes), other));
    }
}

/// The values of whole cells.
#[inline(always)]
fn loads<C: Cell, I: Isa>(isa: I, bytes: &[u8]) -> impl Iterator<Item = C::Wide> {
    bytemuck::cast_slice::<u8, C::Bytes>(bytes)
        .iter()
        .map(move |&cell| C::load(isa, cell))
}

/// Folds the elements after the last whole cell, `start` bytes from the operands' beginning, as a
/// cell that zeros complete.
#[inline(always)]
fn fold_rest<C: Cell, O: Operator<C::Wide>, I: Isa>(
    isa: I,
    rest: &mut [u8],
    start: usize,
    own: Option<usize>,
    sources: &[&[u8]],
    finish: impl Fn(C::Wide) -> C::Wide,
) {
    let mut operands = Operands {
        own,
        own_bytes: rest,
        sources,
        start,
        next: 0,
    };
    let count = sources.len() + usize::from(own.is_some());
    let mut load_next = || {
        let bytes = operands.take();
        let mut cell: C::Bytes = bytemuck::Zeroable::zeroed();
        bytemuck::bytes_of_mut(&mut cell)[..bytes.len()].copy_from_slice(bytes);
        C::load(isa, cell)
    };
    let first = load_next();
    let folded = (1..count).fold(first, |left, _| O::combine(left, load_next()));
    let cell = C::store(isa, finish(folded));
    rest.copy_from_slice(&bytemuck::bytes_of(&cell)[..rest.len()]);
}
