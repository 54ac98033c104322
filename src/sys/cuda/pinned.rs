//! Wraps pinned host memory.

use super::check_range;
use super::driver::Address;
use crate::error::{Error, Result};
use crate::sys::memory::Region;
use std::any::Any;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Host memory that a GPU's streams copy from and to, or that contains words that the streams write
/// and wait for. This memory is never freed. The GPU keeps unused memory for later requests. The
/// only exception is memory that is shared with other processes, which contains only words and is
/// freed with its last clone.
#[derive(Debug)]
pub(crate) struct Pinned {
    start: NonNull<u8>,
    /// The address that the GPU's streams use.
    address: Address,
    bytes: usize,
    /// The owner of shared memory.
    owner: Option<Box<dyn Any + Send + Sync>>,
}

// SAFETY: plain bytes that live as long as the process. `region` explains which code touches them
// when. Words are accessed only as atomics.
unsafe impl Send for Pinned {}
// SAFETY: as for `Send`.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Wraps the `bytes` bytes at `start`, which the GPU's streams address with `address`.
    ///
    /// # Safety
    /// The bytes must be initialized. If there is an owner, they must stay mapped until it is
    /// dropped, and all code must use them only as words. Otherwise, they must never be freed, and
    /// no other code may use them.
    pub(super) unsafe fn of(
        start: NonNull<u8>,
        address: Address,
        bytes: usize,
        owner: Option<Box<dyn Any + Send + Sync>>,
    ) -> Self {
        Self {
            start,
            address,
            bytes,
            owner,
        }
    }

    /// Returns the length in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
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
            self.owner.is_none(),
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
