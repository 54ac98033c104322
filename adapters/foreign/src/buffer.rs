//! Memory that another language owns, as buffers.

#![allow(unsafe_code)]

use ringtree::comm::buffer::{Memory, MemoryMut};
use ringtree::{Buffer, BufferMut, Element, Error, Layout, Result};
use std::ptr::NonNull;

/// Elements at an address that another language gave, and what keeps them there.
///
/// As a [`Buffer`] it is what an asynchronous call owns: `keeper` is let go when the call has
/// ended.
///
/// ```
/// use ringtree_foreign::ForeignBuffer;
/// let mut numbers = [1.0f32, 2.0];
/// let address = numbers.as_mut_ptr() as usize;
/// // SAFETY: two elements lie there, and nothing else uses them meanwhile.
/// let mut buffer = unsafe { ForeignBuffer::<f32>::new(address, 2, ()) }?;
/// buffer.as_mut_slice()[1] = 5.0;
/// assert_eq!(numbers, [1.0, 5.0]);
/// # Ok::<(), ringtree::Error>(())
/// ```
#[derive(Debug)]
pub struct ForeignBuffer<T, K = ()> {
    first: NonNull<T>,
    count: usize,
    _keeper: K,
}

// SAFETY: it is access to plain data (`Element` is `Pod + Send + Sync`) like a `&mut [T]`, which
// is `Send`; what keeps the data there is `Send`.
unsafe impl<T: Element, K: Send> Send for ForeignBuffer<T, K> {}

impl<T: Element, K> ForeignBuffer<T, K> {
    /// The `count` elements at `address`, which are there as long as `keeper` is.
    ///
    /// # Errors
    /// Those of [`first_element`].
    ///
    /// # Safety
    /// There are so many elements as long as the buffer lives, and nothing writes them but through
    /// it. If something writes through it (`as_mut_slice`, or a call that takes a [`BufferMut`]),
    /// nothing else reads them meanwhile. Every bit pattern is an element.
    pub unsafe fn new(address: usize, count: usize, keeper: K) -> Result<Self> {
        Ok(Self {
            first: first_element(address, count)?,
            count,
            _keeper: keeper,
        })
    }

    /// All of them.
    #[must_use]
    pub fn as_slice(&self) -> &[T] {
        // SAFETY: `new` has checked address and length; its caller promised the rest.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.count) }
    }

    /// All of them, to be written.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: as above; `&mut self` makes this the only access through the buffer.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr(), self.count) }
    }
}

/// Where `count` elements begin; of none of them, anywhere.
///
/// ```
/// use ringtree_foreign::first_element;
/// assert!(first_element::<u64>(0, 0).is_ok());
/// assert!(first_element::<u64>(0, 1).is_err_and(|error| error.is_usage()));
/// assert!(first_element::<u64>(4, 1).is_err() && first_element::<u8>(4, usize::MAX).is_err());
/// ```
///
/// # Errors
/// [`Error::usage`]: the address is null, not one of such an element, or no memory is so long.
pub fn first_element<T: Element>(address: usize, count: usize) -> Result<NonNull<T>> {
    if count == 0 {
        return Ok(NonNull::dangling());
    }
    let bytes = count.checked_mul(size_of::<T>());
    let end = bytes.and_then(|bytes| address.checked_add(bytes));
    // A process's memory is in the lower half of the addresses.
    if end.is_none_or(|end| isize::try_from(end).is_err()) {
        return Err(Error::usage(format!(
            "a buffer of {count} {} at {address:#x} is longer than memory",
            T::DTYPE
        )));
    }
    let Some(first) = NonNull::new(address as *mut T) else {
        return Err(Error::usage(format!(
            "a buffer of {count} {} is at the null address",
            T::DTYPE
        )));
    };
    if !first.is_aligned() {
        return Err(Error::usage(format!(
            "the buffer at {address:#x} is not aligned for elements of {}; pass a copy",
            T::DTYPE
        )));
    }
    Ok(first)
}

impl<T: Element, K> Buffer for ForeignBuffer<T, K> {
    type Element = T;

    fn memory(&self) -> Memory<'_, T> {
        Memory::Host(self.as_slice())
    }

    fn layout(&self) -> Layout<'_> {
        Layout::Even
    }
}

impl<T: Element, K> BufferMut for ForeignBuffer<T, K> {
    fn memory_mut(&mut self) -> MemoryMut<'_, T> {
        MemoryMut::Host(self.as_mut_slice())
    }
}
