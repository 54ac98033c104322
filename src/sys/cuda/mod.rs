//! CUDA's driver, as far as collectives need it: one file a thing, all of its unsafe calls.
//!
//! `libcuda` is opened at run time. `driver.rs` looks all functions up before any is called, and
//! calls them by pointers of its own, which return a plain integer: the code of an error that a
//! newer driver has added is a number like any other. (An enum of the codes known today would be
//! undefined behaviour with it.) cudarc is used for users' streams and slices alone (`user.rs`).
//!
//! *What is safe and why.* Addresses of device memory never become references. Pinned memory is
//! reached by streams and by the host at different times: the streams that copy from and to it
//! write a word behind the last copy, and this crate touches the bytes only after it has seen that
//! word (`Pinned::region`). It is never freed, so no stream writes to memory that has become
//! something else. Ranges are checked where an address is made.
//!
//! The primary context of each GPU is retained once and kept until the process ends. It is made
//! current for the length of each call, and the caller's is restored, so any thread may call; and
//! each call is made in the capture mode *relaxed*, so that it disturbs no capture of a graph that
//! is under way in the process, and is not refused because of it.

mod driver;
mod gpu;
mod kernels;
pub mod launch;
mod memory;
mod stream;
mod user;
mod window;
mod words;

pub(crate) use driver::gpu_count;
pub use gpu::Facts;
pub(crate) use gpu::Gpu;
pub(crate) use kernels::Reduction;
pub use memory::Memory;
pub(crate) use memory::{Pinned, Rows};
pub(crate) use stream::Event;
pub use stream::Stream;
pub(crate) use user::{unwrap_slice, wrap_slice, wrap_stream};

use crate::error::{Error, Result};
use std::ffi::CStr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What the driver says about an error.
fn text(api: &driver::Api, code: i32) -> String {
    let mut text = std::ptr::null();
    // SAFETY: the driver writes a pointer to a string that it never frees, or null for a code it
    // does not know.
    let found = unsafe { (api.get_error_string)(code, &raw mut text) };
    if found != 0 || text.is_null() {
        return format!("error {code}");
    }
    // SAFETY: as above; the string ends with zero.
    let text = unsafe { CStr::from_ptr(text) };
    format!("{} (error {code})", text.to_string_lossy())
}

/// The driver's answer to `call` as a result.
fn check(code: i32, call: &str) -> Result<()> {
    match code {
        0 => Ok(()),
        code => {
            let text = text(&driver::driver()?.api, code);
            Err(Error::device(format!("{call}: {text}")))
        }
    }
}

/// A lock that a panic elsewhere does not take away: what it guards is consistent between calls.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
