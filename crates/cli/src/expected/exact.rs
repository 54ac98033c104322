//! Generates test data for which the exact result of a reduction is known, for every element type,
//! operator and number of ranks, regardless of the order of the reduction.
//!
//! Each value is a pure function of the seed, the rank and the index. Each rank can therefore
//! generate its own input, and any rank can generate the expected result. No intermediate result
//! needs rounding, because the values are chosen as follows:
//! - The operands of sums are integers whose magnitudes add up to at most 2⁸ across all ranks, so
//!   that every partial sum is exact in bf16 (and in f16, which allows up to 2¹¹). In a large
//!   world, a rank therefore contributes zero at most indices.
//! - All ranks in a `PreMulSum` use the same factor, a power of two close to 1.
//! - The operands of floating-point products are ±1, except for a few that are ±2 or ±½. The
//!   operands of integer products are odd, so that a product never becomes zero.
//! - The operands of minimum, maximum and the bitwise operators are arbitrary bit patterns other
//!   than NaN.
//!
//! The values repeat every [`PERIOD`] elements so that large buffers can be generated and compared
//! at memory speed. The period is a prime number so that misplaced pieces are detected.

use half::{bf16, f16};
use ringtree::{Dtype, Element, ReduceOp, with_element};

/// Number of elements after which the values repeat.
pub const PERIOD: usize = 8191;

/// Maximum number of ranks that contribute a value other than zero at any given index.
const SUM_SPEAKERS_MAX: usize = 64;
/// Largest magnitude of a term. `SUM_SPEAKERS_MAX` such terms add up to 2⁸.
const TERM_MAX: u64 = 4;
/// Maximum number of ranks whose factor has a magnitude other than 1, or that clear or set bits.
/// f16 can represent 2⁸ and its inverse, and an i8 still has unaffected bits.
const FEW_SPEAKERS_MAX: usize = 8;

/// The inputs of all ranks to a reduction, and the result of the reduction.
///
/// ```
/// use ringtree::internal::compute::Kernel;
/// use ringtree_cli::expected::exact::Inputs;
/// use ringtree::{Dtype, ReduceOp};
///
/// let inputs = Inputs::new(Dtype::Bf16, ReduceOp::Sum, 2, 7);
/// let (mut sum, mut other) = ([0; 100], [0; 100]);
/// inputs.fill(0, 0, &mut sum);
/// inputs.fill(1, 0, &mut other);
/// let kernel = Kernel::new(Dtype::Bf16, ReduceOp::Sum).expect("sums are defined for floats");
/// kernel.fold(&mut sum, Some(0), &[&other], None);
/// assert_eq!(inputs.count_wrong(0, &sum), 0);
/// assert_ne!(inputs.count_wrong(0, &other), 0);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Inputs {
    dtype: Dtype,
    op: ReduceOp,
    world_size: usize,
    seed: u64,
}

impl Inputs {
    /// Creates the inputs of `world_size` ranks for `op` on elements of type `dtype`.
    ///
    /// # Panics
    ///
    /// Panics if `op` is not defined for `dtype`, or if `world_size` is 0.
    #[must_use]
    pub fn new(dtype: Dtype, op: ReduceOp, world_size: usize, seed: u64) -> Self {
        assert!(op.supports(dtype), "{op} is not defined for {dtype}");
        assert!(world_size > 0, "the number of ranks must be at least 1");
        Inputs {
            dtype,
            op,
            world_size,
            seed,
        }
    }

    /// Returns the element type.
    #[must_use]
    pub const fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Fills `bytes` with `rank`'s input, starting at index `first_index`.
    pub fn fill(&self, rank: usize, first_index: usize, bytes: &mut [u8]) {
        let tile = self.tile(first_index, bytes.len(), |draw| draw.input(rank));
        for piece in bytes.chunks_mut(tile.len().max(1)) {
            piece.copy_from_slice(&tile[..piece.len()]);
        }
    }

    /// Fills `bytes` with the reduction over all ranks, starting at index `first_index`.
    pub fn expected(&self, first_index: usize, bytes: &mut [u8]) {
        let tile = self.tile(first_index, bytes.len(), Draw::result);
        for piece in bytes.chunks_mut(tile.len().max(1)) {
            piece.copy_from_slice(&tile[..piece.len()]);
        }
    }

    /// Returns the number of elements in `bytes` that differ from the reduction over all ranks,
    /// starting at index `first_index`.
    #[must_use]
    pub fn count_wrong(&self, first_index: usize, bytes: &[u8]) -> usize {
        let tile = self.tile(first_index, bytes.len(), Draw::result);
        count_differences(self.dtype, bytes, &tile)
    }

    /// Returns the number of elements in `bytes` that differ from `rank`'s input, starting at index
    /// `first_index`. Use this for collectives that only transfer data.
    #[must_use]
    pub fn count_wrong_input(&self, rank: usize, first_index: usize, bytes: &[u8]) -> usize {
        let tile = self.tile(first_index, bytes.len(), |draw| draw.input(rank));
        count_differences(self.dtype, bytes, &tile)
    }

    /// Returns the values starting at `first_index`: as many as fit into `len_bytes`, but at most
    /// one period.
    fn tile(
        &self,
        first_index: usize,
        len_bytes: usize,
        value: impl Fn(&Draw) -> Value,
    ) -> Vec<u8> {
        let size = self.dtype.size();
        let count = (len_bytes / size).min(PERIOD);
        let mut tile = vec![0; count * size];
        for (offset, element) in tile.chunks_exact_mut(size).enumerate() {
            let position = (first_index % PERIOD + offset) % PERIOD;
            let draw = Draw {
                inputs: *self,
                position,
            };
            write_value(self.dtype, value(&draw), element);
        }
        tile
    }
}

/// Returns the number of elements in `bytes` that differ from the repeated `tile`.
fn count_differences(dtype: Dtype, bytes: &[u8], tile: &[u8]) -> usize {
    let size = dtype.size();
    let pieces = bytes
        .chunks(tile.len().max(1))
        .filter(|piece| **piece != tile[..piece.len()]);
    let elements = |piece: &[u8]| {
        let pairs = piece.chunks_exact(size).zip(tile.chunks_exact(size));
        pairs.filter(|(left, right)| left != right).count()
    };
    pieces.map(elements).sum()
}

/// An element, converted to a type that can represent the values of all integer types, or of all
/// floating-point types, exactly.
#[derive(Clone, Copy)]
enum Value {
    Integer(i128),
    Float(f64),
}

/// All ranks' random inputs at one index, and their reduction.
struct Draw {
    inputs: Inputs,
    position: usize,
}

impl Draw {
    fn input(&self, rank: usize) -> Value {
        let Inputs { dtype, op, .. } = self.inputs;
        let random = self.random(rank);
        match op {
            ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum(_) => {
                let sign = [1, -1][(random & 1) as usize];
                let magnitude = (1 + (random >> 1) % TERM_MAX) as i128;
                let speaks = i128::from(self.speaks(rank, SUM_SPEAKERS_MAX));
                self.term(speaks * sign * magnitude)
            }
            ReduceOp::Prod if dtype.is_float() => {
                let sign = [1.0, -1.0][(random & 1) as usize];
                let magnitude = match self.speaks(rank, FEW_SPEAKERS_MAX) {
                    true => [0.5, 2.0][(random >> 1 & 1) as usize],
                    false => 1.0,
                };
                Value::Float(sign * magnitude)
            }
            ReduceOp::Prod => wrapped(dtype, i128::from(random | 1)),
            ReduceOp::Min | ReduceOp::Max => from_bits(dtype, random),
            ReduceOp::Bxor => wrapped(dtype, i128::from(random)),
            ReduceOp::Band | ReduceOp::Bor => {
                let sparse = random & self.random(rank + self.inputs.world_size);
                let set = sparse * u64::from(self.speaks(rank, FEW_SPEAKERS_MAX));
                let bits = if op == ReduceOp::Bor { set } else { !set };
                wrapped(dtype, i128::from(bits))
            }
        }
    }

    fn result(&self) -> Value {
        let Inputs {
            dtype,
            op,
            world_size,
            ..
        } = self.inputs;
        let operands = (0..world_size).map(|rank| self.input(rank));
        let folded = operands.reduce(|left, right| match (left, right) {
            (Value::Integer(left), Value::Integer(right)) => {
                wrapped(dtype, fold_integers(op, left, right))
            }
            (Value::Float(left), Value::Float(right)) => Value::Float(fold_floats(op, left, right)),
            _ => unreachable!("invariant: one type has one kind"),
        });
        let folded = folded.expect("invariant: a world has a rank");
        match (op, folded) {
            (ReduceOp::Avg, Value::Integer(sum)) => Value::Integer(sum / world_size as i128),
            (ReduceOp::Avg, Value::Float(sum)) => Value::Float(mean(dtype, sum, world_size)),
            (ReduceOp::PreMulSum(factor), Value::Float(sum)) => Value::Float(sum * factor),
            _ => folded,
        }
    }

    /// Returns `true` if `rank` is one of the at most `speakers_max` ranks whose value is not
    /// neutral at this index.
    fn speaks(&self, rank: usize, speakers_max: usize) -> bool {
        let stride = self.inputs.world_size.div_ceil(speakers_max);
        (rank + self.position).is_multiple_of(stride)
    }

    fn term(&self, term: i128) -> Value {
        if self.inputs.dtype.is_float() {
            Value::Float(term as f64)
        } else {
            wrapped(self.inputs.dtype, term)
        }
    }

    /// Hashes the seed, the rank and the index with the output function of SplitMix64 (Steele, Lea,
    /// Flood: Fast splittable pseudorandom number generators, 2014).
    fn random(&self, rank: usize) -> u64 {
        let mut bits = self.inputs.seed.wrapping_mul(0xd134_2543_de82_ef95);
        for coordinate in [rank, self.position] {
            bits = (bits ^ coordinate as u64).wrapping_add(0x9e37_79b9_7f4a_7c15);
            bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            bits ^= bits >> 31;
        }
        bits
    }
}

fn fold_integers(op: ReduceOp, left: i128, right: i128) -> i128 {
    match op {
        ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum(_) => left + right,
        // `i128` can hold the product of two 64-bit factors.
        ReduceOp::Prod => left.wrapping_mul(right),
        ReduceOp::Min => left.min(right),
        ReduceOp::Max => left.max(right),
        ReduceOp::Band => left & right,
        ReduceOp::Bor => left | right,
        ReduceOp::Bxor => left ^ right,
    }
}

fn fold_floats(op: ReduceOp, left: f64, right: f64) -> f64 {
    match op {
        ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum(_) => left + right,
        ReduceOp::Prod => left * right,
        ReduceOp::Min if left.total_cmp(&right).is_le() => left,
        ReduceOp::Max if left.total_cmp(&right).is_ge() => left,
        _ => right,
    }
}

/// Returns the mean, rounded in the same way as in the kernels: in f32 for types that are reduced
/// in f32.
fn mean(dtype: Dtype, sum: f64, world_size: usize) -> f64 {
    match dtype {
        Dtype::F64 => sum / world_size as f64,
        _ => f64::from(sum as f32 / world_size as f32),
    }
}

/// Converts an element to the wide type of its kind and back, without changing its value.
trait Wide: Element {
    fn widen(self) -> Value;
    fn narrow(value: Value) -> Self;
}

macro_rules! wide {
    (Integer $($integer:ident)*) => {$(
        impl Wide for $integer {
            fn widen(self) -> Value {
                Value::Integer(self.into())
            }

            fn narrow(value: Value) -> Self {
                match value {
                    Value::Integer(integer) => integer as $integer,
                    Value::Float(_) => unreachable!("invariant: one type has one kind"),
                }
            }
        }
    )*};
    (Float $($float:ident $from_f64:expr;)*) => {$(
        impl Wide for $float {
            fn widen(self) -> Value {
                Value::Float(self.into())
            }

            fn narrow(value: Value) -> Self {
                match value {
                    Value::Float(float) => $from_f64(float),
                    Value::Integer(_) => unreachable!("invariant: one type has one kind"),
                }
            }
        }
    )*};
}

wide! { Integer i8 u8 i16 u16 i32 u32 i64 u64 }
wide! { Float f16 f16::from_f64; bf16 bf16::from_f64; f32 |float| float as f32; f64 |float| float; }

/// Writes a value as the given type, rounding to nearest even if necessary.
fn write_value(dtype: Dtype, value: Value, bytes: &mut [u8]) {
    with_element!(dtype, T => bytes.copy_from_slice(bytemuck::bytes_of(&T::narrow(value))));
}

/// Returns the element that consists of the lowest bits of `bits`, or 1 if that element is a NaN.
fn from_bits(dtype: Dtype, bits: u64) -> Value {
    let bytes = bits.to_le_bytes();
    let element = &bytes[..dtype.size()];
    let value = with_element!(dtype, T => bytemuck::pod_read_unaligned::<T>(element).widen());
    match value {
        Value::Float(float) if float.is_nan() => Value::Float(1.0),
        value => value,
    }
}

/// Returns the lowest bits of `integer`, as many as `dtype` has.
fn wrapped(dtype: Dtype, integer: i128) -> Value {
    from_bits(dtype, integer as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringtree::internal::compute::Kernel;

    /// Reduces randomly chosen pairs of operands until one operand is left. `seed` determines the
    /// choice.
    fn fold_in_random_order(inputs: Inputs, count: usize, mut seed: usize) -> Vec<u8> {
        let Inputs {
            dtype,
            op,
            world_size,
            ..
        } = inputs;
        let kernel = Kernel::new(dtype, op).unwrap();
        let mut operands: Vec<_> = (0..world_size)
            .map(|rank| {
                let mut bytes = vec![0; count * dtype.size()];
                inputs.fill(rank, 0, &mut bytes);
                bytes
            })
            .collect();
        while operands.len() > 1 {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let right = operands.swap_remove((seed >> 33) % operands.len());
            let index = (seed >> 7) % operands.len();
            let divisor = (operands.len() == 1 && op == ReduceOp::Avg).then_some(world_size);
            kernel.fold(&mut operands[index], Some(0), &[&right], divisor);
        }
        operands.remove(0)
    }

    #[test]
    fn every_fold_order_gives_expected_bits() {
        for &dtype in Dtype::ALL {
            for &op in ReduceOp::ALL.iter().filter(|op| op.supports(dtype)) {
                for (world_size, seed) in [(1, 1), (2, 2), (3, 3), (7, 4), (64, 5), (1024, 6)] {
                    let inputs = Inputs::new(dtype, op, world_size, seed as u64);
                    let result = fold_in_random_order(inputs, 300, seed);
                    assert_eq!(
                        inputs.count_wrong(0, &result),
                        0,
                        "{dtype} {op} {world_size}"
                    );
                }
            }
        }
    }

    #[test]
    fn missing_contribution_is_detected() {
        for &dtype in Dtype::ALL {
            for &op in ReduceOp::ALL.iter().filter(|op| op.supports(dtype)) {
                let inputs = Inputs::new(dtype, op, 8, 9);
                let kernel = Kernel::new(dtype, op).unwrap();
                for missing in 0..8 {
                    let mut folded = vec![0; 1000 * dtype.size()];
                    let mut operand = folded.clone();
                    for rank in (0..8).filter(|&rank| rank != missing) {
                        let own = (rank != usize::from(missing == 0)).then_some(0);
                        inputs.fill(rank, 0, &mut operand);
                        let divisor = (rank == 7 - usize::from(missing == 7)).then_some(8);
                        let divisor = divisor.filter(|_| op == ReduceOp::Avg);
                        kernel.fold(&mut folded, own.filter(|_| rank > 0), &[&operand], divisor);
                    }
                    assert!(
                        inputs.count_wrong(0, &folded) > 50,
                        "{dtype} {op} {missing}"
                    );
                }
            }
        }
    }

    #[test]
    fn values_depend_only_on_index_and_differences_are_counted() {
        let inputs = Inputs::new(Dtype::I32, ReduceOp::Sum, 5, 11);
        let mut whole = vec![0; 3 * PERIOD * 4];
        inputs.expected(0, &mut whole);
        let mut part = vec![0; PERIOD * 4 + 400];
        inputs.expected(PERIOD + 17, &mut part);
        assert_eq!(part, whole[(PERIOD + 17) * 4..][..part.len()]);
        assert_eq!(inputs.count_wrong(PERIOD + 17, &part), 0);
        part[0] ^= 1;
        part[1] ^= 1;
        *part.last_mut().unwrap() ^= 1;
        assert_eq!(inputs.count_wrong(PERIOD + 17, &part), 2);
        inputs.fill(3, 0, &mut whole);
        assert_eq!(inputs.count_wrong_input(3, 0, &whole), 0);
        assert!(inputs.count_wrong_input(2, 0, &whole) > PERIOD);
    }
}
