//! Arithmetic on one pair of operands: integers, floats, and packs of floats.

use std::array::from_fn;

/// Arithmetic of every type. A result that is not a number may have any payload and sign here:
/// it becomes the canonical one where it is stored.
pub(super) trait Number: Copy {
    /// The sum; integers wrap.
    fn plus(self, other: Self) -> Self;
    /// The product; integers wrap.
    fn times(self, other: Self) -> Self;
    /// The smaller one; NaN if one is, and −0 is below +0.
    fn least(self, other: Self) -> Self;
    /// The larger one; NaN if one is, and +0 is above −0.
    fn greatest(self, other: Self) -> Self;
    /// The quotient, rounded once; that of integers truncates. The divisor is not zero.
    fn divide(self, divisor: u32) -> Self;
}

/// Arithmetic of the integers alone.
pub(super) trait Bits: Number {
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn exclusive_or(self, other: Self) -> Self;
}

/// An operator of the table, over a type.
pub(super) trait Operator<T> {
    /// Whether its kernels can divide their result.
    const DIVIDES: bool = false;
    fn combine(left: T, right: T) -> T;
}

/// The operators as types, named as in the table.
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

    /// The division is in the last fold; until then a mean is a sum.
    pub(in super::super) type Avg = Sum;
}

macro_rules! integers {
    ($($integer:ident)*) => {$(
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
                // A quotient is nearer to zero than the dividend, so it fits where that did.
                if $integer::MIN == 0 {
                    (self as u64 / u64::from(divisor)) as $integer
                } else {
                    (self as i64 / i64::from(divisor)) as $integer
                }
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

integers! { i8 u8 i16 u16 i32 u32 i64 u64 }

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

            /// Where neither is smaller they are equal, zeros of either sign, or unordered: the
            /// disjunction of the bits is then the value itself, −0 if one is, or still a NaN.
            #[inline(always)]
            fn least(self, other: Self) -> Self {
                let either = $float::from_bits(self.to_bits() | other.to_bits());
                let smaller = if self < other { self } else { other };
                if (self < other) | (other < self) { smaller } else { either }
            }

            #[inline(always)]
            fn greatest(self, other: Self) -> Self {
                -(-self).least(-other)
            }

            #[inline(always)]
            fn divide(self, divisor: u32) -> Self {
                self / divisor as $float
            }
        }
    )*};
}

floats! { f32 f64 }

/// Operands that are converted together.
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
