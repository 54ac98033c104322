//! Wraps users' memory, and the streams and slices that users create with cudarc.

use super::gpu::Gpu;
use super::memory::Memory;
use super::stream::Stream;
use crate::dtype::Element;
use crate::error::{Error, Result};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtrMut};
use std::sync::Arc;

impl Memory {
    /// Wraps `bytes` bytes of device memory at `address`, for example memory that another library
    /// has allocated. The memory is first used on `stream`, and dropping the returned value does
    /// not free it.
    ///
    /// # Safety
    /// The memory must belong to the primary context of the stream's GPU. It must live until the
    /// returned value and all its clones are dropped and all collectives on it have ended.
    #[must_use]
    pub unsafe fn from_raw(address: u64, bytes: usize, stream: &Stream) -> Self {
        // SAFETY: the caller guarantees both.
        unsafe { Self::of_user(stream.gpu(), address, bytes, Box::new(())) }
    }
}

fn check_context(gpu: &Gpu, context: &CudaContext) -> Result<()> {
    if gpu.is_context(context.cu_ctx().cast()) {
        return Ok(());
    }
    let (own, other) = (gpu.facts().ordinal, context.ordinal());
    Err(Error::usage(format!(
        "the stream or slice belongs to a different context, on GPU {other}, but collectives use \
         the primary context of GPU {own}; create it with CudaContext::new({own})"
    )))
}

/// Wraps the user's stream, so that other streams can be ordered with it. The user's stream stays
/// alive until the returned value is dropped.
///
/// # Errors
/// Returns `ErrorKind::Usage` if the stream belongs to a different context.
pub(crate) fn wrap_stream(gpu: &Arc<Gpu>, stream: Arc<CudaStream>) -> Result<Stream> {
    check_context(gpu, stream.context())?;
    let raw = stream.cu_stream().cast();
    // SAFETY: it is of the GPU's primary context, and the value that is kept is the one that
    // destroys it.
    Ok(unsafe { Stream::of_user(gpu, raw, Box::new(stream)) })
}

/// Wraps the memory of a slice. The memory is first used on `stream`, which waits for all uses of
/// the slice on other streams that cudarc tracks. [`unwrap_slice`] returns the slice.
///
/// # Errors
/// Returns `ErrorKind::Usage` if the slice or the stream belongs to a different context.
pub(crate) fn wrap_slice<T: Element>(
    gpu: &Arc<Gpu>,
    mut slice: CudaSlice<T>,
    stream: &CudaStream,
) -> Result<Memory> {
    check_context(gpu, slice.context())?;
    check_context(gpu, stream.context())?;
    let bytes = slice.num_bytes();
    let (address, recording) = slice.device_ptr_mut(stream);
    drop(recording);
    // SAFETY: the memory is of the primary context, has `bytes` bytes, and is freed when the slice
    // is dropped, which the kept value is.
    Ok(unsafe { Memory::of_user(gpu, address, bytes, Box::new(slice)) })
}

/// Returns the slice that [`wrap_slice`] wrapped.
///
/// # Errors
/// Returns the memory if it has other clones, such as a clone for a collective in flight, or if it
/// does not wrap a slice of this type.
pub(crate) fn unwrap_slice<T: Element>(
    memory: Memory,
) -> std::result::Result<CudaSlice<T>, Memory> {
    memory.into_user().map(|slice| *slice)
}
