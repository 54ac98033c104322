//! Exports the functions that return the version, the descriptions of results and the last error,
//! and the one that sets the receiver of events.

use crate::error;
use crate::types::{
    result_from_c, ringtree_error_t, ringtree_level_t, ringtree_log_t, ringtree_result_t,
};
use ringtree::internal::events::{Receiver, set_receiver};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::with_exposed_provenance_mut;
use std::sync::Arc;

const VERSION: &CStr =
    match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => c"",
    };

/// Returns the version of the loaded library, such as "0.1.0". The string is static and must not be
/// freed. Corresponds to MPI_Get_library_version.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_version() -> *const c_char {
    VERSION.as_ptr()
}

/// Returns the version of the loaded library in the form of RINGTREE_VERSION_CODE. A program can
/// compare the two to check that it was compiled for this version. Corresponds to ncclGetVersion.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_version_code() -> c_int {
    let parts = env!("CARGO_PKG_VERSION").split(['.', '-', '+']).take(3);
    parts.fold(0, |code, part| code * 1000 + part.parse().unwrap_or(0))
}

/// Returns a short description of `result`. The string is static and must not be freed. For a
/// description of the error in a particular call, see ringtree_last_error(). Corresponds to
/// MPI_Error_string and ncclGetErrorString.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_result_string(result: result_from_c) -> *const c_char {
    let found = usize::try_from(result).ok();
    let found = found.and_then(|at| ringtree_result_t::ALL.get(at));
    found
        .map_or(c"not a ringtree_result_t", |(_, text)| text)
        .as_ptr()
}

/// Returns a one-line description of this thread's last error. It names the ranks, the call, the
/// cause and the next step. Corresponds to ncclGetLastError. The line is complete without
/// ringtree_result_string().
///
/// The last error is that of the last call made by this thread that failed, or that was
/// ringtree_comm_get_async_error() and found an error. Returns an empty string if there was no such
/// call. The library owns the string, which remains valid until the next such call or until the
/// thread exits.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_last_error() -> *const c_char {
    error::last_line()
}

/// Returns the fields of the error that ringtree_last_error() describes, or NULL if there is no
/// such error. The library owns these fields, which remain valid for as long as the string returned
/// by ringtree_last_error().
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_last_error_details() -> *const ringtree_error_t {
    error::last()
}

/// Passes every event from now on to `log`, together with `context`, instead of printing it. If
/// `log` is NULL, the library prints events again, as RINGTREE_LOG specifies.
///
/// The library calls `log` on any thread, also on several threads at the same time, but never while
/// it holds a lock. `log` may call the library. When this function returns, another thread may
/// still be in the previous `log`.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_set_log(log: ringtree_log_t, context: *mut c_void) {
    let context = context.expose_provenance();
    set_receiver(log.map(|log| -> Receiver {
        Arc::new(move |level, rank, text| {
            let level = match level {
                "error" => ringtree_level_t::RINGTREE_LEVEL_ERROR,
                "warn" => ringtree_level_t::RINGTREE_LEVEL_WARN,
                "info" => ringtree_level_t::RINGTREE_LEVEL_INFO,
                _ => ringtree_level_t::RINGTREE_LEVEL_DEBUG,
            };
            let rank = rank.and_then(|rank| c_int::try_from(rank).ok());
            let text = CString::new(text.replace('\0', "\\0")).unwrap_or_default();
            let context = with_exposed_provenance_mut(context);
            log(level as c_int, rank.unwrap_or(-1), text.as_ptr(), context);
            true
        })
    }));
}
