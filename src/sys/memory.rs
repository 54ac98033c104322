//! Lends memory to operations in flight.
//!
//! An operation outlives the statement that started it, so a slice that it borrows cannot keep its
//! lifetime. A [`Region`] is such a slice with its lifetime erased. The functions that create a
//! region make sure that it never outlives the memory. [`lend`] takes the region back before it
//! returns, and ends the process if it cannot. [`Region::hold`] keeps the buffer inside the region.

use super::generation::Generation;
use crate::dtype::{Dtype, Element};
use std::any::Any;
use std::io::Write;
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr::NonNull;
use std::sync::Arc;

/// Access to the bytes of a buffer of elements. The access is exclusive unless the buffer was lent
/// only for reading. A region cannot be cloned. Its owner owns the bytes until the region is
/// dropped.
#[derive(Debug)]
pub struct Region {
    pointer: NonNull<u8>,
    bytes: usize,
    dtype: Dtype,
    owner: Owner,
}

#[derive(Debug)]
enum Owner {
    /// Borrowed memory. The lender waits until the region is returned.
    Lent(Access, Loaned),
    /// Bytes of a value that is kept alive as long as the region exists.
    Kept(#[expect(dead_code, reason = "kept only to be dropped")] Arc<dyn Any + Send + Sync>),
    /// A buffer of any type that the region owns, as the pointer from a `Box`, with the access that
    /// is allowed.
    Held(NonNull<dyn Any + Send>, Access),
}

/// Identifies the loan that a region belongs to. A region can be lent again, so its address and
/// length do not identify a loan. [`lend`] uses the address of a local variable, which is unique
/// among the calls in flight. A [`Lender`] counts its loans instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Loaned(usize);

const COUNTED: Loaned = Loaned(0);

/// The access that a region allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Reads,
    Writes,
}

/// An error, with the buffer that could not be held because of the error.
pub(crate) type Refused<B, E> = (E, B);

/// The right to get back the buffers that one or two regions hold, as a `B`. A forked child uses
/// the claim instead of regions: the operation belongs to the parent and does not end in the child,
/// so the child gets no region back.
///
/// Only this crate may use a claim, because a claim must not outlive its regions.
#[derive(Debug)]
pub struct Claim<B> {
    /// The boxed buffers. A claim to one buffer does not use the second pointer.
    held: [NonNull<()>; 2],
    unbox: unsafe fn([NonNull<()>; 2]) -> B,
    release: fn(Option<Region>, Option<Region>) -> Option<B>,
    made_in: Generation,
}

// SAFETY: it is a number until it is exchanged for the buffer, and `Region::hold` accepts only
// buffers that are `Send`.
unsafe impl<B> Send for Claim<B> {}
// SAFETY: a shared claim gives no access.
unsafe impl<B> Sync for Claim<B> {}

impl<B> Claim<B> {
    /// Returns the buffers in a forked child. Returns `None` in the process that passed the buffers
    /// to the regions.
    pub(crate) fn take(self) -> Option<B> {
        if self.made_in.is_current() {
            return None;
        }
        // SAFETY: the pointers came from leaked boxes, which existed in the parent when the child
        // was forked, as their regions did. In the child, nothing frees them or uses the slices any
        // more: the regions are with a runtime, which the child does not access and does not drop.
        Some(unsafe { (self.unbox)(self.held) })
    }

    /// Returns the buffers that the regions of an operation hold, or `None` if they do not hold
    /// buffers of these types. A claim to one buffer needs only one region.
    pub(crate) fn release(self, input: Option<Region>, output: Option<Region>) -> Option<B> {
        (self.release)(input, output)
    }
}

impl<B: 'static> Claim<B> {
    fn of(held: NonNull<B>) -> Self {
        /// # Safety
        /// The pointers must come from leaked boxes of these types, and nothing else in this
        /// process may use or free the boxes.
        unsafe fn unbox<B>([held, _]: [NonNull<()>; 2]) -> B {
            // SAFETY: the caller guarantees this.
            *unsafe { Box::from_raw(held.cast::<B>().as_ptr()) }
        }
        Self {
            held: [held.cast(), NonNull::dangling()],
            unbox: unbox::<B>,
            release: |input, output| input.or(output)?.release(),
            made_in: Generation::current(),
        }
    }

    /// Turns the claim into one that drops the buffer instead of returning it.
    pub(crate) fn without_buffer(self) -> Claim<()> {
        /// # Safety
        /// The pointers must come from leaked boxes of these types, and nothing else in this
        /// process may use or free the boxes.
        unsafe fn unbox<B>([held, _]: [NonNull<()>; 2]) {
            // SAFETY: the caller guarantees this.
            drop(unsafe { Box::from_raw(held.cast::<B>().as_ptr()) });
        }
        Claim {
            held: self.held,
            unbox: unbox::<B>,
            release: |input, output| input.or(output)?.release::<B>().map(drop),
            made_in: self.made_in,
        }
    }

    /// Returns a claim to both the input of this claim and the output of `output`.
    pub(crate) fn and<O: 'static>(self, output: Claim<O>) -> Claim<(B, O)> {
        /// # Safety
        /// The pointers must come from leaked boxes of these types, and nothing else in this
        /// process may use or free the boxes.
        unsafe fn unbox<I, O>([input, output]: [NonNull<()>; 2]) -> (I, O) {
            // SAFETY: the caller guarantees this.
            let input = unsafe { Box::from_raw(input.cast::<I>().as_ptr()) };
            // SAFETY: the caller guarantees this.
            (*input, *unsafe {
                Box::from_raw(output.cast::<O>().as_ptr())
            })
        }
        Claim {
            held: [self.held[0], output.held[0]],
            unbox: unbox::<B, O>,
            release: |input, output| Some((input?.release()?, output?.release()?)),
            made_in: self.made_in,
        }
    }
}

// SAFETY: a region is access to plain data (`Element` is `Pod + Send + Sync`) like a `&mut [T]` or
// a `&[T]`, and both are `Send`. A buffer that it holds is `Send`.
unsafe impl Send for Region {}

impl Region {
    /// Holds a vector. See [`Region::hold`].
    #[must_use]
    pub fn own<T: Element>(vector: Vec<T>) -> Self {
        let held = Self::hold(vector, |vector| Ok::<_, ()>(vector.as_mut_slice()));
        held.unwrap_or_else(|_| unreachable!("invariant: a vector has a slice"))
            .0
    }

    /// Holds a buffer. `slice` returns the elements in the buffer, and [`Region::release`] returns
    /// the buffer. If the region is dropped, the buffer is dropped with it, on the same thread.
    ///
    /// `slice` is called only once, because a user's buffer type may return a different slice each
    /// time.
    ///
    /// # Errors
    /// Returns the error that `slice` returned, with the buffer.
    pub fn hold<B, T, E>(
        buffer: B,
        slice: impl for<'a> FnOnce(&'a mut B) -> Result<&'a mut [T], E>,
    ) -> Result<(Self, Claim<B>), Refused<B, E>>
    where
        B: Send + 'static,
        T: Element,
    {
        Self::hold_at(buffer, Access::Writes, |held| {
            slice(held).map(NonNull::from)
        })
    }

    /// Like [`Region::hold`], but holds the buffer only for reading.
    ///
    /// # Errors
    /// Returns the error that `slice` returned, with the buffer.
    pub fn hold_shared<B, T, E>(
        buffer: B,
        slice: impl for<'a> FnOnce(&'a B) -> Result<&'a [T], E>,
    ) -> Result<(Self, Claim<B>), Refused<B, E>>
    where
        B: Send + 'static,
        T: Element,
    {
        Self::hold_at(buffer, Access::Reads, |held| slice(held).map(NonNull::from))
    }

    /// Holds a buffer. `slice` must return a slice that a borrow of the buffer allows. The borrow
    /// is exclusive if `access` allows writing.
    fn hold_at<B: Send + 'static, T: Element, E>(
        buffer: B,
        access: Access,
        slice: impl FnOnce(&mut B) -> Result<NonNull<[T]>, E>,
    ) -> Result<(Self, Claim<B>), Refused<B, E>> {
        // From here on, the buffer is not moved and is accessed only through this pointer.
        let mut held = NonNull::from(Box::leak(Box::new(buffer)));
        // SAFETY: the box was leaked just now. No other reference to its content exists.
        match slice(unsafe { held.as_mut() }) {
            Ok(slice) => {
                let region = Self::of(slice, Owner::Held(held, access));
                Ok((region, Claim::of(held)))
            }
            // SAFETY: the pointer is the leaked box's, which no region describes.
            Err(error) => Err((error, *unsafe { Box::from_raw(held.as_ptr()) })),
        }
    }

    /// Returns the buffer that the region holds, or `None` if it holds no buffer of this type.
    #[must_use]
    pub fn release<B: 'static>(self) -> Option<B> {
        let Owner::Held(held, _) = self.owner else {
            return None;
        };
        let _given_up = ManuallyDrop::new(self);
        // SAFETY: the pointer came from a leaked box. It is freed once, and the slice is not used
        // any more, because the region is not used or dropped again.
        let held: Box<dyn Any + Send> = unsafe { Box::from_raw(held.as_ptr()) };
        held.downcast().ok().map(|held| *held)
    }

    fn of<T: Element>(slice: NonNull<[T]>, owner: Owner) -> Self {
        Self {
            pointer: slice.cast(),
            bytes: slice.len() * size_of::<T>(),
            dtype: T::DTYPE,
            owner,
        }
    }

    /// Creates a region of bytes that `keeper` keeps alive.
    ///
    /// # Safety
    /// There must be `bytes` initialized bytes at `pointer` as long as `keeper` exists. No other
    /// code may touch these bytes while the owner of the region touches them.
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

    /// Returns the vector that the region holds, or `None` if it holds no vector of this type.
    #[must_use]
    pub fn into_vector<T: Element>(self) -> Option<Vec<T>> {
        self.release()
    }

    #[cfg(test)]
    fn owner_of_loan(&self) -> Option<Loaned> {
        match self.owner {
            Owner::Lent(_, loan) => Some(loan),
            _ => None,
        }
    }

    /// Returns `true` if the region describes borrowed memory.
    fn is_lent(&self) -> bool {
        matches!(self.owner, Owner::Lent(..))
    }

    /// Returns the type of the elements.
    #[must_use]
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn count(&self) -> usize {
        self.bytes / self.dtype.size()
    }

    /// Returns the bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the region has access to `bytes` initialized bytes for its life. No other code
        // writes them.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.bytes) }
    }

    /// Returns the bytes for writing. Any bit pattern is a valid element. The slice is empty if the
    /// region is only for reading.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        if matches!(
            self.owner,
            Owner::Lent(Access::Reads, _) | Owner::Held(_, Access::Reads)
        ) {
            return &mut [];
        }
        // SAFETY: as for `bytes`. The region is not a shared one, so its access is exclusive, and
        // `&mut self` makes it unique. Elements are `Pod`.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.bytes) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Owner::Held(held, _) = self.owner {
            // SAFETY: the pointer came from a leaked box. `release` skips this drop, and the slice
            // ends with the region.
            drop(unsafe { Box::from_raw(held.as_ptr()) });
        }
    }
}

/// A guard that ends the process when it is dropped, because a lent region that was not returned
/// may still be in use.
struct MustReturn;

impl Drop for MustReturn {
    fn drop(&mut self) {
        // Do not use `eprintln!`, which panics if nothing can be written to standard error.
        let said = "ringtree: an operation did not return a borrowed buffer; aborting";
        let _ = writeln!(std::io::stderr(), "{said}");
        std::process::abort();
    }
}

/// Lends `slice` to `operation` as a region. The operation must return the region together with its
/// result, so that the borrow can end. If the operation panics before that, the process ends.
///
/// ```
/// let mut numbers = [1u8, 2, 3];
/// let sum = ringtree::internal::compute::lend(&mut numbers, |mut region| {
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
    lend_region(NonNull::from(slice), Access::Writes, operation)
}

/// Like [`lend`], but lends the slice only for reading.
#[inline]
pub(crate) fn lend_shared<T: Element, R>(
    slice: &[T],
    operation: impl FnOnce(Region) -> (Option<Region>, R),
) -> R {
    lend_region(NonNull::from(slice), Access::Reads, operation)
}

/// Lends `input` for reading and `output` for writing, each in the same way as [`lend`].
#[inline]
pub fn lend_both<T: Element, U: Element, R>(
    input: &[T],
    output: &mut [U],
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
fn lend_region<T: Element, R>(
    slice: NonNull<[T]>,
    access: Access,
    operation: impl FnOnce(Region) -> (Option<Region>, R),
) -> R {
    let place = 0u8;
    let loan = Loaned((&raw const place).addr());
    let guard = MustReturn;
    let (region, result) = operation(Region::of(slice, Owner::Lent(access, loan)));
    // A region is not `Clone`, so the region of this loan is the one that was lent.
    let is_back = region.is_some_and(|region| match region.owner {
        Owner::Lent(_, its) => its == loan,
        _ => false,
    });
    if is_back {
        std::mem::forget(guard);
    }
    result
}

/// A lender of several buffers, which must take all of them back before [`lending`] returns.
/// Asynchronous operations on borrowed buffers use it.
///
/// `'buffers` is the lifetime of the buffers. Each [`Lender::lend`] needs one [`Lender::take_back`]
/// before [`lending`] returns; otherwise, the process ends. A lender counts regions but does not
/// distinguish them. So only this crate may use it, and no region may be returned to a different
/// lender.
#[derive(Debug)]
pub(crate) struct Lender<'buffers> {
    outstanding: std::sync::atomic::AtomicUsize,
    made_in: Generation,
    life: PhantomData<std::cell::Cell<&'buffers mut ()>>,
}

/// The reference `R` to a buffer while a region describes a part of the buffer. The reference
/// cannot be used during that time. It is stored in a `MaybeUninit`, so that moving it asserts
/// nothing about its target.
#[derive(Debug)]
pub(crate) struct Loan<R> {
    reference: MaybeUninit<R>,
    pointer: NonNull<u8>,
    bytes: usize,
}

impl<'buffers> Lender<'buffers> {
    /// Lends the slice that `slice` returns for `buffer`.
    ///
    /// # Errors
    /// Returns the error that `slice` returned. In that case, nothing is lent.
    pub(crate) fn lend<B: ?Sized, T: Element, E>(
        &self,
        buffer: &'buffers mut B,
        slice: impl for<'a> FnOnce(&'a mut B) -> Result<&'a mut [T], E>,
    ) -> Result<(Region, Loan<&'buffers mut B>), E> {
        let mut reference = MaybeUninit::new(buffer);
        // SAFETY: it was initialized just now.
        let whole: &mut B = unsafe { reference.assume_init_mut() };
        let slice = NonNull::from(slice(whole)?);
        Ok(self.loan(
            Region::of(slice, Owner::Lent(Access::Writes, COUNTED)),
            reference,
        ))
    }

    /// Like [`Lender::lend`], but lends the slice only for reading.
    ///
    /// # Errors
    /// Returns the error that `slice` returned. In that case, nothing is lent.
    pub(crate) fn lend_shared<B: ?Sized, T: Element, E>(
        &self,
        buffer: &'buffers B,
        slice: impl FnOnce(&'buffers B) -> Result<&'buffers [T], E>,
    ) -> Result<(Region, Loan<&'buffers B>), E> {
        let region = Region::of(
            NonNull::from(slice(buffer)?),
            Owner::Lent(Access::Reads, COUNTED),
        );
        Ok(self.loan(region, MaybeUninit::new(buffer)))
    }

    fn loan<R>(&self, region: Region, reference: MaybeUninit<R>) -> (Region, Loan<R>) {
        self.outstanding
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let loan = Loan {
            reference,
            pointer: region.pointer,
            bytes: region.bytes,
        };
        (region, loan)
    }

    /// Takes a lent region back.
    pub(crate) fn take_back(&self, region: Option<Region>) {
        if region.is_some_and(|region| region.is_lent()) {
            self.outstanding
                .fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// Takes a lent region back. Returns the reference to the buffer that the region describes, or
    /// `None` if the region does not belong to this loan.
    pub(crate) fn settle<R>(&self, region: Option<Region>, loan: Loan<R>) -> Option<R> {
        let is_its = region.as_ref().is_some_and(|region| {
            let is_same = region.pointer == loan.pointer && region.bytes == loan.bytes;
            region.is_lent() && is_same
        });
        self.take_back(region);
        // SAFETY: it was initialized when it was lent. A region is not `Clone`, so the region that
        // described some of the buffer no longer exists. (A region without bytes describes
        // nothing.)
        is_its.then(|| unsafe { loan.reference.assume_init() })
    }
}

/// Runs `body` with a lender. Ends the process if any region that was lent has not been returned,
/// except in a forked child.
pub(crate) fn lending<'buffers, R>(body: impl FnOnce(&Lender<'buffers>) -> R) -> R {
    struct Check<'a, 'buffers>(&'a Lender<'buffers>);
    impl Drop for Check<'_, '_> {
        fn drop(&mut self) {
            let Lender {
                outstanding,
                made_in,
                ..
            } = self.0;
            // In a forked child, regions that were not returned belong to operations of the parent.
            // Those operations continue in the parent, on the parent's memory.
            let is_missed = outstanding.load(std::sync::atomic::Ordering::Relaxed) != 0;
            if is_missed && made_in.is_current() {
                drop(MustReturn);
            }
        }
    }
    let lender = Lender {
        outstanding: std::sync::atomic::AtomicUsize::new(0),
        made_in: Generation::current(),
        life: PhantomData,
    };
    let check = Check(&lender);
    let result = body(check.0);
    drop(check);
    result
}

#[cfg(test)]
mod tests;
