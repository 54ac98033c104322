//! The elements of tensors, as slices.

use bytemuck::Pod;
use candle_core::{
    CpuStorage, DType, Device, InplaceOp1, Layout, Result, Storage, Tensor, Var, WithDType,
};
use ringtree::Dtype;
use std::cell::RefCell;

/// Runs the body with `$element` as the type of the elements of `$dtype`; an error for types that
/// no gradient has.
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
                "gradients of {other:?} cannot be averaged; train in f32, f64, bf16 or f16"
            ))),
        }
    };
}
pub(crate) use for_element;

/// ringtree's name of `dtype`.
pub(crate) fn dtype(dtype: DType) -> Result<Dtype> {
    use ringtree::Element;
    for_element!(dtype, T => Ok(<T as Element>::DTYPE))
}

/// Shows `visit` the elements of `tensor`, of type `T`: where they lie if that is in one piece in
/// host memory, else as a copy.
///
/// ```
/// use candle_core::{Device, Tensor};
/// let tensor = Tensor::new(&[[1f32, 2.0], [3.0, 4.0]], &Device::Cpu)?;
/// let sum = ringtree_candle::with_slice(&tensor, |values: &[f32]| values.iter().sum::<f32>())?;
/// assert_eq!(sum, 10.0);
/// let columns = tensor.t()?; // not in one piece: a copy
/// let values = ringtree_candle::with_slice(&columns, |values: &[f32]| values.to_vec())?;
/// assert_eq!(values, [1.0, 3.0, 2.0, 4.0]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// candle's, also if the elements are of another type.
pub fn with_slice<T: WithDType, R>(tensor: &Tensor, visit: impl FnOnce(&[T]) -> R) -> Result<R> {
    let tensor = tensor.to_device(&Device::Cpu)?.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else {
        candle_core::bail!("a tensor of the CPU lies elsewhere")
    };
    let start = layout.start_offset();
    let elements = &storage.as_slice::<T>()?[start..start + layout.shape().elem_count()];
    Ok(visit(elements))
}

/// What changes the elements of a variable.
type Change<'a> = dyn FnMut(&mut [f32]) + 'a;

/// Shows `visit` the elements of a variable of f32 in host memory, to be changed.
pub(crate) fn with_slice_mut(var: &Var, visit: &mut Change<'_>) -> Result<()> {
    var.inplace_op1(&InPlace(RefCell::new(visit)))
}

/// An operation has no mutable self.
struct InPlace<'a, 'b>(RefCell<&'a mut Change<'b>>);

impl InplaceOp1 for InPlace<'_, '_> {
    fn name(&self) -> &'static str {
        "in place"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let (CpuStorage::F32(all), Some((start, end))) = (storage, layout.contiguous_offsets())
        else {
            candle_core::bail!("the variable is not of f32 in one piece")
        };
        (self.0.borrow_mut())(&mut all[start..end]);
        Ok(())
    }
}

/// Whether two tensors of the CPU hold the same bits; true on other devices, which are not asked.
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
