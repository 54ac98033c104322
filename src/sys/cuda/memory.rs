//! Wraps device memory, and pinned host memory.

use super::check;
use super::driver::Address;
use super::gpu::Gpu;
use super::stream::Stream;
use super::words::Registered;
use crate::error::{Error, Result};
use crate::lock::lock;
use crate::sys::memory::Region;
use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// `CU_MEMHOSTALLOC_PORTABLE` and `CU_MEMHOSTALLOC_DEVICEMAP`.
const HOST_ALLOC_FLAGS: u32 = 1 | 2;
/// Minimum size in bytes of an allocation of pinned memory. All sizes are powers of two, so that
/// memory can be reused.
const PINNED_BYTES_MIN: usize = 4096;

/// Memory of a GPU. Clones share the memory, which is freed when the last clone is dropped, on any
/// thread. The driver may then wait for all work on the GPU.
#[derive(Clone)]
pub struct Memory(Arc<Inner>);

struct Inner {
    gpu: Arc<Gpu>,
    address: Address,
    bytes: usize,
    /// The user's value that owns the memory, or `None` if this library allocated the memory.
    user: Option<Box<dyn Any + Send + Sync>>,
}

impl Memory {
    /// Allocates memory. Its content is undefined.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub(crate) fn new(gpu: &Arc<Gpu>, bytes: usize) -> Result<Self> {
        let _entered = gpu.enter()?;
        let mut address = 0;
        // SAFETY: the context is current, and there is room for the address. Zero is not a valid
        // length.
        let code = unsafe { (gpu.api.mem_alloc)(&raw mut address, bytes.max(1)) };
        check(code, "cuMemAlloc").map_err(|error| {
            Error::device(format!(
                "cannot allocate {bytes} bytes of device memory: {error}"
            ))
        })?;
        Ok(Self::of(gpu, address, bytes, None))
    }

    fn of(
        gpu: &Arc<Gpu>,
        address: Address,
        bytes: usize,
        user: Option<Box<dyn Any + Send + Sync>>,
    ) -> Self {
        Self(Arc::new(Inner {
            gpu: Arc::clone(gpu),
            address,
            bytes,
            user,
        }))
    }

    /// Wraps `bytes` bytes of device memory at `address`, for example memory that another library
    /// has allocated. The memory is first used on `stream`, and dropping the returned value does
    /// not free it.
    ///
    /// # Safety
    /// The memory must belong to the primary context of the stream's GPU. It must live until the
    /// returned value and all its clones are dropped and all collectives on it have ended.
    #[must_use]
    pub unsafe fn from_raw(address: u64, bytes: usize, stream: &Stream) -> Self {
        Self::of(stream.gpu(), address, bytes, Some(Box::new(())))
    }

    /// Returns `bytes` bytes of this memory, starting at offset `at`. The returned part keeps this
    /// memory alive.
    ///
    /// # Errors
    /// Returns `ErrorKind::Usage` if the part is out of range.
    pub(crate) fn part(&self, at: usize, bytes: usize) -> Result<Self> {
        let address = self.address(at, bytes)?;
        Ok(Self::of(
            self.gpu(),
            address,
            bytes,
            Some(Box::new(self.clone())),
        ))
    }

    /// Wraps a user's memory, which is freed when `value` is dropped.
    ///
    /// # Safety
    /// The memory must belong to this GPU's primary context and live until `value` is dropped.
    pub(super) unsafe fn of_user(
        gpu: &Arc<Gpu>,
        address: Address,
        bytes: usize,
        value: Box<dyn Any + Send + Sync>,
    ) -> Self {
        Self::of(gpu, address, bytes, Some(value))
    }

    /// Returns the user's value. Returns the memory itself if other clones exist, or if the memory
    /// has no value of this type.
    pub(super) fn into_user<T: Any>(self) -> std::result::Result<Box<T>, Self> {
        if !matches!(&self.0.user, Some(value) if value.is::<T>()) {
            return Err(self);
        }
        let mut inner = Arc::try_unwrap(self.0).map_err(Self)?;
        let value = inner
            .user
            .replace(Box::new(()))
            .map(|value| value.downcast());
        Ok(value
            .and_then(std::result::Result::ok)
            .expect("invariant: the type was checked"))
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    pub(super) fn gpu(&self) -> &Arc<Gpu> {
        &self.0.gpu
    }

    pub(super) fn address(&self, at: usize, bytes: usize) -> Result<Address> {
        check_range(at, bytes, self.0.bytes)?;
        Ok(self.0.address + at as u64)
    }
}

fn check_range(at: usize, bytes: usize, of_bytes: usize) -> Result<()> {
    if at.checked_add(bytes).is_none_or(|end| end > of_bytes) {
        return Err(Error::usage(format!(
            "{bytes} bytes at offset {at} are out of range: the memory has {of_bytes} bytes"
        )));
    }
    Ok(())
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.user.is_some() {
            return;
        }
        let Ok(_entered) = self.gpu.enter() else {
            return;
        };
        // Ignore a failure: the context has failed, and everything in it no longer exists.
        // SAFETY: the address came from `mem_alloc` and is freed once. The driver first finishes
        // the work that uses the memory.
        let _ = unsafe { (self.gpu.api.mem_free)(self.address) };
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "Memory({} bytes of {:?})",
            self.0.bytes, self.0.gpu
        )
    }
}

/// Rows of bytes. In device memory, the first row is at `device_at`, and consecutive rows start
/// `pitch` bytes apart. In host memory, the rows start at `host_at` and are contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    /// Offset of the first row on the device.
    pub device_at: usize,
    /// Distance, in bytes, between the starts of two consecutive rows on the device; at least
    /// `width`.
    pub pitch: usize,
    /// Offset of the first row on the host.
    pub host_at: usize,
    /// Number of bytes per row.
    pub width: usize,
    /// Number of rows.
    pub count: usize,
}

impl Rows {
    /// Describes a single row.
    #[must_use]
    pub(crate) fn one(device_at: usize, host_at: usize, bytes: usize) -> Self {
        Self {
            device_at,
            pitch: bytes,
            host_at,
            width: bytes,
            count: 1,
        }
    }

    /// Returns the number of bytes from the start of the first row to the end of the last row on
    /// the device.
    pub(super) fn extent(&self) -> usize {
        self.count.saturating_sub(1) * self.pitch + self.width
    }
}

/// Host memory that a GPU's streams copy from and to, or that contains words that the streams write
/// and wait for. This memory is never freed. Unused memory is kept for later requests
/// ([`Pinned::take`], [`Pinned::give_back`]). The only exception is memory that is shared with
/// other processes, which contains only words and is freed with its last clone.
#[derive(Debug)]
pub(crate) struct Pinned {
    start: NonNull<u8>,
    /// The address that the GPU's streams use.
    address: Address,
    bytes: usize,
    /// The owner of shared memory.
    shared: Option<Registered>,
}

// SAFETY: plain bytes that live as long as the process. `region` explains which code touches them
// when. Words are accessed only as atomics.
unsafe impl Send for Pinned {}
// SAFETY: as for `Send`.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Returns at least `bytes` initialized bytes that no other code uses.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub(crate) fn take(gpu: &Gpu, bytes: usize) -> Result<Arc<Self>> {
        let bytes = bytes.max(PINNED_BYTES_MIN).next_power_of_two();
        let mut idle = lock(&gpu.idle);
        if let Some(at) = idle.iter().position(|one| one.bytes == bytes) {
            return Ok(idle.swap_remove(at));
        }
        drop(idle);
        let _entered = gpu.enter()?;
        let mut start: *mut c_void = std::ptr::null_mut();
        // SAFETY: the context is current, and there is room for the pointer.
        let code = unsafe { (gpu.api.mem_host_alloc)(&raw mut start, bytes, HOST_ALLOC_FLAGS) };
        check(code, "cuMemHostAlloc").map_err(|error| {
            Error::device(format!(
                "cannot allocate {bytes} bytes of pinned memory: {error}"
            ))
        })?;
        let mut address = 0;
        // SAFETY: the memory was just allocated to be mapped, and there is room for the address.
        let code = unsafe { (gpu.api.mem_host_get_device_pointer)(&raw mut address, start, 0) };
        check(code, "cuMemHostGetDevicePointer")?;
        let start = NonNull::new(start.cast::<u8>());
        let start = start.ok_or_else(|| Error::device("cuMemHostAlloc returned a null pointer"))?;
        // SAFETY: the allocation has `bytes` bytes, and no other code has its address yet.
        unsafe { start.write_bytes(0, bytes) };
        Ok(Arc::new(Self {
            start,
            address,
            bytes,
            shared: None,
        }))
    }

    /// Wraps memory that is shared with other processes.
    pub(super) fn of_registered(address: Address, bytes: usize, registered: Registered) -> Self {
        Self {
            start: registered.start(),
            address,
            bytes,
            shared: Some(registered),
        }
    }

    /// Keeps the memory for later requests if this is the last clone. Otherwise, only drops this
    /// clone. No stream may use the memory any longer.
    pub(crate) fn give_back(self: Arc<Self>, gpu: &Gpu) {
        if Arc::strong_count(&self) == 1 {
            lock(&gpu.idle).push(self);
        }
    }

    /// Returns the `bytes` bytes that begin at `at`, for an operation of the engine.
    ///
    /// The callers (`comm::on_device` and `comm::device_buffer`) make sure that the host and the
    /// streams access the bytes alternately. The owner of the region touches the bytes only after a
    /// word shows that the streams have copied into them. The streams touch the bytes only after a
    /// word shows that the owner has finished.
    pub(crate) fn region(self: &Arc<Self>, at: usize, bytes: usize) -> Result<Region> {
        check_range(at, bytes, self.bytes)?;
        assert!(
            self.shared.is_none(),
            "invariant: shared memory contains only words"
        );
        // SAFETY: in bounds, as was just checked.
        let start = unsafe { self.start.add(at) };
        // SAFETY: the bytes are initialized and never freed. Because the callers alternate, no
        // stream and no other region touches them while the owner of this region does.
        Ok(unsafe { Region::of_bytes(start, bytes, Arc::clone(self) as Arc<_>) })
    }

    /// Loads the word at byte `at`. Everything that was written before the returned value was
    /// written is visible afterwards.
    ///
    /// # Errors
    /// Returns `ErrorKind::Usage` if no word begins at `at`.
    pub(crate) fn load(&self, at: usize) -> Result<u32> {
        Ok(self.word(at)?.load(Ordering::Acquire))
    }

    /// Stores the word at byte `at`, ordered after all earlier writes.
    ///
    /// # Errors
    /// Returns `ErrorKind::Usage` if no word begins at `at`.
    pub(crate) fn store(&self, at: usize, value: u32) -> Result<()> {
        self.word(at)?.store(value, Ordering::Release);
        Ok(())
    }

    fn word(&self, at: usize) -> Result<&AtomicU32> {
        check_range(at, size_of::<u32>(), self.bytes)?;
        if !at.is_multiple_of(size_of::<u32>()) {
            return Err(Error::usage(format!(
                "byte {at} is not the start of a word"
            )));
        }
        // SAFETY: in bounds and aligned, as was checked, because the driver allocates and the
        // system maps complete pages. A page that contains words is used for nothing else. The
        // owner of mapped pages is in `self`.
        Ok(unsafe { self.start.add(at).cast::<AtomicU32>().as_ref() })
    }

    pub(super) fn pointer(&self, at: usize, bytes: usize) -> Result<*mut c_void> {
        check_range(at, bytes, self.bytes)?;
        Ok(self.start.as_ptr().wrapping_add(at).cast())
    }

    pub(super) fn address(&self, at: usize) -> Result<Address> {
        check_range(at, size_of::<u32>(), self.bytes)?;
        Ok(self.address + at as u64)
    }
}
