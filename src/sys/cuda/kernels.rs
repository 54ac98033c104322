//! Kernels: loaded when the GPU is opened, because a kernel that is loaded at its first launch may
//! make the driver wait for everything under way.

use super::check;
use super::gpu::Gpu;
use crate::error::{Error, Result};
use cudarc::driver::sys::{self as raw, CUfunction};
use std::collections::HashMap;
use std::ffi::CString;

/// Kernels by name. They live as long as the process, as the context does.
pub(super) struct Kernels(HashMap<&'static str, CUfunction>);

// SAFETY: the driver launches a function from any thread.
unsafe impl Send for Kernels {}
// SAFETY: as for `Send`.
unsafe impl Sync for Kernels {}

impl Kernels {
    pub(super) fn function(&self, name: &str) -> Result<CUfunction> {
        let found = self.0.get(name).copied();
        found.ok_or_else(|| Error::Device(format!("there is no kernel {name}")))
    }
}

impl Gpu {
    /// Compiles the text and loads the kernels of these names, if that was not done before.
    ///
    /// # Errors
    /// The driver's: it cannot compile the text, or a kernel is missing.
    pub(crate) fn load_kernels(&self, text: &str, names: &[&'static str]) -> Result<()> {
        if self.kernels.get().is_some() {
            return Ok(());
        }
        let _entered = self.enter()?;
        let text = CString::new(text).map_err(|_| Error::Device("kernels with a zero".into()))?;
        let mut module = std::ptr::null_mut();
        // SAFETY: the context is current; the text ends with zero; there is room for the pointer.
        let code = unsafe { raw::cuModuleLoadData(&raw mut module, text.as_ptr().cast()) };
        check(code, "cuModuleLoadData")?;
        let mut functions = HashMap::new();
        for &name in names {
            let symbol = CString::new(name).expect("invariant: a name without zero");
            let mut function = std::ptr::null_mut();
            // SAFETY: the module is loaded and is never unloaded; the name ends with zero; there is
            // room for the pointer.
            let code =
                unsafe { raw::cuModuleGetFunction(&raw mut function, module, symbol.as_ptr()) };
            check(code, name)?;
            // SAFETY: the function is of that module.
            check(unsafe { raw::cuFuncLoad(function) }, name)?;
            functions.insert(name, function);
        }
        // If another thread was faster, its kernels are as good.
        let _ = self.kernels.set(Kernels(functions));
        Ok(())
    }
}
