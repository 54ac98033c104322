//! Saves and loads variables as parts of a checkpoint.

use crate::elements::{for_element, with_slice};
use candle_core::{Device, Tensor, Var, WithDType};
use ringtree::Element;
use ringtree::ddp::checkpoint::Parts;

/// Saves the elements of `var` as the part `name` of a checkpoint, or replaces them with the
/// elements from the checkpoint when it is loaded. After you load a model, call
/// [`Replica::refresh`](crate::Replica::refresh).
///
/// ```
/// use candle_core::{DType, Device, Tensor, Var};
/// use ringtree::ddp::checkpoint::Checkpoint;
/// use ringtree_candle::part;
///
/// let saved = Var::from_tensor(&Tensor::new(&[[1f32, 2.0]], &Device::Cpu)?)?;
/// let mut checkpoint = Checkpoint::default();
/// checkpoint.insert_parts(|parts| part(parts, "model/weight", &saved)).unwrap();
/// let loaded = Var::zeros((1, 2), DType::F32, &Device::Cpu)?;
/// checkpoint.load_parts("model", |parts| part(parts, "model/weight", &loaded)).unwrap();
/// assert_eq!(loaded.to_vec2::<f32>()?, [[1.0, 2.0]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// Returns the same errors as [`Parts::tensor`], and
/// [`ErrorKind::System`](ringtree::ErrorKind::System) if candle returns an error.
pub fn part(parts: &mut Parts<'_>, name: &str, var: &Var) -> ringtree::Result<()> {
    let known = for_element!(var.dtype(), T => Ok(part_of::<T>(parts, name, var)));
    known.map_err(|error| refused(name, &error))?
}

fn refused(name: &str, error: &candle_core::Error) -> ringtree::Error {
    ringtree::Error::new(
        ringtree::ErrorKind::System,
        format!("cannot save or load variable '{name}': {error}"),
    )
}

fn part_of<T: WithDType + Element>(
    parts: &mut Parts<'_>,
    name: &str,
    var: &Var,
) -> ringtree::Result<()> {
    let failed = |error: candle_core::Error| refused(name, &error);
    let mut elements = with_slice(var, <[T]>::to_vec).map_err(failed)?;
    parts.tensor(name, var.dims(), &mut elements)?;
    if !parts.is_loading() {
        return Ok(());
    }
    let loaded = Tensor::from_vec(elements, var.shape(), &Device::Cpu);
    let loaded = loaded.and_then(|loaded| loaded.to_device(var.device()));
    loaded.and_then(|loaded| var.set(&loaded)).map_err(failed)
}
