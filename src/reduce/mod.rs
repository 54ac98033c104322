//! Reduction kernels: folding operands element by element, on the CPU. A GPU's, with the same
//! numbers, are `cuda/reduce.cu`.
//!
//! Purpose: every element type times every operator, from the one table of each (`dtype.rs`,
//! `op.rs`), at the speed of memory. A loop is written once (`fold.rs`) over how elements lie in
//! bytes (`cell.rs`) and how they are computed with (`number.rs`); `sys::simd` compiles it for the
//! instruction sets and picks one at run time.
//!
//! Invariants:
//! - *Commutative to the bit.* `a ⊕ b` and `b ⊕ a` have the same bits: a floating-point result that
//!   is not a number is the canonical quiet NaN (positive, first payload bit alone), whatever NaN
//!   the CPU would have picked; `Min` and `Max` propagate NaN and order −0 below +0.
//! - *Rounded once.* f16 and bf16 are folded in f32 and rounded once a fold to nearest even, after
//!   the division of a mean, if there is one.
//! - *The same on every CPU.* Instruction sets, block sizes and alignment change no bit.
//! - A fold of one operand without a division is a copy and keeps every bit, those of NaN too.
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

/// So few bytes are folded before a wide vector unit is ready, unless they are to be converted:
/// without the instructions for that, a conversion takes longer.
const FEW_BYTES: usize = 64;

/// The kernel of one element type and one operator, chosen once per operation.
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
    /// A power of two.
    element_bytes: usize,
    level: Level,
    entry: Entry,
}

impl Kernel {
    /// The kernel for this CPU; `None` where `op` is not defined for `dtype`.
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

    /// destination\[i\] = the left fold of the operands' elements i, in order.
    ///
    /// With `own` = `Some(k)` the destination's present content is the operand at position k,
    /// inserted among `sources`; with `None` only `sources` are operands. `divisor` = `Some(n)`
    /// divides the result by n, for a mean's last fold; integers truncate toward zero. The slices
    /// may have any alignment.
    ///
    /// # Panics
    ///
    /// On a caller's mistake: no source, slices of different lengths or not of whole elements,
    /// `own` beyond the sources, a divisor of zero or above [`WORLD_SIZE_MAX`], a divisor for an
    /// operator other than `Avg` and `Sum`.
    pub fn fold(
        &self,
        destination: &mut [u8],
        own: Option<usize>,
        sources: &[&[u8]],
        divisor: Option<usize>,
    ) {
        assert!(!sources.is_empty(), "a fold has a source");
        assert!(
            own.is_none_or(|own| own <= sources.len()),
            "own is one of the operands"
        );
        assert!(
            sources
                .iter()
                .all(|source| source.len() == destination.len()),
            "the operands of a fold are equally long"
        );
        assert!(
            destination.len() & (self.element_bytes - 1) == 0,
            "a fold has whole elements"
        );
        if let Some(divisor) = divisor {
            assert!(
                (1..=WORLD_SIZE_MAX).contains(&divisor),
                "a divisor is a number of ranks"
            );
            assert!(
                matches!(self.op, ReduceOp::Avg | ReduceOp::Sum),
                "a mean is a sum, divided"
            );
        }
        // One divides nothing.
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

/// Multiplies every element of `bytes` by `factor`: in f32 for f16 and bf16, else in the element
/// type; rounded once to nearest even, NaN canonical.
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
/// On a caller's mistake: elements that are no floats, or bytes that are no whole elements.
pub fn scale(dtype: Dtype, bytes: &mut [u8], factor: f64) {
    assert!(
        bytes.len().is_multiple_of(dtype.size()),
        "what is scaled has whole elements"
    );
    let scale = match dtype {
        Dtype::F16 => fold::scale::<half::f16>,
        Dtype::Bf16 => fold::scale::<half::bf16>,
        Dtype::F32 => fold::scale::<f32>,
        Dtype::F64 => fold::scale::<f64>,
        _ => panic!("{dtype} is not scaled"),
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

/// One entry of the table: nothing where an operator of integers meets a float.
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

/// What was multiplied before is a sum.
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
