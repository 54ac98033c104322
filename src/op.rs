//! The reduction operators: one table, one line an operator.

use crate::dtype::Dtype;
use crate::named::named;
use serde::{Deserialize, Serialize};

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
}

macro_rules! operators {
    ($($variant:ident, $name:literal, $domain:ident, $documentation:literal;)*) => {
        /// How contributions are combined, element by element.
        ///
        /// Every operator is commutative to the bit: floating-point results that are not a number
        /// are the canonical quiet NaN, and `Min`/`Max` order −0 below +0 and propagate NaN.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[repr(u8)]
        pub enum ReduceOp {
            $(#[doc = $documentation] $variant,)*
        }

        impl ReduceOp {
            /// Every operator, in the order of the table.
            pub const ALL: &'static [ReduceOp] = &[$(ReduceOp::$variant),*];

            /// The name used on the command line, in messages and in results.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(ReduceOp::$variant => $name,)* }
            }

            const fn domain(self) -> Domain {
                match self { $(ReduceOp::$variant => Domain::$domain,)* }
            }
        }
    };
}

for_each_operator!(operators);

impl ReduceOp {
    /// Whether the operator is defined for `dtype`: bit operators are not for floats.
    #[must_use]
    pub const fn supports(self, dtype: Dtype) -> bool {
        matches!(self.domain(), Domain::Any) || !dtype.is_float()
    }
}

named!(ReduceOp, "operator");
