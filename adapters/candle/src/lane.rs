//! The device of a model, as a place where collectives are done.

use crate::builder::Hooked;
use crate::error::{Error, Result};
use candle_core::{Device, Tensor};
use ringtree::device::{self, Memory, Stream};

/// What collectives need of the device that tensors lie on.
pub(crate) trait Lane: Send {
    /// The device.
    fn device(&self) -> &device::Device;

    /// The stream of the collectives, not that on which candle computes.
    fn stream(&self) -> &Stream;

    /// Takes its memory from `flat`, a contiguous tensor that nobody else has, where it holds what
    /// candle's stream was told so far.
    fn take(&self, flat: &Tensor) -> candle_core::Result<Memory>;

    /// Gives the memory back, once no collective uses it.
    fn give_back(&self, flat: &Tensor, memory: Memory) -> candle_core::Result<()>;
}

/// The one device of all `parameters`, and its lane if collectives are done on it: gradients on
/// other devices go through host memory.
///
/// # Errors
/// [`Error::Usage`] if they do not lie on one device; what the device has against it.
pub(crate) fn of_model(parameters: &[Hooked]) -> Result<Option<(Device, Box<dyn Lane>)>> {
    let Some(first) = parameters.first() else {
        return Ok(None);
    };
    let device = first.var.device();
    let is_elsewhere = |each: &&Hooked| !each.var.device().same_device(device);
    if let Some(other) = parameters.iter().find(is_elsewhere) {
        return Err(Error::Usage(format!(
            "{} lies on {:?}, but {} on {:?}: build the whole model with one `Device`, and clones \
             of it",
            first.name,
            device.location(),
            other.name,
            other.var.device().location()
        )));
    }
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(cuda) => {
            let lane = crate::cuda::CudaLane::new(cuda)?;
            Ok(Some((device.clone(), Box::new(lane))))
        }
        _ => Ok(None),
    }
}
