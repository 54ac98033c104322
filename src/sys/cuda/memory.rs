//! Wraps device memory.

use super::driver::Address;
use super::gpu::Gpu;
use super::{check, check_range};
use crate::error::{Error, Result};
use std::any::Any;
use std::fmt;
use std::sync::Arc;

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

/// Device memory, and the offset of the first byte that is used.
pub(crate) type Span<'a> = (&'a Memory, usize);

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
