//! Accesses the memory behind C's pointers. Contains the only unsafe blocks.
//!
//! *Assumptions.* The header requires that each pointer either is null or points to what the
//! parameter's documentation describes for as long as the call lasts. A started call lasts until
//! its work has completed. The library checks what it can: null pointers, alignment, lengths that
//! exceed the address space, and overlaps.

#![allow(unsafe_code)]

use crate::handles::COMMUNICATORS;
use crate::types::ringtree_config_t;
use ringtree::{Communicator, Element, Error, ErrorKind, Result};
use ringtree_foreign::ForeignBuffer;
use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::ptr::without_provenance_mut;
use std::sync::Arc;

/// Returns a buffer that consists of the `count` elements at the given address in C's memory.
/// Errors call the parameter `what`.
///
/// # Errors
/// Returns [`ErrorKind::Usage`] if the address is null or not aligned, or if the elements exceed
/// the address space.
pub(crate) fn elements<T: Element>(
    what: &str,
    (address, count): (usize, usize),
) -> Result<ForeignBuffer<T>> {
    let usage = |text: String| Error::new(ErrorKind::Usage, text);
    if address == 0 && count > 0 {
        return Err(usage(format!(
            "{what} is NULL, but its length is {count}; pass valid memory"
        )));
    }
    // SAFETY: `ForeignBuffer::new` checks the address. The header obliges all threads of the
    // program to keep `count` elements there until the call has completed, not to write to memory
    // that the call reads, and not to use memory that the call writes. A blocking call drops the
    // buffer before it returns, and lists of counts, ranks and handles are copied and dropped
    // before the call starts. A started call passes the buffer to the engine, which uses it only
    // until the operation ends. Destroying or aborting the communicator does not change that. The
    // functions that report completion rely on `Pending`, which reports it only after the operation
    // has ended; they return an error in a forked child, where `Pending` cannot know. `call` writes
    // only to `recv` or to the buffer of an in-place call, and it never creates overlapping
    // buffers if one of them is written. All bit patterns are valid elements (`Element` is `Pod`).
    let buffer = unsafe { ForeignBuffer::new(address, count, ()) };
    buffer.map_err(|error| usage(format!("{what}: {error}")))
}

/// Returns a copy of the numbers at the given address in C's memory. There is one number per rank.
///
/// # Errors
/// Returns [`ErrorKind::Usage`] if the address is null or not aligned.
pub(crate) fn counts(what: &str, address: *const usize, ranks: usize) -> Result<Vec<usize>> {
    words(what, (address.addr(), ranks))
}

/// Returns the handles of the `count` started calls at the given address in C's memory.
///
/// # Errors
/// Returns the same errors as [`counts`].
pub(crate) fn handles<T>(address: *const *mut T, count: usize) -> Result<Vec<usize>> {
    words("works", (address.addr(), count))
}

/// Returns a copy of the `count` words at the given address in C's memory.
fn words(what: &str, at: (usize, usize)) -> Result<Vec<usize>> {
    // A `size_t` and a pointer are as long as a `u64` on all machines that the library supports.
    const { assert!(size_of::<usize>() == size_of::<u64>()) };
    let numbers = elements::<u64>(what, at)?;
    Ok(numbers.as_slice().iter().map(|one| *one as usize).collect())
}

/// Returns a copy of a list of ranks in C's memory.
///
/// # Errors
/// Returns the same errors as [`counts`].
pub(crate) fn ranks(address: *const i32, count: usize) -> Result<Vec<i32>> {
    let members = elements::<i32>("members", (address.addr(), count))?;
    Ok(members.as_slice().to_vec())
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

/// Returns a copy of the configuration at the given address in C's memory. Fields that the program
/// does not have, because it was compiled with an older header, have their default values.
///
/// # Errors
/// Returns [`ErrorKind::Usage`] if the address is null or not aligned, or if the size is not that
/// of a configuration that this version knows.
pub(crate) fn config<'a>(address: *const ringtree_config_t<'a>) -> Result<ringtree_config_t<'a>> {
    let mut config = ringtree_config_t::DEFAULT;
    let usage = |text: String| Err(Error::new(ErrorKind::Usage, text));
    if address.is_null() || !address.is_aligned() {
        return usage("config is NULL or not aligned; pass a ringtree_config_t".to_owned());
    }
    // SAFETY: the address is aligned and not null. Every version of a configuration begins with its
    // size, so the program guarantees that a `usize` is there.
    let size = unsafe { address.cast::<usize>().read() };
    let known = size_of_val(&config);
    if size > known {
        return usage(format!(
            "the ringtree_config_t has {size} bytes, but version {} of the library knows only \
             {known}; install the version of the library that the program was compiled with",
            env!("CARGO_PKG_VERSION")
        ));
    }
    // Each field is 8 bytes long, except for pairs of fields that are 8 bytes long together.
    if size == 0 || !size.is_multiple_of(8) {
        return usage(format!(
            "the size of the ringtree_config_t is {size}, which no version has; initialize it with \
             RINGTREE_CONFIG_INITIALIZER"
        ));
    }
    // SAFETY: the program guarantees `size` initialized bytes at the address, and `config` has at
    // least as many. The structures of all versions begin with the same fields and have no padding,
    // so the bytes are valid values of the fields that they cover: numbers, pointers that are only
    // passed to `text`, and an ID's address, which is null or points to an ID as the header says.
    unsafe {
        std::ptr::copy_nonoverlapping(
            address.cast::<u8>(),
            std::ptr::from_mut(&mut config).cast::<u8>(),
            size,
        );
    }
    config.size = known;
    Ok(config)
}

/// Returns the memory of the output parameter named `what`.
///
/// # Errors
/// Returns [`ErrorKind::Usage`] if the parameter is null.
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

/// Writes the first `capacity` of `rows` to the array at the given address in C's memory.
///
/// # Errors
/// Returns [`ErrorKind::Usage`] if the address is null, although `capacity` is not 0, or is not
/// aligned.
pub(crate) fn write_rows<T: Copy>(
    what: &str,
    (address, capacity): (*mut T, usize),
    rows: &[T],
) -> Result<()> {
    let count = rows.len().min(capacity);
    if capacity > 0 && (address.is_null() || !address.is_aligned()) {
        let text = format!("{what} is NULL or not aligned; pass an array of {capacity} structures");
        return Err(Error::new(ErrorKind::Usage, text));
    }
    if count > 0 {
        // SAFETY: the address is aligned and not null, and the program guarantees memory for
        // `capacity` structures there, which no other thread uses. `rows` has at least `count`.
        unsafe { std::ptr::copy_nonoverlapping(rows.as_ptr(), address, count) };
    }
    Ok(())
}

/// Converts a handle to a pointer for C.
pub(crate) fn as_pointer<T>(handle: usize) -> *mut T {
    without_provenance_mut(handle)
}

/// Returns the communicator that a handle refers to.
///
/// # Errors
/// Returns [`ErrorKind::Usage`] if the handle is not valid.
pub(crate) fn communicator<T>(handle: *mut T) -> Result<Arc<Communicator>> {
    COMMUNICATORS.get(handle.addr())
}
