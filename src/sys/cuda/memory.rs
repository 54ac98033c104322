//! Memory: of the device, and pinned memory of the host.

use super::driver::Address;
use super::gpu::Gpu;
use super::words::Registered;
use super::{check, lock};
use crate::error::{Error, Result};
use crate::sys::memory::Region;
use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// `CU_MEMHOSTALLOC_PORTABLE` and `CU_MEMHOSTALLOC_DEVICEMAP`.
const HOST_ALLOC_FLAGS: u32 = 1 | 2;
/// Pinned memory comes in powers of two, from this many bytes on, so that it is used again.
const PINNED_BYTES_MIN: usize = 4096;

/// Memory of a GPU; clones share it. The last one frees it, in whose thread that may be: the driver
/// may wait then for what the GPU has been told to do.
#[derive(Clone)]
pub struct Memory(Arc<Inner>);

struct Inner {
    gpu: Arc<Gpu>,
    address: Address,
    bytes: usize,
    /// The user's value that owns the memory; none if it was allocated here.
    user: Option<Box<dyn Any + Send + Sync>>,
}

impl Memory {
    /// Memory of undefined content.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(gpu: &Arc<Gpu>, bytes: usize) -> Result<Self> {
        let _entered = gpu.enter()?;
        let mut address = 0;
        // SAFETY: the context is current; there is room for the address. Nothing is no length.
        let code = unsafe { (gpu.api.mem_alloc)(&raw mut address, bytes.max(1)) };
        check(code, "cuMemAlloc")
            .map_err(|error| Error::device(format!("{bytes} bytes of device memory: {error}")))?;
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

    /// A user's memory, which dropping `value` frees.
    ///
    /// # Safety
    /// The memory is of this GPU's primary context and lives until `value` is dropped.
    pub(super) unsafe fn of_user(
        gpu: &Arc<Gpu>,
        address: Address,
        bytes: usize,
        value: Box<dyn Any + Send + Sync>,
    ) -> Self {
        Self::of(gpu, address, bytes, Some(value))
    }

    /// The user's value; the memory itself where there are other clones, or it is none of that
    /// type.
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
            .expect("invariant: it is of that type"))
    }

    /// Its length in bytes.
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
            "{bytes} bytes from {at} on of memory that has {of_bytes}"
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
        // A failure leaves nothing to do: the context has failed, and everything in it is gone.
        // SAFETY: the address came from `mem_alloc` and is freed once. The driver lets what it was
        // told to do with the memory end before.
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

/// Rows of bytes: `pitch` bytes apart in the device's memory, from `device_at` on; one behind the
/// other in the host's, from `host_at` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    /// Where the first begins on the device.
    pub device_at: usize,
    /// From the start of one to the start of the next there; at least `width`.
    pub pitch: usize,
    /// Where the first begins on the host.
    pub host_at: usize,
    /// Bytes of each.
    pub width: usize,
    /// How many.
    pub count: usize,
}

impl Rows {
    /// Bytes that lie one behind the other.
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

    /// From the first byte to the last on the device.
    pub(super) fn extent(&self) -> usize {
        self.count.saturating_sub(1) * self.pitch + self.width
    }
}

/// Host memory that a GPU's streams copy from and to, and in which they write and await words. It
/// is never freed: what is not used any more is kept for the next that asks
/// ([`Pinned::take`], [`Pinned::give_back`]). Only memory that is shared with other processes,
/// which bears words and nothing else, goes with its last clone.
#[derive(Debug)]
pub(crate) struct Pinned {
    start: NonNull<u8>,
    /// As the GPU's streams know it.
    address: Address,
    bytes: usize,
    /// What keeps memory that is shared.
    shared: Option<Registered>,
}

// SAFETY: plain bytes that live as long as the process. Who touches them when is told at `region`;
// words are reached as atomics alone.
unsafe impl Send for Pinned {}
// SAFETY: as for `Send`.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// At least `bytes` bytes, initialised, of which nothing else knows.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn take(gpu: &Gpu, bytes: usize) -> Result<Arc<Self>> {
        let bytes = bytes.max(PINNED_BYTES_MIN).next_power_of_two();
        let mut idle = lock(&gpu.idle);
        if let Some(at) = idle.iter().position(|one| one.bytes == bytes) {
            return Ok(idle.swap_remove(at));
        }
        drop(idle);
        let _entered = gpu.enter()?;
        let mut start: *mut c_void = std::ptr::null_mut();
        // SAFETY: the context is current; there is room for the pointer.
        let code = unsafe { (gpu.api.mem_host_alloc)(&raw mut start, bytes, HOST_ALLOC_FLAGS) };
        check(code, "cuMemHostAlloc")
            .map_err(|error| Error::device(format!("{bytes} bytes of pinned memory: {error}")))?;
        let mut address = 0;
        // SAFETY: the memory was just allocated to be mapped; there is room for the address.
        let code = unsafe { (gpu.api.mem_host_get_device_pointer)(&raw mut address, start, 0) };
        check(code, "cuMemHostGetDevicePointer")?;
        let start = NonNull::new(start.cast::<u8>());
        let start = start.ok_or_else(|| Error::device("cuMemHostAlloc gave nothing"))?;
        // SAFETY: the allocation has `bytes` bytes, and no other code has its address yet.
        unsafe { start.write_bytes(0, bytes) };
        Ok(Arc::new(Self {
            start,
            address,
            bytes,
            shared: None,
        }))
    }

    /// Memory that is shared with other processes.
    pub(super) fn of_registered(address: Address, bytes: usize, registered: Registered) -> Self {
        Self {
            start: registered.start(),
            address,
            bytes,
            shared: Some(registered),
        }
    }

    /// Keeps it for the next that asks, if this is the last clone; else it is left to those that
    /// have the others, for good. No stream uses it any more.
    pub(crate) fn give_back(self: Arc<Self>, gpu: &Gpu) {
        if Arc::strong_count(&self) == 1 {
            lock(&gpu.idle).push(self);
        }
    }

    /// `bytes` bytes from `at` on, for an operation of the host.
    ///
    /// The callers (`comm::on_device` and `comm::device_buffer`) take turns over the bytes: the
    /// region's owner touches them only after a word says that the streams have copied into them,
    /// the streams only after a word says that the owner is done.
    pub(crate) fn region(self: &Arc<Self>, at: usize, bytes: usize) -> Result<Region> {
        check_range(at, bytes, self.bytes)?;
        assert!(
            self.shared.is_none(),
            "invariant: shared memory bears words"
        );
        // SAFETY: in bounds, as was just checked.
        let start = unsafe { self.start.add(at) };
        // SAFETY: the bytes are initialised and never freed, and by the callers' turns no stream
        // and no other region touches them while the owner of this region does.
        Ok(unsafe { Region::of_bytes(start, bytes, Arc::clone(self) as Arc<_>) })
    }

    /// The word at byte `at`: what was written before a value was, is seen after that value is.
    ///
    /// # Errors
    /// [`Error::usage`]: there is none.
    pub(crate) fn load(&self, at: usize) -> Result<u32> {
        Ok(self.word(at)?.load(Ordering::Acquire))
    }

    /// Writes the word at byte `at`, after everything written before.
    ///
    /// # Errors
    /// [`Error::usage`]: there is none.
    pub(crate) fn store(&self, at: usize, value: u32) -> Result<()> {
        self.word(at)?.store(value, Ordering::Release);
        Ok(())
    }

    fn word(&self, at: usize) -> Result<&AtomicU32> {
        check_range(at, size_of::<u32>(), self.bytes)?;
        if !at.is_multiple_of(size_of::<u32>()) {
            return Err(Error::usage(format!("no word begins at byte {at}")));
        }
        // SAFETY: in bounds and aligned, as was checked, since the driver allocates and the system
        // maps whole pages; a page that bears words is used for nothing else. The owner of mapped
        // pages is in `self`.
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
