//! Stores elements whose type is known only at run time.

use crate::comm::Communicator;
use crate::comm::work::Work;
use crate::dtype::{Dtype, Element, for_each_dtype};
use crate::error::Result;
use crate::op::ReduceOp;
use bytemuck::Zeroable;
use std::ops::Range;
use std::time::Duration;

macro_rules! values {
    ($($variant:ident $rust:ty, $name:literal, $kind:ident;)*) => {
        /// A vector of elements whose type is known only at run time. It can be converted from and
        /// to a `Vec` without copying.
        ///
        /// ```
        /// use ringtree::Dtype;
        /// use ringtree::internal::ddp::Values;
        /// let values = Values::from(vec![1.0f32, 2.0]);
        /// assert_eq!(values.dtype(), Dtype::F32);
        /// assert_eq!(values.as_slice::<f32>(), Some(&[1.0, 2.0][..]));
        /// assert_eq!(Vec::<f32>::try_from(values), Ok(vec![1.0, 2.0]));
        /// ```
        #[derive(Clone, Debug, PartialEq)]
        pub enum Values {
            $(#[doc = concat!("`", $name, "`")] $variant(Vec<$rust>),)*
        }

        impl Values {
            /// Creates `count` zeros of type `dtype`.
            #[must_use]
            pub fn zeros(dtype: Dtype, count: usize) -> Self {
                match dtype {
                    $(Dtype::$variant => Self::$variant(vec![Zeroable::zeroed(); count]),)*
                }
            }

            /// Returns the type of the elements.
            #[must_use]
            pub fn dtype(&self) -> Dtype {
                match self { $(Self::$variant(_) => Dtype::$variant,)* }
            }

            /// Returns the elements as bytes.
            #[must_use]
            pub fn bytes(&self) -> &[u8] {
                match self { $(Self::$variant(values) => bytemuck::cast_slice(values),)* }
            }

            /// Returns the elements as mutable bytes. Any sequence of bytes forms valid elements.
            #[must_use]
            pub fn bytes_mut(&mut self) -> &mut [u8] {
                match self { $(Self::$variant(values) => bytemuck::cast_slice_mut(values),)* }
            }

            /// Starts an all-reduce of the elements.
            pub(super) fn all_reduce(self, comm: &Communicator, op: ReduceOp) -> Result<Pending> {
                match self {
                    $(Self::$variant(values) => {
                        Ok(Pending::$variant(comm.start_all_reduce(values, op)?))
                    })*
                }
            }

            /// Starts an all-gather of the elements.
            pub(super) fn all_gather(self, comm: &Communicator) -> Result<Pending> {
                match self {
                    $(Self::$variant(values) => {
                        Ok(Pending::$variant(comm.start_all_gather(values)?))
                    })*
                }
            }

            /// Starts a reduce-scatter of the elements.
            pub(super) fn reduce_scatter(
                self,
                comm: &Communicator,
                op: ReduceOp,
            ) -> Result<Pending> {
                match self {
                    $(Self::$variant(values) => {
                        Ok(Pending::$variant(comm.start_reduce_scatter(values, op)?))
                    })*
                }
            }
        }

        /// A collective in flight that owns its elements.
        pub(super) enum Pending {
            $($variant(Work<Vec<$rust>>),)*
        }

        impl Pending {
            pub(super) fn is_finished(&self) -> bool {
                match self { $(Self::$variant(work) => work.is_finished(),)* }
            }

            /// Waits for the collective. Returns its elements and the time at which it completed.
            pub(super) fn wait(self) -> Result<(Values, Duration)> {
                match self {
                    $(Self::$variant(work) => {
                        let (values, ended_at) = work.wait_timed()?;
                        Ok((Values::$variant(values), ended_at))
                    })*
                }
            }
        }

        $(
            impl From<Vec<$rust>> for Values {
                fn from(values: Vec<$rust>) -> Self {
                    Self::$variant(values)
                }
            }

            impl TryFrom<Values> for Vec<$rust> {
                type Error = Dtype;

                /// Returns the vector. If the element type does not match, the error is the actual
                /// element type.
                fn try_from(values: Values) -> std::result::Result<Self, Dtype> {
                    match values {
                        Values::$variant(values) => Ok(values),
                        other => Err(other.dtype()),
                    }
                }
            }
        )*
    };
}

for_each_dtype!(values);

impl Values {
    /// Returns `true` if all elements in `range` are finite. Integers are always finite.
    pub(super) fn are_finite(&self, range: Range<usize>) -> bool {
        match self {
            Self::F32(values) => all(&values[range], |one| one.is_finite()),
            Self::F64(values) => all(&values[range], |one| one.is_finite()),
            Self::F16(values) => all(&values[range], |one| one.is_finite()),
            Self::Bf16(values) => all(&values[range], |one| one.is_finite()),
            _ => true,
        }
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn count(&self) -> usize {
        self.bytes().len() / self.dtype().size()
    }

    /// Returns the elements if their type is `T`.
    #[must_use]
    pub fn as_slice<T: Element>(&self) -> Option<&[T]> {
        (self.dtype() == T::DTYPE).then(|| bytemuck::cast_slice(self.bytes()))
    }

    /// Returns the elements as a mutable slice if their type is `T`.
    #[must_use]
    pub fn as_mut_slice<T: Element>(&mut self) -> Option<&mut [T]> {
        (self.dtype() == T::DTYPE).then(|| bytemuck::cast_slice_mut(self.bytes_mut()))
    }
}

/// Returns `true` if `is_so` returns `true` for all values. Branches once per block instead of once
/// per value.
fn all<T: Copy>(values: &[T], is_so: impl Fn(T) -> bool) -> bool {
    let mut blocks = values.chunks(1024);
    blocks.all(|block| block.iter().fold(true, |so_far, one| so_far & is_so(*one)))
}
