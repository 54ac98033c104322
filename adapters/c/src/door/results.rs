//! The version, results and errors.

use crate::error;
use crate::types::{result_from_c, ringtree_error_t, ringtree_result_t};
use std::ffi::{CStr, c_char};

const VERSION: &CStr =
    match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => c"",
    };

/// The version of the library that is loaded, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_version() -> *const c_char {
    VERSION.as_ptr()
}

/// What a result means, in a few words that never change; ringtree_last_error() has the story.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_result_string(result: result_from_c) -> *const c_char {
    let found = usize::try_from(result).ok();
    let found = found.and_then(|at| ringtree_result_t::ALL.get(at));
    found
        .map_or(c"no ringtree_result_t", |(_, text)| text)
        .as_ptr()
}

/// The whole story of the last call of this thread that failed, in one line: the ranks, the call,
/// the cause and what to do next. Empty if none has failed. It stays until the next call of this
/// thread fails, or the thread ends.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_last_error() -> *const c_char {
    error::last_line()
}

/// The same error with what is known of it in fields; NULL if no call of this thread has failed. It
/// stays as long as the line does.
#[unsafe(no_mangle)]
pub extern "C" fn ringtree_last_error_details() -> *const ringtree_error_t {
    error::last()
}
