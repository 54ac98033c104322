//! Wraps the parts of the CUDA driver that collectives need. Each file wraps one kind of object and
//! contains all unsafe calls for it.
//!
//! `libcuda` is opened at run time. `driver.rs` looks up all functions before any of them is
//! called, and calls them through its own pointers. Their return type is a plain integer, because a
//! newer driver may return error codes that are unknown today. (If the return type were an enum of
//! the known codes, such a code would cause undefined behavior.) cudarc is used only for users'
//! streams and slices (`user.rs`).
//!
//! *What is safe and why.* Addresses of device memory never become references. Streams and the host
//! access pinned memory at different times: streams that copy from or to pinned memory write a word
//! after their last copy, and this crate touches the bytes only after it has seen that word
//! (`Pinned::region`). Pinned memory is never freed, so no stream can write to memory that has been
//! freed and reused. Ranges are checked when an address is computed.
//!
//! The primary context of each GPU is retained once and kept until the process ends. It is made
//! current for the duration of each call, and the caller's context is restored afterwards, so any
//! thread may make calls. Each call is made in the capture mode *relaxed*, so it does not disturb
//! any graph capture in the process, and it does not fail because of a capture.

mod driver;
mod gpu;
mod kernels;
pub mod launch;
mod memory;
mod pinned;
mod reduce;
mod stream;
mod user;
mod window;
mod words;

pub(crate) use driver::gpu_count;
pub(crate) use gpu::Gpu;
pub use gpu::Properties;
pub use memory::Memory;
pub(crate) use memory::Rows;
pub(crate) use pinned::Pinned;
pub(crate) use reduce::Reduction;
pub(crate) use stream::Event;
pub use stream::Stream;
pub(crate) use user::{unwrap_slice, wrap_slice, wrap_stream};

use crate::error::{Error, Result};
use std::ffi::CStr;

/// Returns the driver's description of an error.
fn text(api: &driver::Api, code: i32) -> String {
    let mut text = std::ptr::null();
    // SAFETY: the driver writes a pointer to a string that it never frees, or null for an unknown
    // code.
    let found = unsafe { (api.get_error_string)(code, &raw mut text) };
    if found != 0 || text.is_null() {
        return format!("error {code}");
    }
    // SAFETY: as above. The string ends with a zero.
    let text = unsafe { CStr::from_ptr(text) };
    format!("{} (error {code})", text.to_string_lossy())
}

/// Returns an error unless `bytes` bytes at offset `at` are within `of_bytes` bytes of memory.
fn check_range(at: usize, bytes: usize, of_bytes: usize) -> Result<()> {
    if at.checked_add(bytes).is_none_or(|end| end > of_bytes) {
        return Err(Error::usage(format!(
            "{bytes} bytes at offset {at} are out of range: the memory has {of_bytes} bytes"
        )));
    }
    Ok(())
}

/// Converts the code that the driver function `call` returned into a [`Result`].
fn check(code: i32, call: &str) -> Result<()> {
    match code {
        0 => Ok(()),
        code => {
            let text = text(&driver::driver()?.api, code);
            Err(Error::device(format!("{call}: {text}")))
        }
    }
}
