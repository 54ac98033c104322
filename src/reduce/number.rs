//! Implements arithmetic on integers, floats and packs of floats.

use crate::sys::simd::Pair;
use std::array::from_fn;

/// Arithmetic that every type supports. A NaN result may have any payload and sign, because it
/// becomes canonical only when it is stored.
pub(super) trait Number: Copy {
    /// Returns the sum. Integers wrap.
    fn plus(self, other: Self) -> Self;
    /// Returns the product. Integers wrap.
    fn times(self, other: Self) -> Self;
    /// Returns the smaller operand, or NaN if an operand is NaN. −0 is below +0.
    fn least(self, other: Self) -> Self;
    /// Returns the larger operand, or NaN if an operand is NaN. +0 is above −0.
    fn greatest(self, other: Self) -> Self;
    /// Returns the quotient, rounded once; integer division truncates. The divisor must not be
    /// zero.
    fn divide(self, divisor: u32) -> Self;
}

/// Arithmetic that only integers support.
pub(super) trait Bits: Number {
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn exclusive_or(self, other: Self) -> Self;
}

/// An operator from the table in `op.rs`, implemented for one type.
pub(super) trait Operator<T> {
    /// `true` if the kernels of this operator can divide their result.
    const DIVIDES: bool = false;
    fn combine(left: T, right: T) -> T;
}

/// A type for each operator, with the operator's name in the table.
pub(super) mod operators {
    use super::{Bits, Number, Operator};

    macro_rules! operators {
        ($($operator:ident $bound:ident $method:ident $divides:literal;)*) => {$(
            pub(in super::super) struct $operator;

            impl<T: $bound> Operator<T> for $operator {
                const DIVIDES: bool = $divides;

                #[inline(always)]
                fn combine(left: T, right: T) -> T {
                    left.$method(right)
                }
            }
        )*};
    }

    operators! {
        Sum  Number plus         true;
        Prod Number times        false;
        Min  Number least        false;
        Max  Number greatest     false;
        Band Bits   and          false;
        Bor  Bits   or           false;
        Bxor Bits   exclusive_or false;
    }

    /// A mean is a sum whose last reduction also divides.
    pub(in super::super) type Avg = Sum;
}

macro_rules! integers {
    ($($integer:ident $quotient:ident;)*) => {$(
        impl Number for $integer {
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            #[inline(always)]
            fn least(self, other: Self) -> Self {
                self.min(other)
            }

            #[inline(always)]
            fn greatest(self, other: Self) -> Self {
                self.max(other)
            }

            #[inline(always)]
            fn divide(self, divisor: u32) -> Self {
                (self as $quotient).quotient_bits(divisor as $quotient) as $integer
            }
        }

        impl Bits for $integer {
            #[inline(always)]
            fn and(self, other: Self) -> Self {
                self & other
            }

            #[inline(always)]
            fn or(self, other: Self) -> Self {
                self | other
            }

            #[inline(always)]
            fn exclusive_or(self, other: Self) -> Self {
                self ^ other
            }
        }
    )*};
}

// The second type is the type in which the division is performed.
integers! {
    i8  f32;
    u8  f32;
    i16 f32;
    u16 f32;
    i32 f64;
    u32 f64;
    i64 i64;
    u64 u64;
}

/// Integer division that returns the truncated quotient in the lowest bits of an integer.
///
/// Float division can use vector instructions, and truncating its result gives the same integer as
/// integer division. A dividend a of at most 32 bits is represented exactly. If n does not divide
/// a, the quotient is at least 1/n below the next integer k in magnitude. Rounding moves the
/// quotient by less than this distance, as long as k·n ≤ |a| + n is below 2²⁴ (f32, up to 16 bits)
/// or 2⁵³ (f64, up to 32 bits), where n is at most `WORLD_SIZE_MAX` = 2²⁰. Adding 1.5 times the
/// power of two whose unit in the last place is 1 leaves the integer in the lowest bits, in two's
/// complement, and avoids the range checks of a cast.
trait Quotient {
    type Bits;
    fn quotient_bits(self, divisor: Self) -> Self::Bits;
}

impl Quotient for f32 {
    type Bits = u32;

    #[inline(always)]
    fn quotient_bits(self, divisor: f32) -> u32 {
        ((self / divisor).trunc() + 12_582_912.0).to_bits()
    }
}

impl Quotient for f64 {
    type Bits = u64;

    #[inline(always)]
    fn quotient_bits(self, divisor: f64) -> u64 {
        ((self / divisor).trunc() + 6_755_399_441_055_744.0).to_bits()
    }
}

impl Quotient for i64 {
    type Bits = i64;

    #[inline(always)]
    fn quotient_bits(self, divisor: i64) -> i64 {
        self / divisor
    }
}

impl Quotient for u64 {
    type Bits = u64;

    #[inline(always)]
    fn quotient_bits(self, divisor: u64) -> u64 {
        self / divisor
    }
}

const _: () = assert!(crate::limits::WORLD_SIZE_MAX + (1 << 16) < 1 << 24);

macro_rules! floats {
    ($($float:ident)*) => {$(
        impl Number for $float {
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self + other
            }

            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self * other
            }

            /// If neither operand is smaller, they are equal, zeros of either sign, or unordered.
            /// In these cases, their bitwise OR is the value itself, −0 if either operand is −0, or
            /// still a NaN.
            #[inline(always)]
            fn least(self, other: Self) -> Self {
                let either = $float::from_bits(self.to_bits() | other.to_bits());
                let smaller = if self < other { self } else { other };
                if (self < other) | (other < self) { smaller } else { either }
            }

            /// Like `least`, but combines the sign bits with AND, so that the result is +0 if
            /// either operand is +0.
            #[inline(always)]
            fn greatest(self, other: Self) -> Self {
                let (left, right) = (self.to_bits(), other.to_bits());
                let magnitude = !$float::to_bits(-0.0);
                let either = $float::from_bits((left & right) | ((left | right) & magnitude));
                let larger = if self > other { self } else { other };
                if (self < other) | (other < self) { larger } else { either }
            }

            #[inline(always)]
            fn divide(self, divisor: u32) -> Self {
                self / divisor as $float
            }
        }
    )*};
}

floats! { f32 f64 }

/// Arithmetic that only floats support.
pub(super) trait Scale: Number {
    /// Returns the product of this value and `factor`, which is first rounded to this type.
    fn scale(self, factor: f64) -> Self;
}

impl Scale for f32 {
    #[inline(always)]
    fn scale(self, factor: f64) -> Self {
        self * factor as f32
    }
}

impl Scale for f64 {
    #[inline(always)]
    fn scale(self, factor: f64) -> Self {
        self * factor
    }
}

impl<const LANES: usize> Scale for [f32; LANES] {
    #[inline(always)]
    fn scale(self, factor: f64) -> Self {
        from_fn(|lane| self[lane].scale(factor))
    }
}

impl<T: Scale> Scale for Pair<T> {
    #[inline(always)]
    fn scale(self, factor: f64) -> Self {
        Pair(self.0.scale(factor), self.1.scale(factor))
    }
}

/// A pack of operands that are converted together.
impl<const LANES: usize> Number for [f32; LANES] {
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        from_fn(|lane| self[lane].plus(other[lane]))
    }

    #[inline(always)]
    fn times(self, other: Self) -> Self {
        from_fn(|lane| self[lane].times(other[lane]))
    }

    #[inline(always)]
    fn least(self, other: Self) -> Self {
        from_fn(|lane| self[lane].least(other[lane]))
    }

    #[inline(always)]
    fn greatest(self, other: Self) -> Self {
        from_fn(|lane| self[lane].greatest(other[lane]))
    }

    #[inline(always)]
    fn divide(self, divisor: u32) -> Self {
        from_fn(|lane| self[lane].divide(divisor))
    }
}

impl<T: Number> Number for Pair<T> {
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        Pair(self.0.plus(other.0), self.1.plus(other.1))
    }

    #[inline(always)]
    fn times(self, other: Self) -> Self {
        Pair(self.0.times(other.0), self.1.times(other.1))
    }

    #[inline(always)]
    fn least(self, other: Self) -> Self {
        Pair(self.0.least(other.0), self.1.least(other.1))
    }

    #[inline(always)]
    fn greatest(self, other: Self) -> Self {
        Pair(self.0.greatest(other.0), self.1.greatest(other.1))
    }

    #[inline(always)]
    fn divide(self, divisor: u32) -> Self {
        Pair(self.0.divide(divisor), self.1.divide(divisor))
    }
}
