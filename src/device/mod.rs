//! Devices: GPUs, their memory and streams, as far as collectives need them.
//!
//! *Purpose.* [`Device`] is a GPU, [`Stream`] a queue of what it is told to do, [`Memory`] a part
//! of its memory: a user's, wrapped, or one that was allocated here. `lane` has a communicator's
//! streams; `staging` copies between a device's memory and the host's, tied to operations of the
//! host by words; `mapped` has GPUs read each other's memory.
//!
//! *Invariants.*
//! - *Only the caller's thread enters the driver*: in the call itself, in `synchronize` and where a
//!   value is dropped. The engine, the control thread and every deadline load and store words in
//!   host memory, and nothing else. So nothing that a rank owes to others waits for a driver.
//! - *A stream waits for words that this rank's host can write*, and for streams that do.
//! - *Nothing is asked of streams*: that they have done something is a word that they write.
//! - *What streams may still use is leaked*, rather than waited for without end.
//!
//! *May import* `engine`, `sys` and the base files.

#![forbid(unsafe_code)]

pub(crate) mod lane;
pub(crate) mod mapped;
pub(crate) mod numbering;
pub(crate) mod staging;

pub use crate::sys::cuda::{Facts as Description, Memory, Stream};

use crate::dtype::Element;
use crate::error::Result;
use crate::sys::cuda::{self, Gpu};
use cudarc::driver::{CudaSlice, CudaStream};
use std::sync::Arc;

/// How many GPUs this process may use, at least one.
///
/// # Errors
/// [`Error::no_device`](crate::Error::no_device) says why there is none.
pub fn count() -> Result<usize> {
    cuda::gpu_count()
}

/// A GPU; clones are one.
#[derive(Clone, Debug)]
pub struct Device {
    gpu: Arc<Gpu>,
}

impl Device {
    /// GPU number `ordinal` of this process, through its primary context.
    ///
    /// ```
    /// use ringtree::Device;
    ///
    /// match Device::open(0) {
    ///     Ok(gpu) => println!("{gpu:?}"),
    ///     Err(error) if error.is_no_device() => println!("{error}"), // "no CUDA here: ..."
    ///     Err(error) => println!("there is a GPU, but {error}"),
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::no_device`](crate::Error::no_device) says why there is none;
    /// [`Error::device`](crate::Error::device): it cannot be used.
    pub fn open(ordinal: usize) -> Result<Self> {
        Gpu::open(ordinal).map(|gpu| Self { gpu })
    }

    /// What it is.
    #[must_use]
    pub fn description(&self) -> &Description {
        self.gpu.facts()
    }

    /// A stream of its own, which waits for no other.
    ///
    /// # Errors
    /// [`Error::device`](crate::Error::device).
    pub fn stream(&self) -> Result<Stream> {
        Stream::new(&self.gpu)
    }

    /// Memory of the device, of undefined content.
    ///
    /// # Errors
    /// [`Error::device`](crate::Error::device): there is not so much.
    pub fn allocate(&self, bytes: usize) -> Result<Memory> {
        Memory::new(&self.gpu, bytes)
    }

    /// The user's stream, to be ordered with others. It is kept as long as this is.
    ///
    /// # Errors
    /// [`Error::usage`](crate::Error::usage): it is of another context than the primary one.
    pub fn wrap_stream(&self, stream: Arc<CudaStream>) -> Result<Stream> {
        cuda::wrap_stream(&self.gpu, stream)
    }

    /// The slice's memory. Its first use is on `stream`, after all that cudarc knows of.
    ///
    /// # Errors
    /// As [`Device::wrap_stream`].
    pub fn wrap_slice<T: Element>(
        &self,
        slice: CudaSlice<T>,
        stream: &CudaStream,
    ) -> Result<Memory> {
        cuda::wrap_slice(&self.gpu, slice, stream)
    }

    /// Gives the slice back, once all collectives that use it have ended and
    /// [`synchronize`](crate::Communicator::synchronize) has said so.
    ///
    /// # Errors
    /// The memory, if something else has it too, or it is not of such a slice.
    pub fn unwrap_slice<T: Element>(memory: Memory) -> std::result::Result<CudaSlice<T>, Memory> {
        cuda::unwrap_slice(memory)
    }

    /// Has the driver compile and load kernels in PTX, for good; as in a first launch, the
    /// driver may wait for everything that the GPU was told to do.
    ///
    /// # Errors
    /// [`Error::usage`](crate::Error::usage): the text is no PTX, which starts with a `.version`
    /// line. [`Error::device`](crate::Error::device): the driver does not take it.
    pub fn load_kernels(&self, text: &str) -> Result<()> {
        self.gpu.load_kernels(text)
    }

    pub(crate) fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }
}
