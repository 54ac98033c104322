//! Allocates buffers that the other ranks on the host can read in place.

use super::{Communicator, Parts};
use crate::dtype::Element;
use crate::error::{Error, ErrorKind, Result};
use crate::link::shm::exposed::GONE;
use crate::lock::lock;
use crate::sys::generation::Generation;
use crate::sys::shared::{OwnRegion, WriteWords};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::ThreadId;

/// A buffer that the other ranks on the host can read in place. Created by [`Communicator::alloc`].
///
/// It dereferences to a slice. Calls accept either the complete buffer or parts of it.
pub struct SharedBuffer<T: Element> {
    home: Home<T>,
    count: usize,
}

/// The memory that holds the elements.
enum Home<T> {
    /// Memory shared by the ranks on the host, and the generation of the process that created it.
    Shared(OwnRegion, Generation),
    /// Memory private to this process, because there is no rank to share it with.
    Private(Vec<T>),
}

/// Returns `true` if the other ranks on this host can read the buffer in place.
#[must_use]
pub fn is_shared<T: Element>(buffer: &SharedBuffer<T>) -> bool {
    matches!(buffer.home, Home::Shared(..))
}

impl<T: Element> Deref for SharedBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.home {
            Home::Shared(region, _) => {
                bytemuck::cast_slice(region.bytes(0, self.count * size_of::<T>()))
            }
            Home::Private(elements) => elements,
        }
    }
}

impl<T: Element> DerefMut for SharedBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.home {
            Home::Shared(region, _) => {
                bytemuck::cast_slice_mut(region.bytes_mut(0, self.count * size_of::<T>()))
            }
            Home::Private(elements) => elements,
        }
    }
}

impl<T: Element> fmt::Debug for SharedBuffer<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let elements: &[T] = self;
        elements.fmt(formatter)
    }
}

impl<T: Element> Drop for SharedBuffer<T> {
    fn drop(&mut self) {
        // In a forked child, the buffer belongs to the parent, which may still be using it.
        if let Home::Shared(region, made_in) = &self.home
            && made_in.is_current()
        {
            region.store(GONE, 1);
        }
    }
}

impl Communicator {
    /// Allocates a buffer of `count` zeros that the other ranks on this host can read in place.
    ///
    /// If a plan sends data from the buffer and does not overwrite that data in the meantime, the
    /// other ranks read the data in place. This saves a copy into transport memory. If there is no
    /// other rank to share the buffer with, the buffer is ordinary memory.
    ///
    /// All ranks must make this call with the same `count` and in the same order relative to their
    /// other calls on this communicator. Only this communicator benefits from the shared memory:
    /// other communicators treat the buffer like any other slice. The memory is freed once every
    /// rank either has exited or has dropped its buffer and then called `alloc` again.
    ///
    /// A forked child shares the memory rather than getting a copy. The child can read the parts to
    /// which its parent's calls do not write. The child should not write to the buffer.
    ///
    /// ```
    /// use ringtree::ReduceOp;
    /// let sums = ringtree::simulate(2, |comm| {
    ///     let mut gradients = comm.alloc::<f32>(1000)?;
    ///     gradients.fill(comm.rank() as f32);
    ///     comm.all_reduce(&mut gradients, ReduceOp::Sum)?;
    ///     Ok::<_, ringtree::Error>(gradients[999])
    /// });
    /// assert_eq!(sums, [Ok(1.0), Ok(1.0)]);
    /// ```
    ///
    /// # Errors
    /// Returns one of the [errors that all calls share](Communicator#errors), such as:
    ///
    /// - [`Usage`](crate::ErrorKind::Usage) if `count` elements are too large to fit in memory.
    /// - [`Protocol`](crate::ErrorKind::Protocol) if another rank passes a different `count`.
    /// - [`Deadline`](crate::ErrorKind::Deadline) or [`PeerLost`](crate::ErrorKind::PeerLost) if
    ///   some ranks did not take part in the call. The error names these ranks.
    /// - [`System`](crate::ErrorKind::System) if the operating system refused to provide the
    ///   memory.
    #[doc(alias("ncclMemAlloc", "MPI_Alloc_mem"))]
    pub fn alloc<T: Element>(&self, count: usize) -> Result<SharedBuffer<T>> {
        let bytes = count
            .checked_mul(size_of::<T>())
            .filter(|bytes| *bytes <= isize::MAX as usize / 2)
            .ok_or_else(|| {
                let dtype = T::DTYPE;
                Error::usage(format!("{count} elements of {dtype} cannot fit in memory"))
            })?;
        self.core.parts.runtime.get()?;
        let _one_at_a_time = self.core.allocating.take()?;
        let home = match self.allocate(bytes) {
            Ok(Some(region)) => Ok(Home::Shared(region, Generation::current())),
            Ok(None) => private(count).map(Home::Private),
            Err(error) => Err(error),
        };
        let home = home.map_err(|error| self.first_cause(error))?;
        let mut buffer = SharedBuffer { home, count };
        // Touch the pages now instead of in the first call.
        buffer.fill(T::zeroed());
        // No rank may expose the memory before all ranks know about it.
        self.barrier()?;
        Ok(buffer)
    }

    /// Aborts the communicator with `error` and returns the first error, which may be an earlier
    /// one. If `error` is of kind `Usage`, does not abort the communicator and returns `error`
    /// unchanged.
    pub(crate) fn first_cause(&self, error: Error) -> Error {
        if error.kind() == ErrorKind::Usage {
            return error;
        }
        self.abort(&error);
        self.barrier().err().unwrap_or(error)
    }

    fn allocate(&self, bytes: usize) -> Result<Option<OwnRegion>> {
        let Parts {
            group,
            timeout,
            runtime,
            ..
        } = &self.core.parts;
        let number = {
            let mut issued = self.enter()?;
            issued.allocations += 1;
            issued.allocations
        };
        let own = runtime.get()?.allocate(*group, number, bytes, *timeout)?;
        if let Some(own) = &own {
            let mut issued = self.enter()?;
            issued.extents.retain(crate::sys::shared::Extent::is_there);
            issued.extents.push(own.extent());
        }
        Ok(own)
    }
}

/// A lock that lets only one thread at a time allocate from a communicator.
#[derive(Default)]
pub(super) struct Turn {
    owner: Mutex<Option<ThreadId>>,
    given_back: Condvar,
}

impl Turn {
    /// Waits until this thread may allocate. Dropping the result lets the next thread allocate.
    ///
    /// # Errors
    /// Returns `ErrorKind::Usage` if this thread is already allocating, which is the case if an
    /// interrupt callback tries to allocate during an allocation. The callback may make other calls
    /// but must not allocate, because the other ranks first wait for the interrupted allocation.
    fn take(&self) -> Result<impl Drop> {
        let own = Some(std::thread::current().id());
        let owner = lock(&self.owner);
        if *owner == own {
            return Err(Error::usage(
                "an interrupt callback cannot call alloc if it interrupted another alloc on the \
                 same communicator; call it after that alloc has returned",
            ));
        }
        let freed = self.given_back.wait_while(owner, |owner| owner.is_some());
        *freed.unwrap_or_else(PoisonError::into_inner) = own;
        Ok(Taken(self))
    }
}

struct Taken<'a>(&'a Turn);

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        *lock(&self.0.owner) = None;
        self.0.given_back.notify_one();
    }
}

/// Allocates `count` zeros in ordinary memory.
fn private<T: Element>(count: usize) -> Result<Vec<T>> {
    let mut elements = Vec::new();
    elements.try_reserve_exact(count).map_err(|_| {
        let bytes = count * size_of::<T>();
        Error::system(format!(
            "not enough memory for a buffer of {bytes} bytes; allocate a smaller buffer"
        ))
    })?;
    elements.resize(count, T::zeroed());
    Ok(elements)
}
