//! Opens system libraries at run time.

use std::ffi::{CStr, c_int, c_void};

/// An open library. It is never closed, so its functions can be called at any time.
#[derive(Clone, Copy)]
pub(super) struct Dynamic(*mut c_void);

impl Dynamic {
    /// Opens the library with this name. Returns `None` if it is not installed.
    pub(super) fn open(name: &CStr, flags: c_int) -> Option<Self> {
        // SAFETY: the name ends with a zero byte. Opening a library runs its initializers. The
        // callers in this module open only system libraries that programs are meant to open.
        let handle = unsafe { libc::dlopen(name.as_ptr(), flags) };
        (!handle.is_null()).then_some(Self(handle))
    }

    /// Returns the address of a function, or `None` if the library does not have it.
    pub(super) fn find(self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the library is open, and the name ends with a zero byte.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    }
}
