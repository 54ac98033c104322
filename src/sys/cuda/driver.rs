//! Finds the CUDA driver, checks that it can be used, and looks up its functions. This is done only
//! once per process.

use super::text;
use crate::error::{Error, Result};
use crate::sys::dynamic::Dynamic;
use std::ffi::{CStr, c_char, c_void};
use std::sync::OnceLock;

/// Names of the driver library on Linux. The first is the driver's own name. The second is the name
/// that linkers use. A library with the second name may be a stub from a toolkit, whose functions
/// do not call any driver.
const LIBRARIES: &[&CStr] = &[c"libcuda.so.1", c"libcuda.so"];

/// `CUDA_ERROR_STUB_LIBRARY`.
const STUB_LIBRARY: i32 = 34;

/// The minimum CUDA version that the driver must support, which is the version that driver 550
/// supports.
const VERSION_MIN: i32 = 12_040;

/// `CU_MEM_ALLOCATION_TYPE_PINNED`, `CU_MEM_LOCATION_TYPE_DEVICE`,
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
const MEMORY_PINNED: i32 = 1;
const LOCATION_DEVICE: i32 = 1;
const ACCESS_READ_AND_WRITE: i32 = 3;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub(super) const POSIX_FILE_DESCRIPTOR: i32 = 1;

/// The driver's handles, and its addresses of device memory.
pub(super) type Context = *mut c_void;
pub(super) type RawStream = *mut c_void;
pub(super) type RawEvent = *mut c_void;
pub(super) type Address = u64;
pub(super) type Module = *mut c_void;
pub(super) type Function = *mut c_void;

/// A copy of rows between host memory and device memory (`CUDA_MEMCPY2D`).
#[derive(Debug)]
#[repr(C)]
pub(super) struct Copy2D {
    pub(super) from_x: usize,
    pub(super) from_y: usize,
    pub(super) from_kind: u32,
    pub(super) from_host: *const c_void,
    pub(super) from_device: Address,
    pub(super) from_array: *mut c_void,
    pub(super) from_pitch: usize,
    pub(super) to_x: usize,
    pub(super) to_y: usize,
    pub(super) to_kind: u32,
    pub(super) to_host: *mut c_void,
    pub(super) to_device: Address,
    pub(super) to_array: *mut c_void,
    pub(super) to_pitch: usize,
    pub(super) width: usize,
    pub(super) height: usize,
}

/// The properties of an allocation (`CUmemAllocationProp`).
#[derive(Debug)]
#[repr(C)]
pub(super) struct AllocationProperties {
    kind: i32,
    handle_types: i32,
    location_kind: i32,
    location: i32,
    windows_metadata: *mut c_void,
    flags: [u8; 8],
}

impl AllocationProperties {
    /// Describes device memory that can be exported as a descriptor.
    pub(super) fn exportable(device: i32) -> Self {
        Self {
            kind: MEMORY_PINNED,
            handle_types: POSIX_FILE_DESCRIPTOR,
            location_kind: LOCATION_DEVICE,
            location: device,
            windows_metadata: std::ptr::null_mut(),
            flags: [0; 8],
        }
    }
}

/// Access rights to mapped memory (`CUmemAccessDesc`).
#[derive(Debug)]
#[repr(C)]
pub(super) struct AccessDescription {
    location_kind: i32,
    location: i32,
    flags: i32,
}

impl AccessDescription {
    /// Gives the device read and write access.
    pub(super) fn read_and_write(device: i32) -> Self {
        Self {
            location_kind: LOCATION_DEVICE,
            location: device,
            flags: ACCESS_READ_AND_WRITE,
        }
    }
}

macro_rules! functions {
    ($($name:ident $symbol:literal ($($argument:ty),*);)*) => {
        /// The driver's functions, with the types from its manual. Each function returns an error
        /// code, which is 0 on success.
        #[derive(Debug)]
        pub(super) struct Api {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> i32,)*
        }

        impl Api {
            fn find(look_up: impl Fn(&CStr) -> std::result::Result<*mut c_void, String>)
                -> std::result::Result<Self, String>
            {
                $(
                    let address = look_up($symbol)?;
                    // SAFETY: the address is that of the driver's function of this name, which has
                    // this type.
                    let $name = unsafe {
                        std::mem::transmute::<
                            *mut c_void,
                            unsafe extern "C" fn($($argument),*) -> i32,
                        >(address)
                    };
                )*
                Ok(Self { $($name,)* })
            }
        }
    };
}

functions! {
    init c"cuInit" (u32);
    driver_get_version c"cuDriverGetVersion" (*mut i32);
    get_error_string c"cuGetErrorString" (i32, *mut *const c_char);
    device_get_count c"cuDeviceGetCount" (*mut i32);
    device_get c"cuDeviceGet" (*mut i32, i32);
    device_get_name c"cuDeviceGetName" (*mut c_char, i32, i32);
    device_get_uuid c"cuDeviceGetUuid_v2" (*mut [u8; 16], i32);
    device_total_mem c"cuDeviceTotalMem_v2" (*mut usize, i32);
    device_get_attribute c"cuDeviceGetAttribute" (*mut i32, i32, i32);
    primary_context_retain c"cuDevicePrimaryCtxRetain" (*mut Context, i32);
    context_get_current c"cuCtxGetCurrent" (*mut Context);
    context_push c"cuCtxPushCurrent_v2" (Context);
    context_pop c"cuCtxPopCurrent_v2" (*mut Context);
    priority_range c"cuCtxGetStreamPriorityRange" (*mut i32, *mut i32);
    exchange_capture_mode c"cuThreadExchangeStreamCaptureMode" (*mut i32);
    mem_alloc c"cuMemAlloc_v2" (*mut Address, usize);
    mem_free c"cuMemFree_v2" (Address);
    mem_host_alloc c"cuMemHostAlloc" (*mut *mut c_void, usize, u32);
    mem_host_get_device_pointer c"cuMemHostGetDevicePointer_v2" (*mut Address, *mut c_void, u32);
    host_register c"cuMemHostRegister_v2" (*mut c_void, usize, u32);
    host_unregister c"cuMemHostUnregister" (*mut c_void);
    mem_granularity c"cuMemGetAllocationGranularity" (*mut usize, *const AllocationProperties, i32);
    mem_create c"cuMemCreate" (*mut u64, usize, *const AllocationProperties, u64);
    mem_release c"cuMemRelease" (u64);
    mem_export c"cuMemExportToShareableHandle" (*mut c_void, u64, i32, u64);
    mem_import c"cuMemImportFromShareableHandle" (*mut u64, *mut c_void, i32);
    address_reserve c"cuMemAddressReserve" (*mut Address, usize, usize, Address, u64);
    address_free c"cuMemAddressFree" (Address, usize);
    mem_map c"cuMemMap" (Address, usize, usize, u64, u64);
    mem_unmap c"cuMemUnmap" (Address, usize);
    mem_set_access c"cuMemSetAccess" (Address, usize, *const AccessDescription, usize);
    copy_on_device c"cuMemcpyDtoDAsync_v2" (Address, Address, usize, RawStream);
    copy_to_host c"cuMemcpyDtoHAsync_v2" (*mut c_void, Address, usize, RawStream);
    copy_to_device c"cuMemcpyHtoDAsync_v2" (Address, *const c_void, usize, RawStream);
    copy_2d c"cuMemcpy2DAsync_v2" (*const Copy2D, RawStream);
    set_bytes c"cuMemsetD8Async" (Address, u8, usize, RawStream);
    stream_create c"cuStreamCreateWithPriority" (*mut RawStream, u32, i32);
    stream_destroy c"cuStreamDestroy_v2" (RawStream);
    stream_is_capturing c"cuStreamIsCapturing" (RawStream, *mut i32);
    stream_synchronize c"cuStreamSynchronize" (RawStream);
    stream_wait_event c"cuStreamWaitEvent" (RawStream, RawEvent, u32);
    stream_wait_value c"cuStreamWaitValue32_v2" (RawStream, Address, u32, u32);
    stream_write_value c"cuStreamWriteValue32_v2" (RawStream, Address, u32, u32);
    event_create c"cuEventCreate" (*mut RawEvent, u32);
    event_record c"cuEventRecord" (RawEvent, RawStream);
    module_load_data c"cuModuleLoadData" (*mut Module, *const c_void);
    module_get_function c"cuModuleGetFunction" (*mut Function, Module, *const c_char);
    function_load c"cuFuncLoad" (Function);
    launch_kernel c"cuLaunchKernel" (
        Function, u32, u32, u32, u32, u32, u32, u32, RawStream, *mut *mut c_void, *mut *mut c_void
    );
}

/// A usable driver. A process has at most one driver.
#[derive(Debug)]
pub(super) struct Driver {
    pub(super) api: Api,
    /// The newest CUDA version that the driver supports.
    pub(super) version: u32,
    /// Number of GPUs that the driver exposes to this process; at least one.
    pub(super) gpus: usize,
}

/// Returns the driver, or the reason why it cannot be used.
pub(super) fn driver() -> Result<&'static Driver> {
    static DRIVER: OnceLock<std::result::Result<Driver, String>> = OnceLock::new();
    let found = DRIVER.get_or_init(find);
    found
        .as_ref()
        .map_err(|why| Error::no_device(format!("CUDA is not available: {why}")))
}

/// Returns the number of GPUs that this process can use, which is at least one.
///
/// # Errors
/// Returns `ErrorKind::NoDevice`, including the reason, if no GPU can be used.
pub(crate) fn gpu_count() -> Result<usize> {
    Ok(driver()?.gpus)
}

fn find() -> std::result::Result<Driver, String> {
    let api = open(LIBRARIES)?;
    let works = |code: i32, call: &str| match code {
        0 => Ok(()),
        code => Err(format!("{call}: {}", text(&api, code))),
    };
    let (mut version, mut gpus) = (0, 0);
    // SAFETY: the driver writes one integer, for which there is room.
    let code = unsafe { (api.driver_get_version)(&raw mut version) };
    works(code, "cuDriverGetVersion")?;
    if version < VERSION_MIN {
        let (major, minor) = (version / 1000, version % 1000 / 10);
        return Err(format!(
            "the driver supports CUDA {major}.{minor}, but 12.4 is required; install driver 550 or \
             later"
        ));
    }
    // SAFETY: as above.
    let code = unsafe { (api.device_get_count)(&raw mut gpus) };
    works(code, "cuDeviceGetCount")?;
    match usize::try_from(gpus) {
        Ok(gpus) if gpus > 0 => Ok(Driver {
            api,
            version: version as u32,
            gpus,
        }),
        _ => Err(
            "the driver does not expose any GPUs to this process; check CUDA_VISIBLE_DEVICES"
                .into(),
        ),
    }
}

/// Opens the first usable library and keeps it open. If no library is usable, returns the error
/// from the first library that exists.
fn open(libraries: &[&CStr]) -> std::result::Result<Api, String> {
    let mut why = None;
    for name in libraries {
        let Some(library) = Dynamic::open(name, libc::RTLD_LAZY | libc::RTLD_LOCAL) else {
            continue;
        };
        match initialised(library) {
            Ok(api) => return Ok(api),
            Err(what) => why.get_or_insert(format!("{}: {what}", name.to_string_lossy())),
        };
    }
    Err(why.unwrap_or_else(|| "libcuda.so.1 was not found; install the NVIDIA driver".into()))
}

/// Looks up the functions in an open library and initializes the driver.
fn initialised(library: Dynamic) -> std::result::Result<Api, String> {
    let api = Api::find(|symbol| {
        let symbol_name = symbol.to_string_lossy();
        let missing = || format!("{symbol_name} is missing; install driver 550 or later");
        library.find(symbol).ok_or_else(missing)
    })?;
    // SAFETY: the call takes no pointer.
    match unsafe { (api.init)(0) } {
        0 => Ok(api),
        STUB_LIBRARY => Err("it is a stub for linking only; install the NVIDIA driver".into()),
        code => Err(format!("cuInit: {}", text(&api, code))),
    }
}

#[cfg(test)]
mod tests;
