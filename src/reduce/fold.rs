//! Contains the reduction loops. They are generic code that is compiled for each element type,
//! operator and instruction set.

use super::cell::Cell;
use super::number::{Number, Operator, Scale};
use crate::sys::simd::{Body, Isa, Level};
use std::marker::PhantomData;

/// The arguments of a call of [`super::Kernel::fold`], which has already checked them.
pub(super) struct Task<'a> {
    pub(super) destination: &'a mut [u8],
    pub(super) own: Option<usize>,
    pub(super) sources: &'a [&'a [u8]],
    pub(super) divisor: Option<u32>,
}

/// A kernel's entry point.
pub(super) type Entry = fn(Level, Task<'_>);

/// Reduces cells of type `C` with operator `O`.
pub(super) fn fold<C: Cell, O: Operator<C::Wide>>(level: Level, task: Task<'_>) {
    level.run(Fold::<C, O> {
        task,
        types: PhantomData,
    });
}

/// Multiplies `bytes` by `factor` in place.
pub(super) fn scale<C: Cell>(level: Level, bytes: &mut [u8], factor: f64)
where
    C::Wide: Scale,
{
    level.run(Scaling::<C> {
        bytes,
        factor,
        types: PhantomData,
    });
}

struct Scaling<'a, C> {
    bytes: &'a mut [u8],
    factor: f64,
    types: PhantomData<C>,
}

impl<C: Cell> Body for Scaling<'_, C>
where
    C::Wide: Scale,
{
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let factor = self.factor;
        let scaled = |cell| C::store(isa, C::load(isa, cell).scale(factor));
        let whole = self.bytes.len() - self.bytes.len() % size_of::<C::Bytes>();
        let (whole, rest) = self.bytes.split_at_mut(whole);
        for cell in bytemuck::cast_slice_mut(whole) {
            *cell = scaled(*cell);
        }
        if !rest.is_empty() {
            let mut cell: C::Bytes = bytemuck::Zeroable::zeroed();
            bytemuck::bytes_of_mut(&mut cell)[..rest.len()].copy_from_slice(rest);
            rest.copy_from_slice(&bytemuck::bytes_of(&scaled(cell))[..rest.len()]);
        }
    }
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

/// Reduces the operands. After the last combination and before rounding, applies `finish`, which
/// divides or does nothing.
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
    let destination = bytemuck::cast_slice_mut(destination);
    tiles::<C, O, I>(isa, destination, own, sources, finish);
}

/// Reduces the operands tile by tile. Each tile stays in registers from its first operand to its
/// last.
#[inline(always)]
fn tiles<C: Cell, O: Operator<C::Wide>, I: Isa>(
    isa: I,
    destination: &mut [C::Bytes],
    own: Option<usize>,
    sources: &[&[u8]],
    finish: impl Fn(C::Wide) -> C::Wide + Copy,
) {
    let tile_cells = size_of::<C::Tile>() / size_of::<C::Wide>();
    let mut start = 0;
    let mut whole = destination.chunks_exact_mut(tile_cells);
    for tile in &mut whole {
        fold_tile::<C, O, I>(isa, tile, start, own, sources, finish);
        start += size_of_val(tile);
    }
    for cell in whole.into_remainder().chunks_exact_mut(1) {
        fold_tile::<C, O, I>(isa, cell, start, own, sources, finish);
        start += size_of_val(cell);
    }
}

#[inline(always)]
fn fold_tile<C: Cell, O: Operator<C::Wide>, I: Isa>(
    isa: I,
    destination: &mut [C::Bytes],
    start: usize,
    own: Option<usize>,
    sources: &[&[u8]],
    finish: impl Fn(C::Wide) -> C::Wide + Copy,
) {
    let bytes = start..start + size_of_val(destination);
    let mut tile = C::TILE;
    let tile = &mut tile.as_mut()[..destination.len()];
    // The first two operands may be swapped, so the destination's content is never combined first.
    let (before, after) = sources.split_at(own.map_or(sources.len(), |own| own.max(1)));
    let first = loads::<C, I>(isa, &before[0][bytes.clone()]);
    for (wide, first) in tile.iter_mut().zip(first) {
        *wide = first;
    }
    for source in &before[1..] {
        combine::<C, O, I>(isa, tile, &source[bytes.clone()]);
    }
    if own.is_some() {
        combine::<C, O, I>(isa, tile, bytemuck::cast_slice(destination));
    }
    for source in after {
        combine::<C, O, I>(isa, tile, &source[bytes.clone()]);
    }
    for (cell, wide) in destination.iter_mut().zip(tile) {
        *cell = C::store(isa, finish(*wide));
    }
}

#[inline(always)]
fn combine<C: Cell, O: Operator<C::Wide>, I: Isa>(isa: I, tile: &mut [C::Wide], operand: &[u8]) {
    for (wide, right) in tile.iter_mut().zip(loads::<C, I>(isa, operand)) {
        *wide = O::combine(*wide, right);
    }
}

/// Iterates over the operands in order.
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

/// Loads the values of complete cells.
#[inline(always)]
fn loads<C: Cell, I: Isa>(isa: I, bytes: &[u8]) -> impl Iterator<Item = C::Wide> {
    bytemuck::cast_slice::<u8, C::Bytes>(bytes)
        .iter()
        .map(move |&cell| C::load(isa, cell))
}

/// Reduces the elements after the last complete cell. They begin at byte `start` of the operands
/// and are padded with zeros to a complete cell.
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
