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
    let mut state = Mpi::NotLoaded;
    for path in paths.filter(is_mpi) {
        // A library with a similar name, such as the one for Fortran, may lack the function.
        match CString::new(path)
            .ok()
            .and_then(|path| is_initialized(&path))
        {
            Some(true) => return Mpi::Initialized,
            Some(false) => state = Mpi::NotInitialized,
            None => {}
        }
    }
    state
}

/// Calls `MPI_Initialized`, which can be called at any time. Returns `None` if the library at
/// `path` does not have this function.
fn is_initialized(path: &CStr) -> Option<bool> {
    // SAFETY: `path` is a string that ends with a zero byte. `RTLD_NOLOAD` returns a handle only if
    // the library is already loaded, so no code of the library runs.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
    if library.is_null() {
        return None;
    }
    // SAFETY: `library` is an open handle, and the name is a string that ends with a zero byte. The
    // handle is not closed, so the library stays loaded as before.
    let found = unsafe { libc::dlsym(library, c"MPI_Initialized".as_ptr()) };
    if found.is_null() {
        return None;
    }
    let mut flag: c_int = 0;
    // SAFETY: the MPI standard defines this function as `int MPI_Initialized(int *flag)`, and
    // allows calls before `MPI_Init` and from any thread.
    let code = unsafe {
        let call =
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_int) -> c_int>(found);
        call(&raw mut flag)
    };
    (code == 0).then_some(flag != 0)
}
