//! Connects collectives to GPUs, their memory and their streams.
//!
//! *Purpose.* A [`Device`] is a GPU, a [`Stream`] is a queue of work for the GPU, and [`Memory`] is
//! a range of the GPU's memory. This library has either allocated the memory or wrapped memory of
//! the user.
//! - `lane`: a communicator's streams
//! - `staging`: copies between device and host memory that are synchronized with the engine through
//!   words
//! - `mapped`: GPUs that read each other's memory
//! - `numbering`: the numbers of the words that mapped calls use
//!
//! `docs/internals/gpu.md` describes both paths.
//!
//! *Invariants.*
//! - *Only the caller's thread enters the driver.* It does so during the call, in `synchronize`, or
//!   when a value is dropped. The engine, the control thread and the deadlines only load and store
//!   words in host memory. Therefore, no driver call can delay bytes or messages that peers are
//!   waiting for.
//! - *A stream waits only for words that this rank's host can write*, and for streams that follow
//!   this rule.
//! - *The library never queries a stream.* A stream reports progress by writing a word.
//! - *Memory that a stream still uses after a bounded wait is leaked.*
//!
//! *May import* `engine`, `sys` and the base files.

#![forbid(unsafe_code)]

pub(crate) mod lane;
pub(crate) mod mapped;
pub(crate) mod numbering;
pub(crate) mod staging;

pub use crate::sys::cuda::{Memory, Properties as Description, Stream};

use crate::dtype::Element;
use crate::error::Result;
use crate::sys::cuda::{self, Gpu};
use cudarc::driver::{CudaSlice, CudaStream};
use std::sync::Arc;

/// Returns the number of GPUs that this process may use, which is at least 1.
///
/// # Errors
/// Returns an error of kind [`ErrorKind::NoDevice`](crate::ErrorKind::NoDevice) if no GPU is
/// usable. The error states the cause.
pub fn count() -> Result<usize> {
    cuda::gpu_count()
}

/// A GPU. Clones are handles to the same GPU.
#[derive(Clone, Debug)]
pub struct Device {
    gpu: Arc<Gpu>,
}

impl Device {
    /// Opens the GPU that has the index `ordinal` in this process. The GPU is used through its
    /// primary context.
    ///
    /// ```
    /// use ringtree::cuda::Device;
    /// use ringtree::ErrorKind;
    ///
    /// match Device::open(0) {
    ///     Ok(gpu) => println!("{gpu:?}"),
    ///     // "CUDA is not ..."
    ///     Err(error) if error.kind() == ErrorKind::NoDevice => println!("{error}"),
    ///     Err(error) => println!("there is a GPU, but {error}"),
    /// }
    /// ```
    ///
    /// # Errors
    /// If there is no such GPU, returns an error of kind
    /// [`ErrorKind::NoDevice`](crate::ErrorKind::NoDevice) that states the cause. Returns an error
    /// of kind [`ErrorKind::Device`](crate::ErrorKind::Device) if the GPU cannot be used.
    pub fn open(ordinal: usize) -> Result<Self> {
        Gpu::open(ordinal).map(|gpu| Self { gpu })
    }

    /// Creates a stream that does not wait for any other stream.
    ///
    /// # Errors
    /// Returns an error of kind [`ErrorKind::Device`](crate::ErrorKind::Device) if the driver
    /// fails.
    pub fn stream(&self) -> Result<Stream> {
        Stream::new(&self.gpu)
    }

    /// Wraps a cudarc stream and keeps it alive for as long as the returned stream exists.
    ///
    /// # Errors
    /// Returns an error of kind [`ErrorKind::Usage`](crate::ErrorKind::Usage) if the stream does
    /// not belong to the primary context of this GPU.
    pub fn wrap_stream(&self, stream: Arc<CudaStream>) -> Result<Stream> {
        cuda::wrap_stream(&self.gpu, stream)
    }

    /// Wraps a cudarc slice. The first use of the wrapped slice must be on `stream`. This use is
    /// ordered after all earlier uses of the slice that cudarc tracks.
    ///
    /// # Errors
    /// Returns an error of kind [`ErrorKind::Usage`](crate::ErrorKind::Usage) if the slice or the
    /// stream does not belong to the primary context of this GPU.
    pub fn wrap_slice<T: Element>(
        &self,
        slice: CudaSlice<T>,
        stream: &CudaStream,
    ) -> Result<Memory> {
        cuda::wrap_slice(&self.gpu, slice, stream)
    }

    /// Unwraps a cudarc slice. Before you call this function, call
    /// [`synchronize`](crate::Communicator::synchronize) to wait until all collectives that use the
    /// slice have ended.
    ///
    /// # Errors
    /// Returns `memory` if it has other clones or if it is not a wrapped slice of this type.
    pub fn unwrap_slice<T: Element>(memory: Memory) -> std::result::Result<CudaSlice<T>, Memory> {
        cuda::unwrap_slice(memory)
    }

    pub(crate) fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }
}

/// Allocates memory on a device. The contents of the memory are undefined.
///
/// # Errors
/// Returns an error of kind [`ErrorKind::Device`](crate::ErrorKind::Device) if the memory cannot be
/// allocated.
pub fn allocate(device: &Device, bytes: usize) -> Result<Memory> {
    Memory::new(&device.gpu, bytes)
}

/// Returns the properties of a GPU.
#[must_use]
pub fn description(device: &Device) -> &Description {
    device.gpu.facts()
}

/// Compiles kernels from PTX with the driver and loads them permanently. Like the first launch of a
/// kernel, this call may wait for all work on the GPU.
///
/// # Errors
/// Returns an error of kind [`ErrorKind::Usage`](crate::ErrorKind::Usage) if the text is not PTX,
/// that is, does not start with a `.version` line. Returns an error of kind
/// [`ErrorKind::Device`](crate::ErrorKind::Device) if the driver rejects the text.
pub fn load_kernels(device: &Device, text: &str) -> Result<()> {
    device.gpu.load_kernels(text)
}
