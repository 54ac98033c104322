//! Whether there is a driver that can be used, found out once.

use super::text;
use crate::error::{Error, Result};
use cudarc::driver::sys::{self as raw, CUresult};
use std::ffi::CStr;
use std::sync::OnceLock;

/// The names that the bindings try and that there are on Linux, in their order.
const LIBRARIES: &[&CStr] = &[
    c"libcuda.so",
    c"libcuda.so.12",
    c"libcuda.so.11",
    c"libcuda.so.10",
    c"libcuda.so.9",
    c"libcuda.so.1",
];

/// The oldest version of CUDA that the driver may know: that of drivers 550.
const VERSION_MIN: i32 = 12_040;

/// Every symbol that is called; a test compares this with the sources.
const SYMBOLS: &[&CStr] = &[
    c"cuCtxEnablePeerAccess",
    c"cuCtxGetCurrent",
    c"cuCtxPopCurrent_v2",
    c"cuCtxPushCurrent_v2",
    c"cuDeviceCanAccessPeer",
    c"cuDeviceGet",
    c"cuDeviceGetAttribute",
    c"cuDeviceGetCount",
    c"cuDeviceGetName",
    c"cuDeviceGetUuid_v2",
    c"cuDevicePrimaryCtxRetain",
    c"cuDeviceTotalMem_v2",
    c"cuDriverGetVersion",
    c"cuEventCreate",
    c"cuEventDestroy_v2",
    c"cuEventQuery",
    c"cuEventRecord",
    c"cuFuncLoad",
    c"cuGetErrorString",
    c"cuInit",
    c"cuIpcCloseMemHandle",
    c"cuIpcGetMemHandle",
    c"cuIpcOpenMemHandle_v2",
    c"cuLaunchKernel",
    c"cuMemAlloc_v2",
    c"cuMemFreeHost",
    c"cuMemFree_v2",
    c"cuMemGetAddressRange_v2",
    c"cuMemHostAlloc",
    c"cuMemHostGetDevicePointer_v2",
    c"cuMemHostRegister_v2",
    c"cuMemHostUnregister",
    c"cuMemcpyDtoDAsync_v2",
    c"cuMemcpyDtoHAsync_v2",
    c"cuMemcpyHtoDAsync_v2",
    c"cuModuleGetFunction",
    c"cuModuleLoadData",
    c"cuStreamCreateWithPriority",
    c"cuCtxGetStreamPriorityRange",
    c"cuStreamDestroy_v2",
    c"cuStreamIsCapturing",
    c"cuStreamSynchronize",
    c"cuStreamWaitEvent",
    c"cuStreamWaitValue32_v2",
    c"cuStreamWriteValue32_v2",
];

/// A driver that was found fit; there is one in a process.
#[derive(Debug)]
pub(super) struct Driver {
    /// The newest version of CUDA it knows.
    pub(super) version: u32,
    /// GPUs it shows this process: at least one.
    pub(super) gpus: usize,
}

/// The driver, or why there is none that can be used.
pub(super) fn driver() -> Result<&'static Driver> {
    static DRIVER: OnceLock<std::result::Result<Driver, String>> = OnceLock::new();
    let found = DRIVER.get_or_init(find);
    found
        .as_ref()
        .map_err(|why| Error::NoDevice(format!("no CUDA here: {why}")))
}

/// How many GPUs this process may use: at least one.
///
/// # Errors
/// [`Error::NoDevice`] says why there is none.
pub fn gpu_count() -> Result<usize> {
    Ok(driver()?.gpus)
}

fn find() -> std::result::Result<Driver, String> {
    look_for_symbols(LIBRARIES, SYMBOLS)?;
    let works = |code: CUresult, call: &str| match code {
        CUresult::CUDA_SUCCESS => Ok(()),
        code => Err(format!("{call}: {}", text(code))),
    };
    // SAFETY: the symbol is there, so the bindings will not panic; the call takes no pointer.
    works(unsafe { raw::cuInit(0) }, "cuInit")?;
    let (mut version, mut gpus) = (0, 0);
    // SAFETY: as above; the driver writes one integer, for which there is room.
    let code = unsafe { raw::cuDriverGetVersion(&raw mut version) };
    works(code, "cuDriverGetVersion")?;
    if version < VERSION_MIN {
        let (major, minor) = (version / 1000, version % 1000 / 10);
        return Err(format!(
            "the driver knows CUDA {major}.{minor}, but 12.4 is needed: install driver 550 or later"
        ));
    }
    // SAFETY: as above.
    let code = unsafe { raw::cuDeviceGetCount(&raw mut gpus) };
    works(code, "cuDeviceGetCount")?;
    match usize::try_from(gpus) {
        Ok(gpus) if gpus > 0 => Ok(Driver {
            version: version as u32,
            gpus,
        }),
        _ => Err("the driver shows no GPU to this process".into()),
    }
}

/// Opens the first library there is, for good, and looks for the symbols in it.
fn look_for_symbols(libraries: &[&CStr], symbols: &[&CStr]) -> std::result::Result<(), String> {
    let open = |name: &&CStr| {
        // SAFETY: the name ends with zero. Opening a library runs its initialisers: these names
        // are the driver's, which programs are meant to open. It is never closed.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
        (!handle.is_null()).then_some((name.to_string_lossy().into_owned(), handle))
    };
    let Some((name, handle)) = libraries.iter().find_map(open) else {
        return Err("there is no libcuda.so.1, which the NVIDIA driver brings".into());
    };
    for symbol in symbols {
        // SAFETY: the handle is that of an open library, the name ends with zero; the address is
        // not used.
        let address = unsafe { libc::dlsym(handle, symbol.as_ptr()) };
        if address.is_null() {
            let symbol = symbol.to_string_lossy();
            return Err(format!(
                "{name} lacks {symbol}: install driver 550 or later"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_symbol_that_is_called_is_looked_for() {
        let sources = [
            include_str!("mod.rs"),
            include_str!("driver.rs"),
            include_str!("event.rs"),
            include_str!("gpu.rs"),
            include_str!("kernels.rs"),
            include_str!("ledger.rs"),
            include_str!("memory.rs"),
            include_str!("peer.rs"),
            include_str!("stream.rs"),
            include_str!("user.rs"),
        ];
        let called: BTreeSet<_> = sources
            .iter()
            .flat_map(|source| source.split("raw::").skip(1))
            .filter(|rest| rest.starts_with("cu"))
            .map(|rest| {
                let end = rest.find(|letter: char| !(letter.is_alphanumeric() || letter == '_'));
                rest[..end.unwrap()].to_owned()
            })
            .filter(|name| name.len() > "cu".len())
            .collect();
        let looked_for: BTreeSet<_> = SYMBOLS
            .iter()
            .map(|symbol| symbol.to_str().unwrap().to_owned())
            .collect();
        assert_eq!(called, looked_for);
    }

    #[test]
    fn what_is_missing_is_named() {
        let none = look_for_symbols(&[c"libringtree-none.so"], &[]).unwrap_err();
        assert!(none.contains("libcuda.so.1"), "{none}");
        let old = look_for_symbols(&[c"libc.so.6"], &[c"malloc", c"cuInit"]).unwrap_err();
        assert!(old.contains("libc.so.6 lacks cuInit"), "{old}");
        assert_eq!(look_for_symbols(&[c"libc.so.6"], &[c"malloc"]), Ok(()));
    }

    #[test]
    fn without_a_driver_there_is_one_clear_line_and_no_panic() {
        match gpu_count() {
            Ok(count) => assert!(count > 0),
            Err(Error::NoDevice(why)) => {
                assert!(
                    why.starts_with("no CUDA here: ") && !why.contains('\n'),
                    "{why}"
                );
            }
            Err(other) => panic!("{other:?}"),
        }
    }
}
