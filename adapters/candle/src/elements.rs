//! Gives access to the elements of tensors as slices.

use bytemuck::Pod;
use candle_core::{
    CpuStorage, DType, Device, InplaceOp1, Layout, Result, Storage, Tensor, Var, WithDType,
};
use ringtree::Dtype;
use std::cell::RefCell;

/// Runs the body with `$element` as the element type of `$dtype`. Returns an error for types that
/// gradients cannot have.
macro_rules! for_element {
    ($dtype:expr, $element:ident => $body:expr) => {
        match $dtype {
            candle_core::DType::F32 => {
                type $element = f32;
                $body
            }
            candle_core::DType::F64 => {
                type $element = f64;
                $body
            }
            candle_core::DType::F16 => {
                type $element = half::f16;
                $body
            }
            candle_core::DType::BF16 => {
                type $element = half::bf16;
                $body
            }
            other => Err(candle_core::Error::Msg(format!(
                "cannot average gradients of type {other:?}; train in f32, f64, bf16 or f16"
            ))),
        }
    };
}
pub(crate) use for_element;

/// Converts `dtype` to ringtree's type.
pub(crate) fn dtype(dtype: DType) -> Result<Dtype> {
    use ringtree::Element;
    for_element!(dtype, T => Ok(<T as Element>::DTYPE))
}

/// Calls `visit` with the elements of `tensor`, which must have type `T`. Copies them first if they
/// are not contiguous in host memory.
///
/// ```
/// use candle_core::{Device, Tensor};
/// let tensor = Tensor::new(&[[1f32, 2.0], [3.0, 4.0]], &Device::Cpu)?;
/// let sum = ringtree_candle::with_slice(&tensor, |values: &[f32]| values.iter().sum::<f32>())?;
/// assert_eq!(sum, 10.0);
/// let columns = tensor.t()?; // not contiguous, so `with_slice` copies
/// let values = ringtree_candle::with_slice(&columns, |values: &[f32]| values.to_vec())?;
/// assert_eq!(values, [1.0, 3.0, 2.0, 4.0]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// Returns an error from candle, for example if the elements have a different type.
pub fn with_slice<T: WithDType, R>(tensor: &Tensor, visit: impl FnOnce(&[T]) -> R) -> Result<R> {
    let tensor = tensor.to_device(&Device::Cpu)?.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else {
        candle_core::bail!("a CPU tensor has no storage in host memory")
    };
    let start = layout.start_offset();
    let elements = &storage.as_slice::<T>()?[start..start + layout.shape().elem_count()];
    Ok(visit(elements))
}

/// A function that changes the elements of a variable.
type Change<'a> = dyn FnMut(&mut [f32]) + 'a;

/// Calls `visit` with the mutable elements of an f32 variable in host memory.
pub(crate) fn with_slice_mut(var: &Var, visit: &mut Change<'_>) -> Result<()> {
    var.inplace_op1(&InPlace(RefCell::new(visit)))
}

/// An operation that changes a variable. The `RefCell` is necessary because operations take
/// `&self`.
struct InPlace<'a, 'b>(RefCell<&'a mut Change<'b>>);

impl InplaceOp1 for InPlace<'_, '_> {
    fn name(&self) -> &'static str {
        "in place"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let (CpuStorage::F32(all), Some((start, end))) = (storage, layout.contiguous_offsets())
        else {
            candle_core::bail!("the variable must be contiguous and of type f32")
        };
        (self.0.borrow_mut())(&mut all[start..end]);
        Ok(())
    }
}

/// Returns `true` if two CPU tensors have the same bits. Returns `true` for tensors on other
/// devices without comparing them.
pub(crate) fn same_bits(one: &Tensor, other: &Tensor) -> Result<bool> {
    fn bytes<T: Pod>(elements: &[T]) -> &[u8] {
        bytemuck::cast_slice(elements)
    }
    if !one.device().is_cpu() {
        return Ok(true);
    }
    for_element!(one.dtype(), T => {
        with_slice::<T, _>(one, |one| {
            with_slice::<T, _>(other, |other| bytes(one) == bytes(other))
        })?
    })
}
