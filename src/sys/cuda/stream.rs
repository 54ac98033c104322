//! Wraps streams, which are queues of the operations that the GPU executes.

use super::check;
use super::driver::{Copy2D, RawEvent, RawStream};
use super::gpu::Gpu;
use super::memory::{Memory, Rows, Span};
use super::pinned::Pinned;
use crate::error::{Error, Result};
use crate::lock::lock;
use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex};

/// `CU_STREAM_NON_BLOCKING`, `CU_EVENT_DISABLE_TIMING`.
const NON_BLOCKING: u32 = 1;
const DISABLE_TIMING: u32 = 2;
/// `CU_STREAM_WAIT_VALUE_GEQ`, `CU_STREAM_WRITE_VALUE_DEFAULT`. A wait also ends if the word is
/// ahead of the value in a cyclic comparison. A reader that sees a word that the stream has written
/// sees everything that the stream did before it wrote the word.
const WAIT_VALUE_GEQ: u32 = 0;
const WRITE_VALUE_DEFAULT: u32 = 0;
/// `CU_MEMORYTYPE_HOST`, `CU_MEMORYTYPE_DEVICE`.
const HOST: u32 = 1;
const DEVICE: u32 = 2;
/// Maximum pitch, in bytes, in a single copy (`CU_DEVICE_ATTRIBUTE_MAX_PITCH`). Rows that are
/// further apart are copied individually.
const PITCH_MAX: usize = i32::MAX as usize;

/// A queue of operations that the GPU executes in sequence. Either a user or this library has
/// created the stream. Clones share the queue.
#[derive(Clone)]
pub struct Stream(Arc<Inner>);

struct Inner {
    gpu: Arc<Gpu>,
    stream: RawStream,
    /// The object that owns the stream if a user supplied it. `None` if this library created the
    /// stream and must destroy it.
    user: Option<Box<dyn Any + Send + Sync>>,
    /// The event that is recorded in this stream when another stream must wait for it.
    reached: Mutex<Option<Event>>,
}

// SAFETY: the driver accepts operations for a stream from any thread.
unsafe impl Send for Inner {}
// SAFETY: as for `Send`.
unsafe impl Sync for Inner {}

/// A point in a stream that other streams can wait for. An event is never destroyed.
#[derive(Debug)]
pub(crate) struct Event(RawEvent);

// SAFETY: the driver's calls on events may come from any thread.
unsafe impl Send for Event {}
// SAFETY: as for `Send`.
unsafe impl Sync for Event {}

impl Event {
    /// Creates an event. It counts as completed until it is recorded.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub(crate) fn new(gpu: &Gpu) -> Result<Self> {
        let _entered = gpu.enter()?;
        let mut event = std::ptr::null_mut();
        // SAFETY: the context is current, and there is room for the pointer.
        let code = unsafe { (gpu.api.event_create)(&raw mut event, DISABLE_TIMING) };
        check(code, "cuEventCreate").map(|()| Self(event))
    }
}

impl Stream {
    /// Creates a stream that does not wait for any other stream, not even for the default stream.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self> {
        // Priority 0 is the default.
        Self::with_priority(gpu, |_| 0)
    }

    /// Like [`Stream::new`], but gives the stream the highest priority, so that computation delays
    /// copies as little as possible.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub(crate) fn urgent(gpu: &Arc<Gpu>) -> Result<Self> {
        Self::with_priority(gpu, |highest| highest)
    }

    fn with_priority(gpu: &Arc<Gpu>, of_highest: impl FnOnce(i32) -> i32) -> Result<Self> {
        let _entered = gpu.enter()?;
        let (mut lowest, mut highest) = (0, 0);
        // SAFETY: the context is current, and there is room for both numbers.
        let code = unsafe { (gpu.api.priority_range)(&raw mut lowest, &raw mut highest) };
        check(code, "cuCtxGetStreamPriorityRange")?;
        let mut stream = std::ptr::null_mut();
        let priority = of_highest(highest);
        // SAFETY: the context is current, and there is room for the pointer.
        let code = unsafe { (gpu.api.stream_create)(&raw mut stream, NON_BLOCKING, priority) };
        check(code, "cuStreamCreateWithPriority")?;
        Ok(Self::of(gpu, stream, None))
    }

    fn of(gpu: &Arc<Gpu>, stream: RawStream, user: Option<Box<dyn Any + Send + Sync>>) -> Self {
        Self(Arc::new(Inner {
            gpu: Arc::clone(gpu),
            stream,
            user,
            reached: Mutex::default(),
        }))
    }

    /// Wraps a user's stream.
    ///
    /// # Safety
    /// The stream must belong to this GPU's primary context and live as long as `user`.
    pub(super) unsafe fn of_user(
        gpu: &Arc<Gpu>,
        stream: RawStream,
        user: Box<dyn Any + Send + Sync>,
    ) -> Self {
        Self::of(gpu, stream, Some(user))
    }

    pub(super) fn gpu(&self) -> &Arc<Gpu> {
        &self.0.gpu
    }

    pub(super) fn raw(&self) -> RawStream {
        self.0.stream
    }

    /// Returns an error if `gpu` is not the GPU of this stream.
    pub(crate) fn check_gpu(&self, gpu: &Arc<Gpu>) -> Result<()> {
        if Arc::ptr_eq(&self.0.gpu, gpu) {
            return Ok(());
        }
        let (own, other) = (self.0.gpu.facts().ordinal, gpu.facts().ordinal);
        Err(Error::usage(format!(
            "cannot use an object of GPU {other} on a stream of GPU {own}"
        )))
    }

    /// Copies rows from device memory to pinned memory.
    ///
    /// # Errors
    /// Returns `ErrorKind::Usage` if a range is out of bounds or belongs to a different GPU.
    /// Otherwise, returns the driver's error.
    pub(crate) fn copy_in(&self, from: &Memory, to: &Pinned, rows: &Rows) -> Result<()> {
        self.copy_rows(from, to, rows, true)
    }

    /// Copies rows from pinned memory to device memory.
    ///
    /// # Errors
    /// Returns the same errors as [`Stream::copy_in`].
    pub(crate) fn copy_out(&self, from: &Pinned, to: &Memory, rows: &Rows) -> Result<()> {
        self.copy_rows(to, from, rows, false)
    }

    fn copy_rows(&self, device: &Memory, host: &Pinned, rows: &Rows, to_host: bool) -> Result<()> {
        self.check_gpu(device.gpu())?;
        if rows.width == 0 || rows.count == 0 {
            return Ok(());
        }
        if rows.count > 1 && rows.pitch > PITCH_MAX {
            let row = |row| {
                let host_at = rows.host_at + row * rows.width;
                Rows::one(rows.device_at + row * rows.pitch, host_at, rows.width)
            };
            return (0..rows.count)
                .try_for_each(|at| self.copy_rows(device, host, &row(at), to_host));
        }
        let address = device.address(rows.device_at, rows.extent())?;
        let pointer = host.pointer(rows.host_at, rows.width * rows.count)?;
        let Inner { gpu, stream, .. } = &*self.0;
        let _entered = gpu.enter()?;
        // SAFETY: the ranges are in memories, as was checked when the addresses were computed. The
        // pinned memory is never freed and, as `Pinned::region` explains, not touched meanwhile.
        // Freeing the device's memory waits for the copy.
        unsafe {
            match (rows.count, to_host) {
                (1, true) => check(
                    (gpu.api.copy_to_host)(pointer, address, rows.width, *stream),
                    "cuMemcpyDtoHAsync",
                ),
                (1, false) => check(
                    (gpu.api.copy_to_device)(address, pointer, rows.width, *stream),
                    "cuMemcpyHtoDAsync",
                ),
                _ => {
                    let copy = copy_2d(address, pointer, rows, to_host);
                    check(
                        (gpu.api.copy_2d)(&raw const copy, *stream),
                        "cuMemcpy2DAsync",
                    )
                }
            }
        }
    }

    /// Copies `bytes` bytes within device memory or from a peer's memory. The ranges must not
    /// overlap.
    ///
    /// # Errors
    /// Returns the same errors as [`Stream::copy_in`].
    pub(crate) fn copy(&self, from: Span<'_>, to: Span<'_>, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let address = |(memory, at): Span<'_>| {
            self.check_gpu(memory.gpu())?;
            memory.address(at, bytes)
        };
        let (from, to) = (address(from)?, address(to)?);
        let Inner { gpu, stream, .. } = &*self.0;
        let _entered = gpu.enter()?;
        // SAFETY: the ranges are in memories, as was checked when the addresses were computed.
        // Freeing memory waits for the copy.
        let code = unsafe { (gpu.api.copy_on_device)(to, from, bytes, *stream) };
        check(code, "cuMemcpyDtoDAsync")
    }

    /// Fills the memory with zeros.
    ///
    /// # Errors
    /// Returns the same errors as [`Stream::copy_in`].
    pub(crate) fn clear(&self, memory: &Memory) -> Result<()> {
        self.check_gpu(memory.gpu())?;
        let bytes = memory.bytes();
        let address = memory.address(0, bytes)?;
        let Inner { gpu, stream, .. } = &*self.0;
        let _entered = gpu.enter()?;
        // SAFETY: the range is the memory's. Freeing it waits for the operation.
        let code = unsafe { (gpu.api.set_bytes)(address, 0, bytes, *stream) };
        check(code, "cuMemsetD8Async")
    }

    /// Enqueues a write of `value` to the word at byte `at`. The word is written once the results
    /// of all earlier entries are visible to the readers of the word.
    ///
    /// # Errors
    /// Returns `ErrorKind::Usage` if there is no such word, or else the driver's error.
    pub(crate) fn write_word(&self, words: &Pinned, at: usize, value: u32) -> Result<()> {
        let address = words.address(at)?;
        let Inner { gpu, stream, .. } = &*self.0;
        let _entered = gpu.enter()?;
        // SAFETY: the word is never freed, and the host reads and writes it as an atomic.
        let code =
            unsafe { (gpu.api.stream_write_value)(*stream, address, value, WRITE_VALUE_DEFAULT) };
        check(code, "cuStreamWriteValue32")
    }

    /// Makes later entries wait until the word at byte `at` is at least `value`, that is, until the
    /// wrapping difference of the word and `value` is not negative.
    ///
    /// # Errors
    /// Returns the same errors as [`Stream::write_word`].
    pub(crate) fn wait_word(&self, words: &Pinned, at: usize, value: u32) -> Result<()> {
        let address = words.address(at)?;
        let Inner { gpu, stream, .. } = &*self.0;
        let _entered = gpu.enter()?;
        // SAFETY: as for `write_word`.
        let code = unsafe { (gpu.api.stream_wait_value)(*stream, address, value, WAIT_VALUE_GEQ) };
        check(code, "cuStreamWaitValue32")
    }

    /// Records the event, which must belong to this GPU, after all entries that have been enqueued
    /// so far.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub(crate) fn record(&self, event: &Event) -> Result<()> {
        let Inner { gpu, stream, .. } = &*self.0;
        let _entered = gpu.enter()?;
        // SAFETY: stream and event are alive.
        check(
            unsafe { (gpu.api.event_record)(event.0, *stream) },
            "cuEventRecord",
        )
    }

    /// Makes later entries wait for the point at which the event was last recorded.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub(crate) fn wait(&self, event: &Event) -> Result<()> {
        let Inner { gpu, stream, .. } = &*self.0;
        let _entered = gpu.enter()?;
        // SAFETY: stream and event are alive.
        check(
            unsafe { (gpu.api.stream_wait_event)(*stream, event.0, 0) },
            "cuStreamWaitEvent",
        )
    }

    /// Makes later entries of this stream wait for all entries that have been enqueued in `other`
    /// so far. Use this method with a dedicated stream for collectives, so that computation
    /// continues at the same time.
    ///
    /// # Errors
    /// Returns `ErrorKind::Usage` if `other` belongs to a different GPU, or else the driver's
    /// error.
    pub fn wait_for(&self, other: &Stream) -> Result<()> {
        self.check_gpu(&other.0.gpu)?;
        let mut reached = lock(&other.0.reached);
        let event = match reached.take() {
            Some(event) => event,
            None => Event::new(&other.0.gpu)?,
        };
        let event = reached.insert(event);
        other.record(event)?;
        self.wait(event)
    }

    /// Returns an error if the stream's operations are being captured into a graph.
    ///
    /// # Errors
    /// Returns `ErrorKind::Usage` if the stream is being captured, or else the driver's error.
    pub(crate) fn refuse_capture(&self) -> Result<()> {
        let Inner { gpu, stream, .. } = &*self.0;
        let _entered = gpu.enter()?;
        let mut status = 0;
        // SAFETY: the stream is alive, and there is room for the integer.
        let code = unsafe { (gpu.api.stream_is_capturing)(*stream, &raw mut status) };
        check(code, "cuStreamIsCapturing")?;
        if status != 0 {
            return Err(Error::usage(
                "the stream is being captured into a graph, but a collective needs the host while \
                 it runs; make the call before or after the capture",
            ));
        }
        Ok(())
    }

    /// Waits until all enqueued entries have completed. If the stream is waiting for an event that
    /// never occurs, this call waits forever.
    ///
    /// # Errors
    /// Returns `ErrorKind::Device` if an operation failed.
    pub fn synchronize(&self) -> Result<()> {
        let Inner { gpu, stream, .. } = &*self.0;
        let _entered = gpu.enter()?;
        // SAFETY: the stream is alive.
        check(
            unsafe { (gpu.api.stream_synchronize)(*stream) },
            "cuStreamSynchronize",
        )
    }
}

fn copy_2d(address: u64, pointer: *mut std::ffi::c_void, rows: &Rows, to_host: bool) -> Copy2D {
    let kinds = if to_host {
        [DEVICE, HOST]
    } else {
        [HOST, DEVICE]
    };
    let pitches = match to_host {
        true => [rows.pitch, rows.width],
        false => [rows.width, rows.pitch],
    };
    Copy2D {
        from_x: 0,
        from_y: 0,
        from_kind: kinds[0],
        from_host: pointer,
        from_device: address,
        from_array: std::ptr::null_mut(),
        from_pitch: pitches[0],
        to_x: 0,
        to_y: 0,
        to_kind: kinds[1],
        to_host: pointer,
        to_device: address,
        to_array: std::ptr::null_mut(),
        to_pitch: pitches[1],
        width: rows.width,
        height: rows.count,
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.user.is_some() {
            return;
        }
        if let Ok(_entered) = self.gpu.enter() {
            // SAFETY: created by `with_priority`, destroyed once. The driver finishes the enqueued
            // work and returns immediately.
            let _ = unsafe { (self.gpu.api.stream_destroy)(self.stream) };
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Stream({:?})", self.0.gpu)
    }
}
