//! The element types: one table, one line a type.

use serde::{Deserialize, Serialize};
use std::fmt;

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that can be an element of a collective: the integers of 8 to 64 bits, `half::f16`,
/// `half::bf16`, `f32` and `f64`. Sealed: the table in this file is the list.
///
/// *Other types* travel as what they consist of. A complex number is two floats, and its sum is the
/// sum of its parts. An 8-bit float is a `u8`, to be moved; nothing here computes with it. A `bool`
/// is a `u8` that is 0 or 1: `Bor` (or `Max`) says whether it is true anywhere, `Band` (or `Min`)
/// whether it is true everywhere. Received bytes become a `bool` by a comparison, as a byte that is
/// neither 0 nor 1 would be no `bool`.
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
pub trait Element: bytemuck::Pod + Send + Sync + fmt::Debug + PartialEq + sealed::Sealed {
    /// The element's entry in the table of types.
    const DTYPE: Dtype;
}

macro_rules! dtypes {
    ($($variant:ident $rust:ty, $name:literal, $kind:ident;)*) => {
        /// The type of an element, as a value.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[repr(u8)]
        pub enum Dtype {
            $(#[doc = concat!("`", $name, "`")] $variant,)*
        }

        impl Dtype {
            /// Every type, in the order of the table.
            pub const ALL: &'static [Dtype] = &[$(Dtype::$variant),*];

            /// Bytes per element.
            #[must_use]
            pub const fn size(self) -> usize {
                match self { $(Dtype::$variant => size_of::<$rust>(),)* }
            }

            /// The name used on the command line, in messages and in results.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Dtype::$variant => $name,)* }
            }

            /// Whether the type is a floating-point one.
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

        /// Calls the macro `$callback` once with the whole table of types:
        /// `Variant rust_type, "name", Kind;` a line.
        #[allow(unused_macros)]
        macro_rules! for_each_dtype {
            ($callback:ident) => { $callback! { $($variant $rust, $name, $kind;)* } };
        }
        #[allow(unused_imports)]
        pub(crate) use for_each_dtype;

        /// The Rust type of each, by its name.
        #[doc(hidden)]
        pub mod rust {
            $(pub type $variant = $rust;)*
        }

        /// Evaluates an expression with the Rust type of a [`Dtype`](crate::Dtype), for code
        /// that learns only when it runs what its bytes are: a file's reader, a binding to another
        /// language.
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
                        type $element = $crate::dtype::rust::$variant;
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

ringtree_plan::named!(Dtype, "dtype");
