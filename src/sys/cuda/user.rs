//! What users bring: cudarc's streams and slices.

use super::gpu::Gpu;
use super::memory::{Memory, Words};
use super::stream::Stream;
use crate::dtype::Element;
use crate::error::{Error, Result};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtrMut};
use std::sync::Arc;

fn check_context(gpu: &Gpu, context: &CudaContext) -> Result<()> {
    if gpu.is_context(context.cu_ctx()) {
        return Ok(());
    }
    let (own, other) = (gpu.facts().ordinal, context.ordinal());
    Err(Error::Usage(format!(
        "collectives here are on the primary context of GPU {own}, but this is of another context, \
         of GPU {other}: make it with CudaContext::new({own})"
    )))
}

/// The user's stream, to be ordered with others. It is kept until this is dropped.
///
/// # Errors
/// [`Error::Usage`]: it is of another context.
pub fn wrap_stream(gpu: &Arc<Gpu>, stream: Arc<CudaStream>) -> Result<Stream> {
    check_context(gpu, stream.context())?;
    let raw = stream.cu_stream();
    // SAFETY: it is of the GPU's primary context, and the value that is kept is what destroys it.
    Ok(unsafe { Stream::of_user(gpu, raw, Box::new(stream)) })
}

/// The slice's memory. `stream` is where the memory is first used: what cudarc knows of other
/// streams' use of the slice comes before. [`unwrap_slice`] gives the slice back.
///
/// # Errors
/// [`Error::Usage`]: it is of another context.
pub fn wrap_slice<T: Element>(
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
/// The memory, if an operation may still use it, or it is none of such a slice.
pub fn unwrap_slice<T: Element>(
    memory: Arc<Memory>,
) -> std::result::Result<CudaSlice<T>, Arc<Memory>> {
    let memory = Arc::try_unwrap(memory)?;
    memory.into_user().map(|slice| *slice).map_err(Arc::new)
}

/// Lends the slice's memory without taking the slice. From now on the user's stream stands still,
/// until the memory is dropped and all operations that use it are done: then the word at `at` of
/// `words` becomes `value`, which it must not have reached yet. What the user enqueues meanwhile on
/// that stream, or for this slice on any other, comes after.
///
/// # Errors
/// [`Error::Usage`]: another context's, or the word has that value; the driver's.
pub fn lend_slice<T: Element>(
    slice: &mut CudaSlice<T>,
    (user, stream): (&Arc<CudaStream>, &Stream),
    (words, at, value): (Arc<Words>, usize, u32),
) -> Result<Memory> {
    let gpu = stream.gpu();
    check_context(gpu, slice.context())?;
    check_context(gpu, user.context())?;
    words.address(at)?;
    let reached = words.shared().load(at).wrapping_sub(value).cast_signed() >= 0;
    if reached || !stream.is_stream(user.cu_stream()) {
        return Err(Error::Usage(
            "a slice is lent on the stream that will wait, for a word that is not there yet".into(),
        ));
    }
    let bytes = slice.num_bytes();
    let (address, recording) = slice.device_ptr_mut(user);
    let gate = (words.clone(), at, value);
    // cudarc waits for events only while there are streams beside the default one.
    let kept = Box::new(user.clone());
    // SAFETY: the memory is of the primary context and has so many bytes. It lives until the word
    // is `value`: freeing a slice comes after the event that `recording` records below, behind the
    // stream's wait for that word. If there is no wait, as enqueueing it failed, nobody gets the
    // memory.
    let memory = unsafe { Memory::lent(gpu, address, bytes, gate, kept) };
    stream.wait_word(words, at, value)?;
    drop(recording);
    Ok(memory)
}
