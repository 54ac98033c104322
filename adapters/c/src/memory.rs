//! Accesses the memory behind C's pointers. Contains the only unsafe blocks.
//!
//! *Assumptions.* The header requires that each pointer either is null or points to what the
//! parameter's documentation describes for as long as the call lasts. A started call lasts until
//! its work has completed. The library checks what it can: null pointers, alignment, lengths that
//! exceed the address space, and overlaps.

#![allow(unsafe_code)]

use crate::handles::COMMUNICATORS;
use ringtree::{Communicator, Element, Error, ErrorKind, Result};
use ringtree_foreign::{ForeignBuffer, first_element};
use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::ptr::without_provenance_mut;
use std::sync::Arc;

/// Returns a buffer that consists of the `count` elements at the given address in C's memory.
///
/// # Errors
/// Returns the same errors as [`first_element`].
pub(crate) fn elements<T: Element>(address: usize, count: usize) -> Result<ForeignBuffer<T>> {
    // SAFETY: the program guarantees that `count` elements are there for as long as the call lasts
    // (see the module documentation), and that no other code uses them meanwhile. `call` creates no
    // two buffers that overlap if one of them is written.
    unsafe { ForeignBuffer::new(address, count, ()) }
}

/// Returns a copy of the numbers at the given address in C's memory. There is one number per rank.
///
/// # Errors
/// Returns `ErrorKind::Usage` if the address is null or not aligned.
pub(crate) fn counts(address: *const usize, ranks: usize) -> Result<Vec<usize>> {
    let first = first_element::<u64>(address.addr(), ranks)?;
    // SAFETY: the pointer is aligned and not null, and the program guarantees that `ranks` numbers
    // are there. A `size_t` is as long as a `u64`: the library supports only such machines.
    let numbers = unsafe { std::slice::from_raw_parts(first.as_ptr().cast::<usize>(), ranks) };
    Ok(numbers.to_vec())
}

/// Returns a copy of a list of ranks in C's memory.
///
/// # Errors
/// Returns the same errors as [`counts`].
pub(crate) fn ranks(address: *const i32, count: usize) -> Result<Vec<i32>> {
    Ok(elements::<i32>(address.addr(), count)?.as_slice().to_vec())
}

/// Returns a copy of the text at the given address in C's memory, or `None` if the address is null.
pub(crate) fn text(address: *const c_char) -> Option<String> {
    if address.is_null() {
        return None;
    }
    // SAFETY: the address is not null, so the program guarantees that a text with a terminating
    // zero is there.
    let text = unsafe { CStr::from_ptr(address) };
    Some(text.to_string_lossy().into_owned())
}

/// Returns the memory of the output parameter named `what`.
///
/// # Errors
/// Returns `ErrorKind::Usage` if the parameter is null.
pub(crate) fn place<'a, T>(
    what: &str,
    place: Option<&'a mut MaybeUninit<T>>,
) -> Result<&'a mut MaybeUninit<T>> {
    place.ok_or_else(|| {
        Error::new(
            ErrorKind::Usage,
            format!("{what} is NULL; pass the address of the result"),
        )
    })
}

/// Converts a handle to a pointer for C.
pub(crate) fn as_pointer<T>(handle: usize) -> *mut T {
    without_provenance_mut(handle)
}

/// Returns the communicator that a handle refers to.
///
/// # Errors
/// Returns `ErrorKind::Usage` if the handle is not valid.
pub(crate) fn communicator<T>(handle: *mut T) -> Result<Arc<Communicator>> {
    COMMUNICATORS.get(handle.addr())
}
