//! Shares pinned memory between processes. The memory contains words that these processes' streams
//! write and wait for.

use super::check;
use super::gpu::Gpu;
use super::pinned::Pinned;
use crate::error::{Error, Result};
use crate::sys::shared::{Mapping, fixed_file};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// `CU_MEMHOSTREGISTER_PORTABLE` and `CU_MEMHOSTREGISTER_DEVICEMAP`.
const HOST_REGISTER_FLAGS: u32 = 1 | 2;

/// Pages of a file that are registered with the driver.
struct Registered {
    gpu: Arc<Gpu>,
    mapping: Mapping,
}

impl Pinned {
    /// Creates words that are initially zero and that the streams of other processes can also
    /// write. Returns the words and the file that those processes map. `bytes` must be a multiple
    /// of the page size.
    ///
    /// # Errors
    /// Returns an error of the system or the driver if the memory cannot be shared.
    pub(crate) fn shared(gpu: &Arc<Gpu>, bytes: usize) -> Result<(Arc<Self>, OwnedFd)> {
        let file =
            fixed_file(bytes).map_err(|error| Error::io("cannot create shared memory", &error))?;
        Ok((Self::of_shared(gpu, file.as_fd(), bytes)?, file))
    }

    /// Maps the words that another process has created. That process must have sealed the file with
    /// the length `bytes`.
    ///
    /// # Errors
    /// Returns an error of the system or the driver if the memory cannot be shared.
    pub(crate) fn of_shared(
        gpu: &Arc<Gpu>,
        file: BorrowedFd<'_>,
        bytes: usize,
    ) -> Result<Arc<Self>> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let mapping = Mapping::new(file, bytes, access)
            .map_err(|error| Error::io("cannot map shared memory", &error))?;
        let start = mapping.start;
        let _entered = gpu.enter()?;
        // SAFETY: the pages are mapped, and stay mapped until they are unregistered.
        let code =
            unsafe { (gpu.api.host_register)(start.as_ptr().cast(), bytes, HOST_REGISTER_FLAGS) };
        check(code, "cuMemHostRegister")?;
        let registered = Registered {
            gpu: Arc::clone(gpu),
            mapping,
        };
        let mut address = 0;
        // SAFETY: the memory was just registered to be mapped, and there is room for the address.
        let code = unsafe {
            (gpu.api.mem_host_get_device_pointer)(&raw mut address, start.as_ptr().cast(), 0)
        };
        check(code, "cuMemHostGetDevicePointer")?;
        // SAFETY: the system initializes the pages of a file. They stay mapped until `registered`
        // is dropped, and processes that map the file use them only as words.
        let pinned = unsafe { Self::of(start, address, bytes, Some(Box::new(registered))) };
        Ok(Arc::new(pinned))
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if let Ok(_entered) = self.gpu.enter() {
            let start = self.mapping.start.as_ptr().cast();
            // SAFETY: registered once, at this address, and still mapped. Its users drop it only
            // after their streams have finished (`device::mapped`).
            let _ = unsafe { (self.gpu.api.host_unregister)(start) };
        }
    }
}

impl fmt::Debug for Registered {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Registered({:?})", self.gpu)
    }
}
