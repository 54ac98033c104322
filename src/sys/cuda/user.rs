//! What users bring: cudarc's streams and slices.

use super::gpu::Gpu;
use super::memory::Memory;
use super::stream::Stream;
use crate::dtype::Element;
use crate::error::{Error, Result};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtrMut};
use std::sync::Arc;

fn check_context(gpu: &Gpu, context: &CudaContext) -> Result<()> {
    if gpu.is_context(context.cu_ctx().cast()) {
        return Ok(());
    }
    let (own, other) = (gpu.facts().ordinal, context.ordinal());
    Err(Error::usage(format!(
        "collectives here are on the primary context of GPU {own}, but this is of another context, \
         of GPU {other}: make it with CudaContext::new({own})"
    )))
}

/// The user's stream, to be ordered with others. It is kept until this is dropped.
///
/// # Errors
/// [`Error::usage`]: it is of another context.
pub(crate) fn wrap_stream(gpu: &Arc<Gpu>, stream: Arc<CudaStream>) -> Result<Stream> {
    check_context(gpu, stream.context())?;
    let raw = stream.cu_stream().cast();
    // SAFETY: it is of the GPU's primary context, and the value that is kept is what destroys it.
    Ok(unsafe { Stream::of_user(gpu, raw, Box::new(stream)) })
}

/// The slice's memory. `stream` is where the memory is first used: what cudarc knows of other
/// streams' use of the slice comes before. [`unwrap_slice`] gives the slice back.
///
/// # Errors
/// [`Error::usage`]: it is of another context.
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
    // SAFETY: the memory is of the primary context, has so many bytes, and is freed when the slice
    // is dropped, which the value that is kept is.
    Ok(unsafe { Memory::of_user(gpu, address, bytes, Box::new(slice)) })
}

/// The slice of [`wrap_slice`].
///
/// # Errors
/// The memory, if there are clones of it, such as for a collective under way, or it is none of such
/// a slice.
pub(crate) fn unwrap_slice<T: Element>(
    memory: Memory,
) -> std::result::Result<CudaSlice<T>, Memory> {
    memory.into_user().map(|slice| *slice)
}
