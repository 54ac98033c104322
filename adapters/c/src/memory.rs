//! What C's pointers lead to: the only unsafe blocks.
//!
//! *What they rest on.* The header's words: a pointer is null, or leads to what the parameter says,
//! for as long as the call lasts; a started call lasts until its work has ended. Everything that
//! can be checked is: null, alignment, lengths that no memory has, and overlaps.

#![allow(unsafe_code)]

use crate::handles::COMMUNICATORS;
use ringtree::{Communicator, Element, Error, Result};
use ringtree_foreign::{ForeignBuffer, first_element};
use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::ptr::without_provenance_mut;
use std::sync::Arc;

/// The elements that C has at an address.
///
/// # Errors
/// Those of [`first_element`].
pub(crate) fn elements<T: Element>(address: usize, count: usize) -> Result<ForeignBuffer<T>> {
    // SAFETY: there are so many elements, for as long as the call lasts, as the program says (see
    // the module's text), and no other code uses them meanwhile. `call` makes no two of them that
    // overlap and of which one is written.
    unsafe { ForeignBuffer::new(address, count, ()) }
}

/// The numbers, one for each rank, that C has at an address.
///
/// # Errors
/// [`Error::usage`]: it is null, or not aligned.
pub(crate) fn counts(address: *const usize, ranks: usize) -> Result<Vec<usize>> {
    let first = first_element::<u64>(address.addr(), ranks)?;
    // SAFETY: the pointer is aligned and not null, and so many numbers lie there, as the program
    // says. A `size_t` is as long as a `u64`: the library is for such machines alone.
    let numbers = unsafe { std::slice::from_raw_parts(first.as_ptr().cast::<usize>(), ranks) };
    Ok(numbers.to_vec())
}

/// The ranks of a list that C has.
///
/// # Errors
/// As [`counts`].
pub(crate) fn ranks(address: *const i32, count: usize) -> Result<Vec<i32>> {
    Ok(elements::<i32>(address.addr(), count)?.as_slice().to_vec())
}

/// The text that C has at an address; nothing, if that is null.
pub(crate) fn text(address: *const c_char) -> Option<String> {
    if address.is_null() {
        return None;
    }
    // SAFETY: it is not null, so it leads to a text with a zero at its end, as the program says.
    let text = unsafe { CStr::from_ptr(address) };
    Some(text.to_string_lossy().into_owned())
}

/// A place of C's for a result.
///
/// # Errors
/// [`Error::usage`]: it is null.
pub(crate) fn place<'a, T>(
    what: &str,
    place: Option<&'a mut MaybeUninit<T>>,
) -> Result<&'a mut MaybeUninit<T>> {
    place.ok_or_else(|| Error::usage(format!("{what} is NULL: there is no place for the result")))
}

/// A handle as C holds it.
pub(crate) fn as_pointer<T>(handle: usize) -> *mut T {
    without_provenance_mut(handle)
}

/// The communicator of a handle.
///
/// # Errors
/// [`Error::usage`]: there is none.
pub(crate) fn communicator<T>(handle: *mut T) -> Result<Arc<Communicator>> {
    COMMUNICATORS.get(handle.addr())
}
