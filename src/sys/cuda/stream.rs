//! Streams: every operation the GPU is told to do.

use super::event::Event;
use super::gpu::{Facts, Gpu, Wait};
use super::ledger::{Kept, Ledger};
use super::memory::{Memory, Pinned, Words};
use super::{check, lock};
use crate::error::{Error, Result};
use cudarc::driver::sys::{self as raw, CUresult, CUstream, CUstream_flags, CUstreamCaptureStatus};
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// A stream, this library's or a user's.
pub struct Stream {
    gpu: Arc<Gpu>,
    stream: CUstream,
    /// What keeps a user's stream alive; none if it is to be destroyed here.
    user: Option<Box<dyn Any + Send + Sync>>,
    ledger: Arc<Ledger>,
}

// SAFETY: the driver takes operations for a stream from any thread; their numbers are given under
// the ledger's lock.
unsafe impl Send for Stream {}
// SAFETY: as for `Send`.
unsafe impl Sync for Stream {}

impl Stream {
    /// A stream that waits for no other, not even for the default one.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self> {
        // What streams have that ask for nothing.
        Self::with_priority(gpu, |_| 0)
    }

    /// The same, of the highest priority: its operations go first, and never through the same
    /// queue of the GPU as those of ordinary streams.
    ///
    /// # Errors
    /// The driver's.
    pub fn urgent(gpu: &Arc<Gpu>) -> Result<Self> {
        Self::with_priority(gpu, |highest| highest)
    }

    fn with_priority(gpu: &Arc<Gpu>, of_highest: impl FnOnce(i32) -> i32) -> Result<Self> {
        gpu.sweep();
        let _entered = gpu.enter()?;
        let (mut lowest, mut highest) = (0, 0);
        // SAFETY: the context is current; there is room for both numbers.
        let code = unsafe { raw::cuCtxGetStreamPriorityRange(&raw mut lowest, &raw mut highest) };
        check(code, "cuCtxGetStreamPriorityRange")?;
        let mut stream = std::ptr::null_mut();
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        let priority = of_highest(highest);
        // SAFETY: the context is current; there is room for the pointer.
        let code = unsafe { raw::cuStreamCreateWithPriority(&raw mut stream, flags, priority) };
        check(code, "cuStreamCreateWithPriority")?;
        Ok(Self::with(gpu, stream, None))
    }

    fn with(gpu: &Arc<Gpu>, stream: CUstream, user: Option<Box<dyn Any + Send + Sync>>) -> Self {
        let ledger = Arc::new(Ledger::default());
        lock(&gpu.ledgers).push(ledger.clone());
        Self {
            gpu: gpu.clone(),
            stream,
            user,
            ledger,
        }
    }

    /// A user's stream.
    ///
    /// # Safety
    /// It is a stream of this GPU's primary context and lives as long as `user`.
    pub(super) unsafe fn of_user(
        gpu: &Arc<Gpu>,
        stream: CUstream,
        user: Box<dyn Any + Send + Sync>,
    ) -> Self {
        Self::with(gpu, stream, Some(user))
    }

    pub(super) fn is_stream(&self, stream: CUstream) -> bool {
        self.stream == stream
    }

    /// What its GPU is.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        self.gpu.facts()
    }

    pub(super) fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    fn check_gpu(&self, gpu: &Arc<Gpu>) -> Result<()> {
        if Arc::ptr_eq(&self.gpu, gpu) {
            return Ok(());
        }
        let (own, other) = (self.gpu.facts().ordinal, gpu.facts().ordinal);
        Err(Error::Usage(format!(
            "a stream of GPU {own} is given something of GPU {other}"
        )))
    }

    fn enqueue(
        &self,
        kept: impl IntoIterator<Item = Kept>,
        what: &str,
        call: impl FnOnce() -> CUresult,
    ) -> Result<()> {
        let _entered = self.gpu.enter()?;
        self.ledger
            .enqueue(&self.gpu, self.stream, kept, what, call)
    }

    /// Copies `bytes` bytes between memories of this GPU.
    ///
    /// # Errors
    /// [`Error::Usage`]: out of bounds, or another GPU's; the driver's.
    pub fn copy(
        &self,
        (from, from_at): (Arc<Memory>, usize),
        (to, to_at): (Arc<Memory>, usize),
        bytes: usize,
    ) -> Result<()> {
        self.check_gpu(from.gpu())?;
        self.check_gpu(to.gpu())?;
        let (source, destination) = (from.address(from_at, bytes)?, to.address(to_at, bytes)?);
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: both ranges lie in memories that live until the operation is done.
        let call = || unsafe { raw::cuMemcpyDtoDAsync_v2(destination, source, bytes, self.stream) };
        let kept = [Kept::Memory(from), Kept::Memory(to)];
        self.enqueue(kept, "cuMemcpyDtoDAsync", call)
    }

    /// Copies into pinned memory.
    ///
    /// # Errors
    /// As [`Stream::copy`].
    pub fn copy_to_host(
        &self,
        (from, from_at): (Arc<Memory>, usize),
        (to, to_at): (Arc<Pinned>, usize),
        bytes: usize,
    ) -> Result<()> {
        self.check_gpu(from.gpu())?;
        let (source, destination) = (from.address(from_at, bytes)?, to.at(to_at, bytes)?);
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: both ranges lie in memory that lives until the operation is done; as the stream
        // shares the pinned one, the host does not reach its bytes meanwhile.
        let call = || unsafe { raw::cuMemcpyDtoHAsync_v2(destination, source, bytes, self.stream) };
        let kept = [Kept::Memory(from), Kept::Pinned(to)];
        self.enqueue(kept, "cuMemcpyDtoHAsync", call)
    }

    /// Copies from pinned memory.
    ///
    /// # Errors
    /// As [`Stream::copy`].
    pub fn copy_from_host(
        &self,
        (from, from_at): (Arc<Pinned>, usize),
        (to, to_at): (Arc<Memory>, usize),
        bytes: usize,
    ) -> Result<()> {
        self.check_gpu(to.gpu())?;
        let (source, destination) = (from.at(from_at, bytes)?, to.address(to_at, bytes)?);
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: as in `copy_to_host`.
        let call = || unsafe { raw::cuMemcpyHtoDAsync_v2(destination, source, bytes, self.stream) };
        let kept = [Kept::Pinned(from), Kept::Memory(to)];
        self.enqueue(kept, "cuMemcpyHtoDAsync", call)
    }

    /// Launches the kernel of this name with one argument. Only for the kernels of `reduce::gpu`
    /// with the arguments made there, whose addresses are of ranges of `memories` that they read
    /// and write and nothing else.
    ///
    /// # Errors
    /// [`Error::Usage`]: another GPU's memory; [`Error::Device`]: there is no such kernel; the
    /// driver's.
    pub(crate) fn launch(
        &self,
        entry: &str,
        (blocks, threads): (u32, u32),
        argument: &[u8],
        memories: impl Iterator<Item = Arc<Memory>> + Clone,
    ) -> Result<()> {
        memories
            .clone()
            .try_for_each(|memory| self.check_gpu(memory.gpu()))?;
        let kernels = self.gpu.kernels.get();
        let kernels = kernels.ok_or_else(|| Error::Device("no kernels were loaded".into()))?;
        let function = kernels.function(entry)?;
        let mut arguments = [argument.as_ptr().cast_mut().cast()];
        // SAFETY: the function is loaded for good and takes one argument, as long as the bytes
        // (`reduce::gpu` tests that), which the driver copies before it returns. What the kernel
        // reads and writes lies in the memories, as the caller says, which live until it is done.
        let call = || unsafe {
            raw::cuLaunchKernel(
                function,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                0,
                self.stream,
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        self.enqueue(memories.map(Kept::Memory), entry, call)
    }

    /// Records the event behind everything enqueued so far.
    ///
    /// # Errors
    /// [`Error::Usage`]: another GPU's; the driver's.
    pub fn record(&self, event: &Event) -> Result<()> {
        self.check_gpu(event.gpu())?;
        let _entered = self.gpu.enter()?;
        event.record(&self.ledger, self.stream)
    }

    /// What comes waits for the event's latest recording.
    ///
    /// # Errors
    /// [`Error::Usage`]: another GPU's; the driver's.
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.check_gpu(event.gpu())?;
        let raw_event = event.raw();
        // SAFETY: stream and event are alive; the driver keeps what the wait needs of the event.
        let call = || unsafe { raw::cuStreamWaitEvent(self.stream, raw_event, 0) };
        self.enqueue([], "cuStreamWaitEvent", call)
    }

    /// Writes a word, after everything before it is visible to whoever reads the word.
    ///
    /// # Errors
    /// [`Error::Usage`]: there is no such word; the driver's.
    pub fn write_word(&self, words: Arc<Words>, at: usize, value: u32) -> Result<()> {
        self.check_gpu(words.gpu())?;
        let address = words.address(at)?;
        let flags = raw::CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as u32;
        // SAFETY: the word is registered until the operation is done; everybody reaches it as an
        // atomic.
        let call = || unsafe { raw::cuStreamWriteValue32_v2(self.stream, address, value, flags) };
        self.enqueue([Kept::Words(words)], "cuStreamWriteValue32", call)
    }

    /// What comes waits until the word is at least `value`, cyclically.
    ///
    /// # Errors
    /// [`Error::Usage`]: there is no such word; the driver's.
    pub fn wait_word(&self, words: Arc<Words>, at: usize, value: u32) -> Result<()> {
        self.check_gpu(words.gpu())?;
        let address = words.address(at)?;
        let flags = raw::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as u32;
        let wait = Wait::begin();
        // SAFETY: as for `write_word`.
        let call = || unsafe { raw::cuStreamWaitValue32_v2(self.stream, address, value, flags) };
        let kept = [Kept::Words(words), Kept::Wait(wait)];
        self.enqueue(kept, "cuStreamWaitValue32", call)
    }

    /// Whether operations are being captured into a graph.
    ///
    /// # Errors
    /// The driver's.
    pub fn is_captured(&self) -> Result<bool> {
        let _entered = self.gpu.enter()?;
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the stream is alive; there is room for the value, which is one of these three.
        let code = unsafe { raw::cuStreamIsCapturing(self.stream, &raw mut status) };
        check(code, "cuStreamIsCapturing")?;
        Ok(status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// Waits until everything is done.
    ///
    /// # Errors
    /// The driver's: an operation failed.
    pub fn synchronize(&self) -> Result<()> {
        let _entered = self.gpu.enter()?;
        let number = self.ledger.number_at("", || CUresult::CUDA_SUCCESS)?;
        // SAFETY: the stream is alive.
        let code = unsafe { raw::cuStreamSynchronize(self.stream) };
        check(code, "cuStreamSynchronize")?;
        self.ledger.release(number);
        Ok(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let Ok(_entered) = self.gpu.enter() else {
            return;
        };
        self.ledger.close(&self.gpu, self.stream);
        if self.user.is_none() {
            // SAFETY: made by `new`, destroyed once. The driver finishes what was enqueued and
            // returns at once.
            let _ = unsafe { raw::cuStreamDestroy_v2(self.stream) };
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Stream({:?}, {:?})", self.gpu, self.ledger)
    }
}
