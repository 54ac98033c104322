//! Defines how collectives access the device of a model.

use candle_core::Tensor;
use ringtree::cuda::{self, Memory, Stream};

/// A device on which collectives average tensors.
pub(crate) trait Lane: Send {
    /// Returns the device.
    fn device(&self) -> &cuda::Device;

    /// Returns the stream of the collectives, which is not the stream on which candle computes.
    fn stream(&self) -> &Stream;

    /// Takes the memory of `flat`, a contiguous tensor without other users. Work that is already on
    /// candle's stream completes before the collectives on [`Lane::stream`] use the memory.
    fn take(&self, flat: &Tensor) -> candle_core::Result<Memory>;

    /// Returns the memory to `flat`. No collective may use the memory any longer.
    fn give_back(&self, flat: &Tensor, memory: Memory) -> candle_core::Result<()>;
}
