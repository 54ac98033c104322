//! Shares memory of a GPU with other processes. The memory is created with the driver's virtual
//! memory functions, which can export it as a descriptor.
//!
//! The driver frees the memory when the last process that has mapped it releases it. So no process
//! can take the memory away from another process.

use super::check;
use super::driver::{AccessDescription, Address, AllocationProperties, POSIX_FILE_DESCRIPTOR};
use super::gpu::Gpu;
use super::memory::Memory;
use crate::error::{Error, Result};
use std::ffi::c_void;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

/// `CU_MEM_ALLOC_GRANULARITY_MINIMUM`.
const GRANULARITY_MINIMUM: i32 = 0;

/// A driver handle for physical memory. Dropping the value releases the handle.
struct Physical {
    gpu: Arc<Gpu>,
    handle: u64,
}

/// Physical memory, and the addresses at which it is mapped.
struct Mapped {
    physical: Physical,
    address: Address,
    bytes: usize,
}

impl Physical {
    /// Allocates GPU memory that can be exported.
    fn new(gpu: &Arc<Gpu>, bytes: usize) -> Result<Self> {
        let properties = AllocationProperties::exportable(gpu.device());
        let mut granularity = 0;
        // SAFETY: there is room for the number. The properties are as the driver defines them.
        let code = unsafe {
            (gpu.api.mem_granularity)(
                &raw mut granularity,
                &raw const properties,
                GRANULARITY_MINIMUM,
            )
        };
        check(code, "cuMemGetAllocationGranularity")?;
        if granularity == 0 || !bytes.is_multiple_of(granularity) {
            return Err(Error::device(format!(
                "cannot share {bytes} bytes of GPU memory: not a multiple of {granularity}"
            )));
        }
        let mut handle = 0;
        // SAFETY: there is room for the handle. The properties are as the driver defines them.
        let code =
            unsafe { (gpu.api.mem_create)(&raw mut handle, bytes, &raw const properties, 0) };
        check(code, "cuMemCreate")?;
        Ok(Self {
            gpu: Arc::clone(gpu),
            handle,
        })
    }

    /// Imports memory that another process has exported.
    fn import(gpu: &Arc<Gpu>, file: &OwnedFd) -> Result<Self> {
        let mut handle = 0;
        // The driver expects the descriptor, as an integer, in place of a pointer.
        let number = std::ptr::without_provenance_mut::<c_void>(file.as_raw_fd() as usize);
        // SAFETY: the descriptor is open, and there is room for the handle.
        let code = unsafe { (gpu.api.mem_import)(&raw mut handle, number, POSIX_FILE_DESCRIPTOR) };
        check(code, "cuMemImportFromShareableHandle")?;
        Ok(Self {
            gpu: Arc::clone(gpu),
            handle,
        })
    }

    fn export(&self) -> Result<OwnedFd> {
        let mut number: i32 = -1;
        // SAFETY: the handle is the driver's. The descriptor is a C `int`, and `number` is large
        // enough to hold it.
        let code = unsafe {
            let place = (&raw mut number).cast::<c_void>();
            (self.gpu.api.mem_export)(place, self.handle, POSIX_FILE_DESCRIPTOR, 0)
        };
        check(code, "cuMemExportToShareableHandle")?;
        if number < 0 {
            return Err(Error::device("the driver did not export a descriptor"));
        }
        // SAFETY: the driver has just opened the descriptor for the caller to close.
        Ok(unsafe { OwnedFd::from_raw_fd(number) })
    }

    /// Maps `bytes` bytes, which this process's GPU can read and write afterwards.
    fn map(self, bytes: usize) -> Result<Mapped> {
        let api = self.gpu.api;
        let access = AccessDescription::read_and_write(self.gpu.device());
        let mut address = 0;
        // SAFETY: there is room for the address, which the driver chooses.
        let code = unsafe { (api.address_reserve)(&raw mut address, bytes, 0, 0, 0) };
        check(code, "cuMemAddressReserve")?;
        // SAFETY: the addresses were just reserved, and nothing is mapped there.
        let code = unsafe { (api.mem_map)(address, bytes, 0, self.handle, 0) };
        if let Err(error) = check(code, "cuMemMap") {
            // SAFETY: the addresses were reserved above, and nothing is mapped there.
            let _ = unsafe { (api.address_free)(address, bytes) };
            return Err(error);
        }
        let mapped = Mapped {
            physical: self,
            address,
            bytes,
        };
        // SAFETY: the memory is mapped there, and one description is passed.
        let code = unsafe { (api.mem_set_access)(address, bytes, &raw const access, 1) };
        check(code, "cuMemSetAccess")?;
        Ok(mapped)
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        if let Ok(_entered) = self.gpu.enter() {
            // SAFETY: the handle is released once. The memory stays as long as anything maps it.
            let _ = unsafe { (self.gpu.api.mem_release)(self.handle) };
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let Ok(_entered) = self.physical.gpu.enter() else {
            return;
        };
        let api = self.physical.gpu.api;
        // SAFETY: mapped and reserved by `map`, each undone once. The last `Memory` of it no longer
        // exists, and its users drop it only after their streams have finished (`device::mapped`).
        let _ = unsafe { (api.mem_unmap)(self.address, self.bytes) };
        // SAFETY: as above.
        let _ = unsafe { (api.address_free)(self.address, self.bytes) };
    }
}

impl Memory {
    /// Allocates GPU memory. Returns the memory and the descriptor with which other processes can
    /// map it.
    ///
    /// # Errors
    /// Returns the driver's error, for example if the system or the container does not allow memory
    /// to be shared.
    pub(crate) fn exported(gpu: &Arc<Gpu>, bytes: usize) -> Result<(Self, OwnedFd)> {
        let _entered = gpu.enter()?;
        let physical = Physical::new(gpu, bytes)?;
        let file = physical.export()?;
        Ok((Self::of_mapped(gpu, physical.map(bytes)?), file))
    }

    /// Maps memory that another process has exported.
    ///
    /// # Errors
    /// Returns the driver's error, for example if the file is not exported memory, or if this GPU
    /// cannot access it.
    pub(crate) fn imported(gpu: &Arc<Gpu>, file: &OwnedFd, bytes: usize) -> Result<Self> {
        let _entered = gpu.enter()?;
        let mapped = Physical::import(gpu, file)?.map(bytes)?;
        Ok(Self::of_mapped(gpu, mapped))
    }

    fn of_mapped(gpu: &Arc<Gpu>, mapped: Mapped) -> Self {
        let (address, bytes) = (mapped.address, mapped.bytes);
        // SAFETY: the memory is mapped for this GPU until `mapped` is dropped.
        unsafe { Self::of_user(gpu, address, bytes, Box::new(mapped)) }
    }
}
