//! Finds out whether an MPI library of this process is initialized.

use std::ffi::{CStr, CString, c_int, c_void};
use std::fs;

/// The state of the MPI library that this process has loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mpi {
    /// This process has not loaded an MPI library.
    NotLoaded,
    /// The library is loaded but not initialized.
    NotInitialized,
    /// The library is initialized.
    Initialized,
    /// The library has been finalized.
    Finalized,
}

/// Returns the state of the MPI library that this process has loaded.
pub(crate) fn state() -> Mpi {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let paths = maps
        .lines()
        .filter_map(|line| line.find('/').map(|at| &line[at..]));
    let is_mpi = |path: &&str| {
        let name = path.rsplit('/').next().unwrap_or_default();
        name.starts_with("libmpi") && name.contains(".so")
    };
    let paths = paths
        .filter(is_mpi)
        .filter_map(|path| CString::new(path).ok());
    // The library may also be linked into the program.
    let handles = std::iter::once(libc::RTLD_DEFAULT).chain(paths.map(|path| {
        // SAFETY: `path` is a string that ends with a zero byte. `RTLD_NOLOAD` returns a handle
        // only if the library is already loaded, so no initializer runs. The handle is not closed.
        unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) }
    }));
    let mut state = Mpi::NotLoaded;
    for handle in handles
        .enumerate()
        .filter(|(at, handle)| *at == 0 || !handle.is_null())
    {
        // A library with a similar name, such as the one for Fortran, may lack the functions.
        let ask = |name| ask(handle.1, name);
        match (ask(c"MPI_Initialized"), ask(c"MPI_Finalized")) {
            (Some(_), Some(true)) => return Mpi::Finalized,
            (Some(true), _) => return Mpi::Initialized,
            (Some(false), _) => state = Mpi::NotInitialized,
            (None, _) => {}
        }
    }
    state
}

/// Calls a function of the form `int name(int *flag)` and returns the flag, or `None` if there is
/// no such function.
fn ask(library: *mut c_void, name: &CStr) -> Option<bool> {
    // SAFETY: `library` is an open handle or `RTLD_DEFAULT`, and the name ends with a zero byte.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    if found.is_null() {
        return None;
    }
    let mut flag: c_int = 0;
    // SAFETY: the MPI standard defines the two functions that are asked for in this form, and
    // allows calls before `MPI_Init` and after `MPI_Finalize`. Since version 3.1, it allows them
    // from any thread, as all implementations that are in use do.
    let code = unsafe {
        let call =
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_int) -> c_int>(found);
        call(&raw mut flag)
    };
    (code == 0).then_some(flag != 0)
}
