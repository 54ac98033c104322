//! Memory lent to operations in flight.
//!
//! An operation outlives the statement that started it, so a slice borrowed for it cannot carry
//! its lifetime along. A [`Region`] is that slice with the lifetime erased, and the ways to make
//! one are such that it never outlives the memory: [`lend`] takes the region back before it
//! returns (and ends the process if it cannot), [`Region::own`] keeps the memory inside.

use crate::dtype::{Dtype, Element};
use std::any::Any;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

/// Access to the bytes of a buffer of elements: exclusive, unless it was lent for reading only. It
/// cannot be cloned: the owner of the region owns the bytes until the region is dropped.
#[derive(Debug)]
pub struct Region {
    pointer: NonNull<u8>,
    bytes: usize,
    dtype: Dtype,
    owner: Owner,
}

#[derive(Debug)]
enum Owner {
    /// Borrowed memory; `lend` waits for the region's return.
    Lent,
    /// The same, to be read only.
    LentShared,
    /// Bytes of something that is kept meanwhile.
    Kept(#[expect(dead_code, reason = "it is there to be dropped")] Arc<dyn Any + Send + Sync>),
    /// A vector's memory, of this capacity in elements, freed with the region.
    Vector {
        capacity: usize,
        free: unsafe fn(*mut u8, usize, usize),
    },
}

// SAFETY: a region is exclusive access to plain data (`Element` is `Pod + Send + Sync`), like a
// `&mut [T]` or a `Vec<T>`, both of which are `Send`.
unsafe impl Send for Region {}

impl Region {
    /// Takes the vector's memory.
    #[must_use]
    pub fn own<T: Element>(vector: Vec<T>) -> Self {
        let mut vector = ManuallyDrop::new(vector);
        let owner = Owner::Vector {
            capacity: vector.capacity(),
            free: free_vector::<T>,
        };
        Self::of(NonNull::from(vector.as_mut_slice()), owner)
    }

    fn of<T: Element>(slice: NonNull<[T]>, owner: Owner) -> Self {
        Self {
            pointer: slice.cast(),
            bytes: slice.len() * size_of::<T>(),
            dtype: T::DTYPE,
            owner,
        }
    }

    /// Bytes of something that `keeper` keeps.
    ///
    /// # Safety
    /// There are so many bytes, initialised, as long as `keeper` is there. No other code
    /// touches them while the region's owner does.
    pub(super) unsafe fn of_bytes(
        pointer: NonNull<u8>,
        bytes: usize,
        keeper: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Self {
            pointer,
            bytes,
            dtype: Dtype::U8,
            owner: Owner::Kept(keeper),
        }
    }

    /// Gives the vector back; `None` if the region was lent or holds another type.
    #[must_use]
    pub fn into_vector<T: Element>(self) -> Option<Vec<T>> {
        let Owner::Vector { capacity, .. } = self.owner else {
            return None;
        };
        if self.dtype != T::DTYPE {
            return None;
        }
        let this = ManuallyDrop::new(self);
        let length = this.bytes / size_of::<T>();
        // SAFETY: pointer, length and capacity came from a `Vec<T>` in `own` (one Rust type a
        // dtype), which was not dropped; `this` is never used or dropped again.
        Some(unsafe { Vec::from_raw_parts(this.pointer.as_ptr().cast::<T>(), length, capacity) })
    }

    /// The type of the elements.
    #[must_use]
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the region has access to `bytes` initialised bytes for its life; no other code
        // writes them.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.bytes) }
    }

    /// The bytes, to be written; any bit pattern is a valid element. None of a region that was
    /// lent for reading.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        if matches!(self.owner, Owner::LentShared) {
            return &mut [];
        }
        // SAFETY: as for `bytes`; the region is no shared one, so its access is exclusive, and
        // `&mut self` makes it unique; elements are `Pod`.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.bytes) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Owner::Vector { capacity, free } = self.owner {
            // SAFETY: pointer, bytes and capacity came from the vector of the very type `free` was
            // made for, and `into_vector` skips this drop.
            unsafe { free(self.pointer.as_ptr(), self.bytes, capacity) };
        }
    }
}

/// # Safety
/// The arguments describe a vector of `T` that no other code will drop.
unsafe fn free_vector<T>(pointer: *mut u8, bytes: usize, capacity: usize) {
    // SAFETY: promised by the caller.
    drop(unsafe { Vec::from_raw_parts(pointer.cast::<T>(), bytes / size_of::<T>(), capacity) });
}

/// Ends the process when dropped: a lent region that does not come back may still be in use.
struct MustReturn;

impl Drop for MustReturn {
    fn drop(&mut self) {
        eprintln!("ringtree: a lent buffer did not come back from an operation; aborting");
        std::process::abort();
    }
}

/// Lends `slice` to `operation` as a region, which must be returned beside the result: only then
/// may the borrow end. A panic in between ends the process.
///
/// ```
/// let mut numbers = [1u8, 2, 3];
/// let sum = ringtree::sys::memory::lend(&mut numbers, |mut region| {
///     region.bytes_mut()[0] = 4;
///     let sum: u8 = region.bytes().iter().sum();
///     (Some(region), sum)
/// });
/// assert_eq!((numbers[0], sum), (4, 9));
/// ```
#[inline]
pub fn lend<T: Element, R>(
    slice: &mut [T],
    operation: impl FnOnce(Region) -> (Option<Region>, R),
) -> R {
    lend_region(Region::of(NonNull::from(slice), Owner::Lent), operation)
}

/// As [`lend`], for reading only.
#[inline]
pub fn lend_shared<T: Element, R>(
    slice: &[T],
    operation: impl FnOnce(Region) -> (Option<Region>, R),
) -> R {
    let region = Region::of(NonNull::from(slice), Owner::LentShared);
    lend_region(region, operation)
}

/// [`lend_shared`] of `input` and [`lend`] of `output` at once.
#[inline]
pub fn lend_both<T: Element, R>(
    input: &[T],
    output: &mut [T],
    operation: impl FnOnce(Region, Region) -> (Option<Region>, Option<Region>, R),
) -> R {
    lend_shared(input, |input| {
        lend(output, |output| {
            let (input, output, result) = operation(input, output);
            (output, (input, result))
        })
    })
}

#[inline]
fn lend_region<R>(lent: Region, operation: impl FnOnce(Region) -> (Option<Region>, R)) -> R {
    let (pointer, bytes) = (lent.pointer, lent.bytes);
    let guard = MustReturn;
    let (region, result) = operation(lent);
    // A region is not `Clone`, so one that describes this memory is the one that was lent.
    let is_back = region.is_some_and(|region| {
        let is_lent = matches!(region.owner, Owner::Lent | Owner::LentShared);
        is_lent && region.pointer == pointer && region.bytes == bytes
    });
    if is_back {
        std::mem::forget(guard);
    }
    result
}

/// Lends several things at once and takes them all back before it returns: the ground that
/// borrow-safe asynchronous operations stand on.
///
/// `'buffers` is the life of what may be lent. Each [`Lender::lend`] must be answered by one
/// [`Lender::take_back`] before [`lending`] returns, or the process ends. It counts regions and
/// does not tell them apart, so it is for this crate only: none may go back to another lender.
#[derive(Debug)]
pub(crate) struct Lender<'buffers> {
    outstanding: std::sync::atomic::AtomicUsize,
    life: PhantomData<std::cell::Cell<&'buffers mut ()>>,
}

impl<'buffers> Lender<'buffers> {
    /// Lends `slice`.
    pub(crate) fn lend<T: Element>(&self, slice: &'buffers mut [T]) -> Region {
        self.outstanding
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Region::of(NonNull::from(slice), Owner::Lent)
    }

    /// Takes a lent region back.
    pub(crate) fn take_back(&self, region: Option<Region>) {
        if region.is_some_and(|region| matches!(region.owner, Owner::Lent)) {
            self.outstanding
                .fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
        }
    }
}

/// Runs `body` with a lender and checks that everything lent has come back.
pub(crate) fn lending<'buffers, R>(body: impl FnOnce(&Lender<'buffers>) -> R) -> R {
    struct Check<'a, 'buffers>(&'a Lender<'buffers>);
    impl Drop for Check<'_, '_> {
        fn drop(&mut self) {
            if self
                .0
                .outstanding
                .load(std::sync::atomic::Ordering::Relaxed)
                != 0
            {
                drop(MustReturn);
            }
        }
    }
    let lender = Lender {
        outstanding: std::sync::atomic::AtomicUsize::new(0),
        life: PhantomData,
    };
    let check = Check(&lender);
    let result = body(check.0);
    drop(check);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_comes_back_as_it_was_or_is_freed() {
        let mut region = Region::own(Vec::from([1u16, 2, 3]));
        region.bytes_mut()[2..4].copy_from_slice(&7u16.to_ne_bytes());
        assert_eq!(region.into_vector::<u16>(), Some(vec![1, 7, 3]));
        assert_eq!(Region::own(vec![1.0f32]).into_vector::<u32>(), None);
        assert_eq!(
            Region::own(Vec::<f64>::new()).into_vector(),
            Some(Vec::<f64>::new())
        );
        let region = Region::own(vec![1u8; 100]);
        let bytes = std::thread::spawn(move || region.bytes().len());
        assert_eq!(bytes.join().unwrap(), 100);
    }

    #[test]
    fn what_was_lent_can_be_used_again_and_what_is_read_is_not_written() {
        let (input, mut output) = ([1u8, 2, 3], [0u8; 3]);
        for _ in 0..2 {
            lend_both(&input, &mut output, |mut from, mut into| {
                assert!(from.bytes_mut().is_empty());
                into.bytes_mut().copy_from_slice(from.bytes());
                into.bytes_mut()[0] += 1;
                (Some(from), Some(into), ())
            });
            assert_eq!((input, output), ([1, 2, 3], [2, 2, 3]));
            output = [0; 3];
        }
    }

    #[test]
    fn several_that_were_lent_at_once_come_back_from_another_thread() {
        let (mut one, mut other) = ([1u32; 4], [2u32; 4]);
        lending(|lender| {
            let regions = [lender.lend(&mut one), lender.lend(&mut other)];
            let double = |mut region: Region| {
                region.bytes_mut().iter_mut().for_each(|byte| *byte *= 2);
                region
            };
            let thread = std::thread::spawn(move || regions.map(double));
            for region in thread.join().unwrap() {
                lender.take_back(Some(region));
            }
        });
        assert_eq!((one, other), ([2; 4], [4; 4]));
    }
}
