//! Defines the element types in a table that has one line per type.

use serde::{Deserialize, Serialize};
use std::fmt;

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that can be an element of a collective.
///
/// This trait is sealed. It is implemented for the integers from 8 to 64 bits, `half::f16`,
/// `half::bf16`, `f32` and `f64`.
///
/// Values of other types can be sent as follows:
///
/// - A complex number is sent as two floats. A sum of these floats is the sum of the complex
///   numbers.
/// - An 8-bit float is sent as a `u8`. Calls can transfer 8-bit floats but cannot reduce them.
/// - A `bool` is sent as a `u8` that is 0 or 1. `Bor` and `Max` return 1 if the value is 1 on any
///   rank. `Band` and `Min` return 1 if the value is 1 on all ranks. To convert a received byte to
///   a `bool`, compare it with 0 instead of transmuting it, because a byte other than 0 or 1 is not
///   a valid `bool`.
///
/// ```
/// use ringtree::ReduceOp;
/// let ends = ringtree::simulate(2, |comm| {
///     let mut complex = [[1.0f32, -0.5 * comm.rank() as f32]; 3];
///     comm.all_reduce(complex.as_flattened_mut(), ReduceOp::Sum)?;
///     let mut has_overflown = [u8::from(comm.rank() == 1)];
///     comm.all_reduce(&mut has_overflown, ReduceOp::Bor)?;
///     Ok::<_, ringtree::Error>((complex, has_overflown[0] != 0))
/// });
/// assert_eq!(ends, vec![Ok(([[2.0, -0.5]; 3], true)); 2]);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an element type of collectives",
    note = "elements are integers, f16, bf16, f32 and f64; send a `bool` as `u8`, arrays with \
            `as_flattened_mut()`, and other values with `broadcast_value` or `all_gather_value`"
)]
pub trait Element: bytemuck::Pod + Send + Sync + fmt::Debug + PartialEq + sealed::Sealed {
    /// The [`Dtype`] of this element type.
    const DTYPE: Dtype;
}

macro_rules! dtypes {
    ($($variant:ident $rust:ty, $name:literal, $kind:ident;)*) => {
        /// An element type, represented as a value.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[repr(u8)]
        pub enum Dtype {
            $(#[doc = concat!("`", $name, "`")] $variant,)*
        }

        impl Dtype {
            /// All element types, in the order of the table.
            pub const ALL: &'static [Dtype] = &[$(Dtype::$variant),*];

            /// Returns the number of bytes per element.
            #[must_use]
            pub const fn size(self) -> usize {
                match self { $(Dtype::$variant => size_of::<$rust>(),)* }
            }

            /// Returns the name used on the command line, in messages and in results.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Dtype::$variant => $name,)* }
            }

            /// Returns `true` for a floating-point type.
            #[must_use]
            pub const fn is_float(self) -> bool {
                matches!(self.kind(), Kind::Float)
            }

            const fn kind(self) -> Kind {
                match self { $(Dtype::$variant => Kind::$kind,)* }
            }
        }

        $(
            impl sealed::Sealed for $rust {}
            impl Element for $rust {
                const DTYPE: Dtype = Dtype::$variant;
            }
        )*

        /// Calls the macro `$callback` once, passing it the complete table of element types. Each
        /// line is `Variant rust_type, "name", Kind;`.
        #[allow(unused_macros)]
        macro_rules! for_each_dtype {
            ($callback:ident) => { $callback! { $($variant $rust, $name, $kind;)* } };
        }
        #[allow(unused_imports)]
        pub(crate) use for_each_dtype;

        /// Aliases for the Rust types, named after the variants of `Dtype`.
        #[doc(hidden)]
        pub mod rust {
            $(pub type $variant = $rust;)*
        }

        /// Evaluates an expression with the Rust type that corresponds to a
        /// [`Dtype`](crate::Dtype).
        ///
        /// Use this macro if the element type is known only at run time, for example in code that
        /// reads files or in bindings for another language.
        ///
        /// ```
        /// use ringtree::{Dtype, Element, with_element};
        /// fn bits_of<T: Element>() -> usize {
        ///     8 * size_of::<T>()
        /// }
        /// fn bits(dtype: Dtype) -> usize {
        ///     with_element!(dtype, T => bits_of::<T>())
        /// }
        /// assert_eq!((bits(Dtype::Bf16), bits(Dtype::U64)), (16, 64));
        /// ```
        #[macro_export]
        macro_rules! with_element {
            ($dtype:expr, $element:ident => $body:expr) => {
                match $dtype {
                    $($crate::Dtype::$variant => {
                        type $element = $crate::internal::rust::$variant;
                        $body
                    })*
                }
            };
        }
    };
}

enum Kind {
    Integer,
    Float,
}

dtypes! {
    I8   i8,          "i8",   Integer;
    U8   u8,          "u8",   Integer;
    I16  i16,         "i16",  Integer;
    U16  u16,         "u16",  Integer;
    I32  i32,         "i32",  Integer;
    U32  u32,         "u32",  Integer;
    I64  i64,         "i64",  Integer;
    U64  u64,         "u64",  Integer;
    F16  half::f16,   "f16",  Float;
    Bf16 half::bf16,  "bf16", Float;
    F32  f32,         "f32",  Float;
    F64  f64,         "f64",  Float;
}

impl Dtype {
    /// Returns the discriminant, for encoding.
    pub(crate) const fn code(self) -> u8 {
        self as u8
    }

    /// Returns the value whose discriminant is `code`, for decoding.
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

ringtree_plan::named!(Dtype, "dtype");
