//! Defines the reduction operators. A table lists one operator per line. The only operator that is
//! not in the table is the one that has a factor.

use crate::dtype::Dtype;
use serde::{Deserialize, Serialize};
use std::hash::{Hash, Hasher};

/// Calls the macro `$callback` once with the tokens in `$prefix` followed by the complete table of
/// operators. Each line is `Variant, "name", Domain, "documentation";`. The domain is `Any` or
/// `Integer`.
macro_rules! for_each_operator {
    ($callback:ident $($prefix:tt)*) => {
        $callback! {
            $($prefix)*
            Sum,  "sum",  Any,     "The sum. Integers wrap on overflow.";
            Prod, "prod", Any,     "The product. Integers wrap on overflow.";
            Min,  "min",  Any,     "The minimum.";
            Max,  "max",  Any,     "The maximum.";
            Avg,  "avg",  Any,     "The mean. The last reduction divides the sum by the number of \
                                    ranks. Integer sums wrap on overflow, and the quotient is \
                                    truncated.";
            Band, "band", Integer, "The bitwise AND, for integers only.";
            Bor,  "bor",  Integer, "The bitwise OR, for integers only.";
            Bxor, "bxor", Integer, "The bitwise exclusive OR, for integers only.";
        }
    };
}
pub(crate) use for_each_operator;

enum Domain {
    Any,
    Integer,
    Float,
}

macro_rules! operators {
    ($($variant:ident, $name:literal, $domain:ident, $documentation:literal;)*) => {
        /// An operator that combines contributions element by element.
        ///
        /// Every operator is commutative, down to the last bit. If a floating-point result is not a
        /// number, it is always the canonical quiet NaN. `Min` and `Max` order −0 below +0 and
        /// propagate NaN.
        #[derive(Clone, Copy, Debug, Serialize, Deserialize)]
        pub enum ReduceOp {
            $(#[doc = $documentation] $variant,)*
            /// The sum of the contributions, each multiplied by the factor that the contributing
            /// rank passes. This operator supports only floats, and only in host memory.
            ///
            /// Ranks can pass different factors. Each rank multiplies its entire contribution
            /// before it sends the first message of the call. `f32` and `f64` are multiplied in the
            /// element type. `f16` and `bf16` are multiplied in `f32` and rounded once to the
            /// element type. The call then continues like any other sum and produces the same bits
            /// on all ranks.
            ///
            /// An in-place call multiplies the buffer itself. A call with a separate output leaves
            /// the input unchanged, and the output must be as long as the input. Two `PreMulSum`
            /// operators are equal if their factors have the same bits.
            ///
            /// ```
            /// use ringtree::ReduceOp;
            /// let weighted = ringtree::simulate(2, |comm| {
            ///     let mut gradients = [4.0f32, 8.0];
            ///     let samples = [1.0, 3.0][comm.rank()];
            ///     comm.all_reduce(&mut gradients, ReduceOp::PreMulSum(samples / 4.0))?;
            ///     Ok::<_, ringtree::Error>(gradients)
            /// });
            /// assert_eq!(weighted, [Ok([4.0, 8.0]), Ok([4.0, 8.0])]);
            /// ```
            PreMulSum(f64),
        }

        /// Code of each operator: its position in the table or, for `PreMulSum`, the number after
        /// it.
        enum Position { $($variant,)* PreMulSum }

        impl ReduceOp {
            /// All operators in the table. [`ReduceOp::PreMulSum`] is not included because it has a
            /// factor.
            pub const ALL: &'static [ReduceOp] = &[$(ReduceOp::$variant),*];

            /// Returns the name used on the command line, in messages and in results.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(ReduceOp::$variant => $name,)*
                    ReduceOp::PreMulSum(_) => "pre-mul-sum",
                }
            }

            /// Returns the code of this operator, which is its [`Position`].
            pub(crate) const fn code(self) -> u8 {
                match self {
                    $(ReduceOp::$variant => Position::$variant as u8,)*
                    ReduceOp::PreMulSum(_) => Position::PreMulSum as u8,
                }
            }

            const fn domain(self) -> Domain {
                match self {
                    $(ReduceOp::$variant => Domain::$domain,)*
                    ReduceOp::PreMulSum(_) => Domain::Float,
                }
            }
        }
    };
}

for_each_operator!(operators);

impl ReduceOp {
    /// Returns `true` if the operator is defined for `dtype`. Bitwise operators are defined only
    /// for integers, and [`ReduceOp::PreMulSum`] is defined only for floats.
    #[must_use]
    pub const fn supports(self, dtype: Dtype) -> bool {
        match self.domain() {
            Domain::Any => true,
            Domain::Integer => !dtype.is_float(),
            Domain::Float => dtype.is_float(),
        }
    }

    /// Returns the factor by which this rank multiplies its contribution, or `None` if the operator
    /// does not have a factor.
    pub(crate) const fn factor(self) -> Option<f64> {
        match self {
            ReduceOp::PreMulSum(factor) => Some(factor),
            _ => None,
        }
    }

    /// Returns the part of the operator that must be the same on all ranks, which is everything
    /// except the factor.
    pub(crate) const fn agreed(self) -> Self {
        match self {
            ReduceOp::PreMulSum(_) => ReduceOp::PreMulSum(1.0),
            other => other,
        }
    }

    /// Returns the code of the operator and the bits of its factor. Operators are equal if both are
    /// equal.
    fn parts(self) -> (u8, Option<u64>) {
        (self.code(), self.factor().map(f64::to_bits))
    }
}

impl PartialEq for ReduceOp {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for ReduceOp {}

impl Hash for ReduceOp {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parts().hash(state);
    }
}

impl PartialOrd for ReduceOp {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ReduceOp {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.parts().cmp(&other.parts())
    }
}

ringtree_plan::named!(ReduceOp, "operator");
