//! Represents a tensor as its element type, its shape and its bytes.

use crate::dtype::{Dtype, Element};
use crate::error::{Error, Result};

/// A tensor whose elements are stored as bytes. The last dimension varies fastest, and elements are
/// little-endian.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Tensor {
    /// Creates a tensor with a copy of `values`.
    ///
    /// ```
    /// use ringtree::{Dtype, ddp::checkpoint::Tensor};
    /// let tensor = Tensor::new(&[2, 1], &[1.0f32, 2.0]).expect("two elements");
    /// assert_eq!(tensor.dtype(), Dtype::F32);
    /// assert_eq!(tensor.values::<f32>(), Ok(vec![1.0, 2.0]));
    /// assert!(Tensor::new(&[3], &[1.0f32]).is_err());
    /// ```
    ///
    /// # Errors
    /// Returns [`ErrorKind::Usage`](crate::ErrorKind::Usage) if `shape` does not match the number
    /// of elements in `values`.
    pub fn new<T: Element>(shape: &[usize], values: &[T]) -> Result<Self> {
        let bytes = bytemuck::cast_slice(values).to_vec();
        Self::from_bytes(T::DTYPE, shape.to_vec(), bytes)
    }

    /// Creates a tensor from its bytes.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Usage`](crate::ErrorKind::Usage) if the number of bytes does not match
    /// `dtype` and `shape`.
    pub(crate) fn from_bytes(dtype: Dtype, shape: Vec<usize>, bytes: Vec<u8>) -> Result<Self> {
        if byte_count(dtype, &shape) == Some(bytes.len()) {
            return Ok(Self {
                dtype,
                shape,
                bytes,
            });
        }
        Err(Error::usage(format!(
            "{} bytes do not match {dtype} of shape {shape:?}",
            bytes.len()
        )))
    }

    /// Returns the type of the elements.
    #[must_use]
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Returns the extents of the dimensions, outermost first. A scalar has no dimensions.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns `true` if the tensor has this shape and element type.
    pub(super) fn is(&self, shape: &[usize], dtype: Dtype) -> bool {
        self.shape == shape && self.dtype == dtype
    }

    /// Returns the number of elements.
    pub(crate) fn count(&self) -> usize {
        self.bytes.len() / self.dtype.size()
    }

    /// Returns the elements as bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the elements as mutable bytes. The number of bytes cannot change.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Returns a copy of the elements.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Usage`](crate::ErrorKind::Usage) if the elements have a different type.
    pub fn values<T: Element>(&self) -> Result<Vec<T>> {
        if T::DTYPE == self.dtype {
            // Copy the bytes instead of casting them, because they may not be aligned for `T`.
            let mut values = vec![T::zeroed(); self.bytes.len() / size_of::<T>()];
            bytemuck::cast_slice_mut(&mut values).copy_from_slice(&self.bytes);
            return Ok(values);
        }
        Err(Error::usage(format!(
            "the elements have type {}, but {} was requested",
            self.dtype,
            T::DTYPE
        )))
    }

    /// Creates a tensor of zeros. Returns `None` if there is not enough memory.
    pub(super) fn zeros(dtype: Dtype, shape: Vec<usize>) -> Option<Self> {
        let byte_count = byte_count(dtype, &shape)?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(byte_count).ok()?;
        bytes.resize(byte_count, 0);
        Self::from_bytes(dtype, shape, bytes).ok()
    }
}

fn byte_count(dtype: Dtype, shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(dtype.size(), |count, dimension| {
        count.checked_mul(*dimension)
    })
}
