//! The reduction operators: one table, one line an operator; beside it the one that has a factor.

use crate::dtype::Dtype;
use serde::{Deserialize, Serialize};
use std::hash::{Hash, Hasher};

/// Calls the macro `$callback` once with whatever follows it here and the whole table of operators:
/// `Variant, "name", Domain, "documentation";` a line, where the domain is `Any` or `Integer`.
macro_rules! for_each_operator {
    ($callback:ident $($prefix:tt)*) => {
        $callback! {
            $($prefix)*
            Sum,  "sum",  Any,     "The sum; integers wrap.";
            Prod, "prod", Any,     "The product; integers wrap.";
            Min,  "min",  Any,     "The smallest.";
            Max,  "max",  Any,     "The largest.";
            Avg,  "avg",  Any,     "The mean: the sum, divided by the number of ranks at the last \
                                    fold; integers truncate.";
            Band, "band", Integer, "Bitwise and; integers only.";
            Bor,  "bor",  Integer, "Bitwise or; integers only.";
            Bxor, "bxor", Integer, "Bitwise exclusive or; integers only.";
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
        /// How contributions are combined, element by element.
        ///
        /// Every operator is commutative to the bit: floating-point results that are not a number
        /// are the canonical quiet NaN, and `Min`/`Max` order −0 below +0 and propagate NaN.
        #[derive(Clone, Copy, Debug, Serialize, Deserialize)]
        pub enum ReduceOp {
            $(#[doc = $documentation] $variant,)*
            /// The sum of the contributions, each multiplied by its own rank's factor; floats in
            /// host memory only.
            ///
            /// Ranks may pass different factors. A rank multiplies its whole contribution before
            /// the call's first message: in f32 for f16 and bf16, rounded once to the element type,
            /// in the element type for f32 and f64. Then it is a sum like any other, which ends
            /// with the same bits on all ranks. In place the buffer itself is multiplied; into an
            /// output, which must be as long as the input, the input stays as it is. Operators are
            /// equal if their factors have the same bits.
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

        /// The positions in the table.
        enum Position { $($variant,)* PreMulSum }

        impl ReduceOp {
            /// Every operator of the table: all but [`ReduceOp::PreMulSum`], which has a factor.
            pub const ALL: &'static [ReduceOp] = &[$(ReduceOp::$variant),*];

            /// The name used on the command line, in messages and in results.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(ReduceOp::$variant => $name,)*
                    ReduceOp::PreMulSum(_) => "pre-mul-sum",
                }
            }

            /// The position in the table of operators.
            #[must_use]
            pub const fn code(self) -> u8 {
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
    /// Whether the operator is defined for `dtype`: bit operators are not for floats, and a factor
    /// is not for integers.
    #[must_use]
    pub const fn supports(self, dtype: Dtype) -> bool {
        match self.domain() {
            Domain::Any => true,
            Domain::Integer => !dtype.is_float(),
            Domain::Float => dtype.is_float(),
        }
    }

    /// What this rank multiplies its contribution by.
    pub(crate) const fn factor(self) -> Option<f64> {
        match self {
            ReduceOp::PreMulSum(factor) => Some(factor),
            _ => None,
        }
    }

    /// The operator as far as all ranks must agree on it: without the rank's own factor.
    pub(crate) const fn agreed(self) -> Self {
        match self {
            ReduceOp::PreMulSum(_) => ReduceOp::PreMulSum(1.0),
            other => other,
        }
    }

    /// The operator, and the bits of its factor.
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

ringtree_plan::named_text!(ReduceOp, "operator");
