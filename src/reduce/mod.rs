//! Reduces operands element by element on the CPU. The GPU kernels, which produce the same bits,
//! are in `cuda/reduce.cu`.
//!
//! Purpose: provide kernels that run at memory speed for every element type and operator in the
//! tables in `dtype.rs` and `op.rs`. Each loop is written once (`fold.rs`) and uses the byte layout
//! of elements (`cell.rs`) and their arithmetic (`number.rs`). `sys::simd` compiles each loop for
//! every instruction set and selects a version at run time.
//!
//! Invariants:
//! - *Commutative to the bit.* `a ⊕ b` and `b ⊕ a` have the same bits. A NaN result is the
//!   canonical quiet NaN (positive, only the first payload bit set), even if the CPU produces a
//!   different NaN. `Min` and `Max` propagate NaN and order −0 below +0.
//! - *Rounded once.* f16 and bf16 are reduced in f32 and rounded to nearest even once per call of
//!   [`Kernel::fold`]. A mean is divided before it is rounded.
//! - *The same on every CPU.* The bits of a result do not depend on the instruction set, the block
//!   size or the alignment.
//! - Reducing a single operand without a division is a copy that keeps every bit, including the
//!   bits of a NaN.
//!
//! *May import* `sys` and the base files.

mod cell;
mod fold;
mod number;
#[cfg(test)]
mod tests;

use crate::dtype::{Dtype, for_each_dtype};
use crate::limits::WORLD_SIZE_MAX;
use crate::op::{ReduceOp, for_each_operator};
use crate::sys::simd::Level;
use fold::{Entry, Task};
use std::fmt;

/// Maximum number of bytes that are reduced without wide vectors, because a wide vector unit takes
/// some time to become ready. Types that must be converted always use wide vectors, because
/// converting them without wide instructions takes even longer.
const FEW_BYTES: usize = 64;

/// The kernel for one element type and one operator, selected once per operation.
///
/// ```
/// use ringtree::{Dtype, ReduceOp};
/// use ringtree::internal::compute::Kernel;
///
/// let kernel = Kernel::new(Dtype::U8, ReduceOp::Sum).expect("sums are defined for integers");
/// let mut destination = [1, 2, 3];
/// kernel.fold(&mut destination, Some(0), &[&[10, 20, 30], &[1, 1, 1]], None);
/// assert_eq!(destination, [12, 23, 34]);
/// ```
#[derive(Clone, Copy)]
pub struct Kernel {
    dtype: Dtype,
    op: ReduceOp,
    /// Size of an element in bytes; a power of two.
    element_bytes: usize,
    level: Level,
    entry: Entry,
}

impl Kernel {
    /// Returns the kernel for this CPU, or `None` if `op` is not defined for `dtype`.
    #[must_use]
    pub fn new(dtype: Dtype, op: ReduceOp) -> Option<Kernel> {
        Self::at_level(dtype, op, Level::best())
    }

    fn at_level(dtype: Dtype, op: ReduceOp, level: Level) -> Option<Kernel> {
        let entry = entry(dtype, op)?;
        Some(Kernel {
            dtype,
            op,
            element_bytes: dtype.size(),
            level,
            entry,
        })
    }

    /// Sets each destination\[i\] to the left fold of the elements at index i of all operands, in
    /// order.
    ///
    /// If `own` is `Some(k)`, the current content of the destination is inserted among `sources` as
    /// the operand at position k. If it is `None`, the operands are exactly `sources`. If `divisor`
    /// is `Some(n)`, the result is divided by n, which completes a mean. Integer division truncates
    /// toward zero. The slices may have any alignment.
    ///
    /// # Panics
    ///
    /// Panics if there is no source; if slices have different lengths or do not hold complete
    /// elements; if `own` exceeds the number of sources; if the divisor is zero or above
    /// [`WORLD_SIZE_MAX`]; or if there is a divisor and the operator is neither `Avg` nor `Sum`.
    pub fn fold(
        &self,
        destination: &mut [u8],
        own: Option<usize>,
        sources: &[&[u8]],
        divisor: Option<usize>,
    ) {
        assert!(
            !sources.is_empty(),
            "a reduction requires at least one source"
        );
        assert!(
            own.is_none_or(|own| own <= sources.len()),
            "the position of the destination must not exceed the number of sources"
        );
        assert!(
            sources
                .iter()
                .all(|source| source.len() == destination.len()),
            "the operands of a reduction must have the same length"
        );
        assert!(
            destination.len() & (self.element_bytes - 1) == 0,
            "a reduction requires complete elements"
        );
        if let Some(divisor) = divisor {
            assert!(
                (1..=WORLD_SIZE_MAX).contains(&divisor),
                "the divisor must be a valid number of ranks"
            );
            assert!(
                matches!(self.op, ReduceOp::Avg | ReduceOp::Sum),
                "a divisor requires the operator Avg or Sum"
            );
        }
        // Division by 1 changes nothing.
        let divisor = divisor.filter(|&divisor| divisor > 1);
        match (own, sources, divisor) {
            (None, [source], None) => destination.copy_from_slice(source),
            _ => {
                let divisor = divisor.map(|divisor| divisor as u32);
                let task = Task {
                    destination,
                    own,
                    sources,
                    divisor,
                };
                let converts = matches!(self.dtype, Dtype::F16 | Dtype::Bf16);
                let level = if task.destination.len() <= FEW_BYTES && !converts {
                    Level::portable()
                } else {
                    self.level
                };
                (self.entry)(level, task);
            }
        }
    }
}

/// Multiplies every element of `bytes` by `factor`. f16 and bf16 are multiplied in f32, other types
/// in the element type. Each product is rounded once, to nearest even, and NaN results are
/// canonical.
///
/// ```
/// use ringtree::Dtype;
/// use ringtree::internal::compute::scale;
/// let mut bytes = [1.5f32.to_ne_bytes(), (-2.0f32).to_ne_bytes()].concat();
/// scale(Dtype::F32, &mut bytes, 0.5);
/// assert_eq!(bytes, [0.75f32.to_ne_bytes(), (-1.0f32).to_ne_bytes()].concat());
/// ```
///
/// # Panics
///
/// Panics if `dtype` is not a floating-point type, or if `bytes` does not hold complete elements.
pub fn scale(dtype: Dtype, bytes: &mut [u8], factor: f64) {
    assert!(
        bytes.len().is_multiple_of(dtype.size()),
        "scaling requires complete elements"
    );
    let scale = match dtype {
        Dtype::F16 => fold::scale::<half::f16>,
        Dtype::Bf16 => fold::scale::<half::bf16>,
        Dtype::F32 => fold::scale::<f32>,
        Dtype::F64 => fold::scale::<f64>,
        _ => panic!("cannot scale {dtype}, which is not a floating-point type"),
    };
    scale(Level::best(), bytes, factor);
}

impl fmt::Debug for Kernel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "Kernel({} {}, {:?})",
            self.dtype, self.op, self.level
        )
    }
}

/// Expands to an entry in the kernel table. The entry is `None` if the operator accepts only
/// integers and the type is a float.
macro_rules! entry_of {
    (Float Integer $cell:ty, $operator:ident) => {
        None
    };
    ($kind:ident $domain:ident $cell:ty, Min) => {
        Some(fold::fold::<<$cell as cell::Cell>::ForMin, number::operators::Min>)
    };
    ($kind:ident $domain:ident $cell:ty, Max) => {
        Some(fold::fold::<<$cell as cell::Cell>::ForMax, number::operators::Max>)
    };
    ($kind:ident $domain:ident $cell:ty, $operator:ident) => {
        Some(fold::fold::<$cell, number::operators::$operator>)
    };
}

/// Expands to the kernel for an ordinary sum, because the values have already been multiplied.
macro_rules! scaled_sum {
    (Float $cell:ty) => {
        Some(fold::fold::<$cell, number::operators::Sum>)
    };
    (Integer $cell:ty) => {
        None
    };
}

macro_rules! entries_of_dtype {
    (
        $op:ident $kind:ident $cell:ty;
        $($operator:ident, $name:literal, $domain:ident, $documentation:literal;)*
    ) => {
        match $op {
            $(ReduceOp::$operator => entry_of!($kind $domain $cell, $operator),)*
            ReduceOp::PreMulSum(_) => scaled_sum!($kind $cell),
        }
    };
}

macro_rules! entries {
    ($($variant:ident $cell:ty, $name:literal, $kind:ident;)*) => {
        fn entry(dtype: Dtype, op: ReduceOp) -> Option<Entry> {
            match dtype {
                $(Dtype::$variant => for_each_operator!(entries_of_dtype op $kind $cell;),)*
            }
        }
    };
}

for_each_dtype!(entries);
