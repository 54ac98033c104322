//! Loads kernels.

use super::check;
use super::driver::{Api, Function, Module};
use super::launch::{self, PTX};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::ffi::{CStr, CString};

/// The reduction kernels of a GPU, indexed by name. They are loaded permanently.
#[derive(Debug, Default)]
pub(super) struct Kernels(HashMap<&'static CStr, Loaded>);

#[derive(Clone, Copy, Debug)]
struct Loaded(Function);

// SAFETY: the driver accepts launches of a kernel from any thread.
unsafe impl Send for Loaded {}
// SAFETY: as for `Send`.
unsafe impl Sync for Loaded {}

impl Kernels {
    /// Compiles and loads all reduction kernels. The GPU's context must be current.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub(super) fn load(api: &Api) -> Result<Self> {
        let module = load_module(api, PTX)?;
        let mut kernels = Self::default();
        for entry in Dtype::ALL.iter().copied().map(launch::entry) {
            let mut function: Function = std::ptr::null_mut();
            // SAFETY: the module is loaded permanently, the name ends with a zero, and there is
            // room for the pointer.
            let code =
                unsafe { (api.module_get_function)(&raw mut function, module, entry.as_ptr()) };
            check(code, "cuModuleGetFunction")?;
            // SAFETY: the driver has just returned the kernel.
            check(unsafe { (api.function_load)(function) }, "cuFuncLoad")?;
            kernels.0.insert(entry, Loaded(function));
        }
        Ok(kernels)
    }

    /// Returns the kernel with this name.
    pub(super) fn find(&self, name: &CStr) -> Option<Function> {
        self.0.get(name).map(|loaded| loaded.0)
    }
}

/// Compiles the kernels in `text` with the driver and loads them permanently. The GPU's context
/// must be current.
///
/// # Errors
/// Returns `ErrorKind::Usage` if the text contains a zero byte, or else the driver's error.
pub(super) fn load_module(api: &Api, text: &str) -> Result<Module> {
    let text = CString::new(text)
        .map_err(|_| Error::usage("cannot load kernels: the text contains a zero byte"))?;
    let mut module = std::ptr::null_mut();
    // SAFETY: the context is current, the text ends with a zero, and there is room for the pointer.
    let code = unsafe { (api.module_load_data)(&raw mut module, text.as_ptr().cast()) };
    check(code, "cuModuleLoadData").map(|()| module)
}
