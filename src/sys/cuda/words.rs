//! Pinned memory that several processes share: words that the streams of each write and await.

use super::check;
use super::gpu::Gpu;
use super::memory::Pinned;
use crate::error::{Error, Result};
use crate::sys::shared::{Mapping, fixed_file};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// `CU_MEMHOSTREGISTER_PORTABLE` and `CU_MEMHOSTREGISTER_DEVICEMAP`.
const HOST_REGISTER_FLAGS: u32 = 1 | 2;

/// Pages of a file, registered with the driver.
pub(super) struct Registered {
    gpu: Arc<Gpu>,
    mapping: Mapping,
}

impl Pinned {
    /// Words that other processes' streams write too, all zero, and the file by which those
    /// processes map them. `bytes` is a multiple of the page's size.
    ///
    /// # Errors
    /// The system's: no memory to share; the driver's.
    pub(crate) fn shared(gpu: &Arc<Gpu>, bytes: usize) -> Result<(Arc<Self>, OwnedFd)> {
        let file =
            fixed_file(bytes).map_err(|error| Error::io("making memory to share", &error))?;
        Ok((Self::of_shared(gpu, file.as_fd(), bytes)?, file))
    }

    /// The words of another process, which has sealed the file at this length.
    ///
    /// # Errors
    /// As [`Pinned::shared`].
    pub(crate) fn of_shared(
        gpu: &Arc<Gpu>,
        file: BorrowedFd<'_>,
        bytes: usize,
    ) -> Result<Arc<Self>> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let mapping = Mapping::new(file, bytes, access)
            .map_err(|error| Error::io("mapping the memory of a peer", &error))?;
        let start = mapping.start;
        let _entered = gpu.enter()?;
        // SAFETY: the pages are mapped, and stay so until they are unregistered.
        let code =
            unsafe { (gpu.api.host_register)(start.as_ptr().cast(), bytes, HOST_REGISTER_FLAGS) };
        check(code, "cuMemHostRegister")?;
        let registered = Registered {
            gpu: Arc::clone(gpu),
            mapping,
        };
        let mut address = 0;
        // SAFETY: the memory was just registered to be mapped; there is room for the address.
        let code = unsafe {
            (gpu.api.mem_host_get_device_pointer)(&raw mut address, start.as_ptr().cast(), 0)
        };
        check(code, "cuMemHostGetDevicePointer")?;
        Ok(Arc::new(Self::of_registered(address, bytes, registered)))
    }
}

impl Registered {
    pub(super) fn start(&self) -> std::ptr::NonNull<u8> {
        self.mapping.start
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if let Ok(_entered) = self.gpu.enter() {
            let start = self.mapping.start.as_ptr().cast();
            // SAFETY: registered once, at this address, and still mapped. Its users drop it only
            // once their streams are through (`device::mapped`).
            let _ = unsafe { (self.gpu.api.host_unregister)(start) };
        }
    }
}

impl fmt::Debug for Registered {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Registered({:?})", self.gpu)
    }
}
