//! CUDA's driver, as far as collectives need it: one file a thing, all of its unsafe calls.
//!
//! The bindings are cudarc's; the library `libcuda` is opened at run time. If it, or a symbol of
//! it, is missing, the bindings panic. So `driver.rs` looks for all of them first, and every other
//! value here can only be made through it.
//!
//! *What is safe and why.* Addresses of device memory never become references. Every operation is
//! enqueued through a [`Stream`], which keeps what the operation names until it is known to be done
//! (`ledger.rs`), so memory is neither freed nor, if it is pinned, lent to the host while the
//! device may use it. Ranges are checked where an address is made. What kernels do with the
//! addresses they are given is the word of `reduce::gpu`'s tests; only this crate can launch.
//!
//! *Nothing is freed while a stream waits for a word.* The driver's calls that free memory may wait
//! for everything the GPU has been told to do; so if a stream waited for a word that the freeing
//! thread was to write, both would wait for ever. What is dropped while a stream waits is freed
//! when the last such wait is known to be over. That is so over all GPUs of the process, since they
//! may reach each other's memory.
//!
//! The primary context of each GPU is retained once and kept until the process ends. It is made
//! current for the length of each call, and the caller's is restored, so any thread may call.
//!
//! A known weakness of the bindings: an error code that is newer than they are is no value of their
//! type. Codes have been added rarely, and for features that are not used here.

mod driver;
mod event;
mod gpu;
mod kernels;
mod ledger;
mod memory;
mod peer;
mod stream;
mod user;

pub use driver::gpu_count;
pub use event::Event;
pub use gpu::{Facts, Gpu};
pub use memory::{Memory, Pinned, Words};
pub use stream::Stream;
pub use user::{lend_slice, unwrap_slice, wrap_slice, wrap_stream};

use crate::error::{Error, Result};
use cudarc::driver::sys::{self as raw, CUresult};
use std::ffi::CStr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of a handle of another process's memory.
pub const HANDLE_BYTES: usize = 64;

/// What the driver says about an error.
fn text(code: CUresult) -> String {
    let mut text = std::ptr::null();
    // SAFETY: `driver` found the symbol before any code could come from the driver; the driver
    // writes a pointer to a string that it never frees, or null for a code it does not know.
    let found = unsafe { raw::cuGetErrorString(code, &raw mut text) };
    if found != CUresult::CUDA_SUCCESS || text.is_null() {
        return format!("{code:?}");
    }
    // SAFETY: as above; the string ends with zero.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}

/// The driver's answer to `call` as a result.
fn check(code: CUresult, call: &str) -> Result<()> {
    match code {
        CUresult::CUDA_SUCCESS => Ok(()),
        code => Err(Error::Device(format!("{call}: {}", text(code)))),
    }
}

/// A lock that a panic elsewhere does not take away: what it guards is consistent between calls.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
