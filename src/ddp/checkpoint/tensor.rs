//! A tensor as a value: element type, shape, bytes.

use crate::dtype::{Dtype, Element};

/// Elements of one type in a shape, as bytes: the last dimension varies fastest, numbers are
/// little-endian.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Tensor {
    /// A tensor with a copy of `values`.
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
    /// A sentence: the shape holds another number of elements.
    pub fn new<T: Element>(shape: &[usize], values: &[T]) -> Result<Self, String> {
        let bytes = bytemuck::cast_slice(values).to_vec();
        Self::from_bytes(T::DTYPE, shape.to_vec(), bytes)
    }

    /// A tensor of bytes that are there already.
    ///
    /// # Errors
    /// A sentence: the shape holds another number of bytes.
    pub fn from_bytes(dtype: Dtype, shape: Vec<usize>, bytes: Vec<u8>) -> Result<Self, String> {
        if byte_count(dtype, &shape) == Some(bytes.len()) {
            return Ok(Self {
                dtype,
                shape,
                bytes,
            });
        }
        Err(format!(
            "{} bytes are no {dtype} of shape {shape:?}",
            bytes.len()
        ))
    }

    /// The type of the elements.
    #[must_use]
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The dimensions, outermost first; none for a single number.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// How many elements there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.bytes.len() / self.dtype.size()
    }

    /// The elements' bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes for writing; their number is fixed.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// The elements, copied.
    ///
    /// # Errors
    /// A sentence: the elements are of another type.
    pub fn values<T: Element>(&self) -> Result<Vec<T>, String> {
        if T::DTYPE == self.dtype {
            // Not a cast: the bytes need not be aligned for the elements.
            let mut values = vec![T::zeroed(); self.bytes.len() / size_of::<T>()];
            bytemuck::cast_slice_mut(&mut values).copy_from_slice(&self.bytes);
            return Ok(values);
        }
        Err(format!(
            "the elements are {}, asked for as {}",
            self.dtype,
            T::DTYPE
        ))
    }

    /// A tensor of zeros, or nothing if no memory could hold it.
    pub(super) fn zeros(dtype: Dtype, shape: Vec<usize>) -> Option<Self> {
        let byte_count = byte_count(dtype, &shape)?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(byte_count).ok()?;
        bytes.resize(byte_count, 0);
        Some(Self {
            dtype,
            shape,
            bytes,
        })
    }
}

fn byte_count(dtype: Dtype, shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(dtype.size(), |count, dimension| {
        count.checked_mul(*dimension)
    })
}
