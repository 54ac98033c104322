//! Makes memory that another language owns usable as a buffer.

#![allow(unsafe_code)]

use ringtree::comm::{Memory, MemoryMut};
use ringtree::{Buffer, BufferMut, Element, Error, ErrorKind, Layout, Result};
use std::ptr::NonNull;

/// Elements at an address that another language passed, and a keeper that keeps their memory valid.
///
/// An asynchronous call can own this buffer. When the call has completed, it drops the buffer and,
/// with it, the keeper.
///
/// ```
/// use ringtree_foreign::ForeignBuffer;
/// let mut numbers = [1.0f32, 2.0];
/// let address = numbers.as_mut_ptr() as usize;
/// // SAFETY: two elements are at `address`, and nothing else uses them in the meantime.
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

// SAFETY: the buffer gives access to plain data (`Element` is `Pod + Send + Sync`) like a
// `&mut [T]`, which is `Send`; the keeper of the data is `Send`.
unsafe impl<T: Element, K: Send> Send for ForeignBuffer<T, K> {}

impl<T: Element, K> ForeignBuffer<T, K> {
    /// Creates a buffer of the `count` elements at `address`, which `keeper` keeps valid.
    ///
    /// # Errors
    /// Returns the same errors as [`first_element`].
    ///
    /// # Safety
    /// For as long as the buffer exists, `count` elements must be at `address`, and nothing may
    /// write to them except through the buffer. While something writes through the buffer
    /// (`as_mut_slice`, or a call that takes a [`BufferMut`]), nothing else may read the elements.
    /// Every bit pattern must be a valid element.
    pub unsafe fn new(address: usize, count: usize, keeper: K) -> Result<Self> {
        Ok(Self {
            first: first_element(address, count)?,
            count,
            _keeper: keeper,
        })
    }

    /// Returns all elements.
    #[must_use]
    pub fn as_slice(&self) -> &[T] {
        // SAFETY: `new` checked the address and the length; its caller guarantees the rest.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.count) }
    }

    /// Returns all elements for writing.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: as above; `&mut self` makes this the only access through the buffer.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr(), self.count) }
    }
}

/// Returns a pointer to the first of `count` elements at `address`. The pointer dangles if `count`
/// is 0.
///
/// ```
/// use ringtree::ErrorKind;
/// use ringtree_foreign::first_element;
/// assert!(first_element::<u64>(0, 0).is_ok());
/// assert!(first_element::<u64>(0, 1).is_err_and(|error| error.kind() == ErrorKind::Usage));
/// assert!(first_element::<u64>(4, 1).is_err() && first_element::<u8>(4, usize::MAX).is_err());
/// ```
///
/// # Errors
/// Returns [`ErrorKind::Usage`] if the address is null or not aligned for `T`, or if the elements
/// exceed the address space.
pub fn first_element<T: Element>(address: usize, count: usize) -> Result<NonNull<T>> {
    if count == 0 {
        return Ok(NonNull::dangling());
    }
    let bytes = count.checked_mul(size_of::<T>());
    let end = bytes.and_then(|bytes| address.checked_add(bytes));
    // The memory of a process is in the lower half of the address space.
    if end.is_none_or(|end| isize::try_from(end).is_err()) {
        return Err(Error::new(
            ErrorKind::Usage,
            format!(
                "a buffer of {count} {} at {address:#x} exceeds the address space",
                T::DTYPE
            ),
        ));
    }
    let Some(first) = NonNull::new(address as *mut T) else {
        return Err(Error::new(
            ErrorKind::Usage,
            format!(
                "a buffer of {count} {} has the null address; pass valid memory",
                T::DTYPE
            ),
        ));
    };
    if !first.is_aligned() {
        return Err(Error::new(
            ErrorKind::Usage,
            format!(
                "the buffer at {address:#x} is not aligned for {}; pass an aligned copy",
                T::DTYPE
            ),
        ));
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
