//! The device of a model, as a place where collectives are done.

use candle_core::Tensor;
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
