//! The reduction operators: one table, one line an operator.

use crate::dtype::Dtype;
use std::fmt;
use std::str::FromStr;

/// How contributions are combined, element by element.
///
/// Every operator is commutative to the bit: floating-point results that are not a number are the
/// canonical quiet NaN, and `Min`/`Max` order −0 below +0 and propagate NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum ReduceOp {
    /// The sum; integers wrap.
    Sum,
    /// The product; integers wrap.
    Prod,
    /// The smallest.
    Min,
    /// The largest.
    Max,
    /// The mean: the sum, divided by the number of ranks at the last fold; integers truncate.
    Avg,
    /// Bitwise and; integers only.
    Band,
    /// Bitwise or; integers only.
    Bor,
    /// Bitwise exclusive or; integers only.
    Bxor,
}

impl ReduceOp {
    /// Every operator, in the order of the table.
    pub const ALL: &'static [ReduceOp] = &[
        ReduceOp::Sum,
        ReduceOp::Prod,
        ReduceOp::Min,
        ReduceOp::Max,
        ReduceOp::Avg,
        ReduceOp::Band,
        ReduceOp::Bor,
        ReduceOp::Bxor,
    ];

    /// The name used on the command line, in messages and in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Prod => "prod",
            ReduceOp::Min => "min",
            ReduceOp::Max => "max",
            ReduceOp::Avg => "avg",
            ReduceOp::Band => "band",
            ReduceOp::Bor => "bor",
            ReduceOp::Bxor => "bxor",
        }
    }

    /// Whether the operator is defined for `dtype`: bit operators are not for floats.
    #[must_use]
    pub const fn supports(self, dtype: Dtype) -> bool {
        !(dtype.is_float() && matches!(self, ReduceOp::Band | ReduceOp::Bor | ReduceOp::Bxor))
    }

    /// The operator whose discriminant is `code`, for decoding.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// The discriminant, for encoding.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for ReduceOp {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .iter()
            .copied()
            .find(|op| op.name() == text)
            .ok_or_else(|| {
                let names: Vec<_> = Self::ALL.iter().map(|op| op.name()).collect();
                format!(
                    "no operator is called '{text}'; there are {}",
                    names.join(" ")
                )
            })
    }
}
