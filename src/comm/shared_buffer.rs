//! Buffers that the other ranks of the host can read where they lie.

use super::buffer::{Buffer, BufferMut, Memory, MemoryMut};
use super::{Communicator, Parts};
use crate::dtype::Element;
use crate::error::{Error, Result};
use crate::link::shm::exposed::GONE;
use crate::plan::layout::Layout;
use crate::sys::generation::Generation;
use crate::sys::shared::{OwnRegion, WriteWords};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::ThreadId;

/// A buffer of the communicator's, see [`Communicator::alloc`]. It is a slice in every respect, and
/// parts of it can be sent as well as the whole.
pub struct SharedBuffer<T: Element> {
    home: Home<T>,
    count: usize,
}

/// Where the elements are.
enum Home<T> {
    /// In memory that the host's ranks share.
    Shared(OwnRegion, Generation),
    /// In this process alone: there is no rank to share with.
    Private(Vec<T>),
}

impl<T: Element> SharedBuffer<T> {
    /// Whether the other ranks of this host read the buffer where it lies.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        matches!(self.home, Home::Shared(..))
    }
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

impl<T: Element> Buffer for SharedBuffer<T> {
    type Element = T;

    fn memory(&self) -> Memory<'_, T> {
        Memory::Host(self)
    }

    fn layout(&self) -> Layout<'_> {
        Layout::Even
    }
}

impl<T: Element> BufferMut for SharedBuffer<T> {
    fn memory_mut(&mut self) -> MemoryMut<'_, T> {
        MemoryMut::Host(self)
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
        // In a forked child it is the parent's, which still has it.
        if let Home::Shared(region, made_in) = &self.home
            && made_in.is_current()
        {
            region.store(GONE, 1);
        }
    }
}

impl Communicator {
    /// A buffer of `count` zeros in memory that the other ranks of this host can read: where a
    /// plan sends from it what nothing overwrites meanwhile, they read it where it lies, and the
    /// copy into the transport's own memory is saved. Where there is no rank to share with, it is
    /// ordinary memory.
    ///
    /// All ranks call it with the same `count`, in the order of their calls on this communicator.
    /// The buffer is the communicator's: another one takes it for any other slice. Its memory is
    /// free again when all ranks have dropped theirs and have allocated once more, or are gone. A
    /// forked child has the same memory, not a copy: it may read it, as far as calls of its parent
    /// do not write it, and had better not write.
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
    /// [`Error::usage`] where no memory holds so much; [`Error::protocol`] if another rank wants
    /// another size, [`Error::deadline`] and [`Error::peer_lost`] name ranks that did not take
    /// part, [`Error::system`] is the system's: after these the communicator has failed.
    pub fn alloc<T: Element>(&self, count: usize) -> Result<SharedBuffer<T>> {
        let bytes = count
            .checked_mul(size_of::<T>())
            .filter(|bytes| *bytes <= isize::MAX as usize / 2)
            .ok_or_else(|| {
                let dtype = T::DTYPE;
                Error::usage(format!("no memory holds {count} elements of {dtype}"))
            })?;
        self.0.parts.runtime.get()?;
        let _one_at_a_time = self.0.allocating.take()?;
        let home = match self.allocate(bytes) {
            Ok(Some(region)) => Ok(Home::Shared(region, Generation::current())),
            Ok(None) => private(count).map(Home::Private),
            Err(error) => Err(error),
        };
        let home = home.map_err(|error| self.first_cause(error))?;
        let mut buffer = SharedBuffer { home, count };
        // Touched now, not by the first call.
        buffer.fill(T::zeroed());
        // No rank exposes memory that another does not know yet.
        self.barrier()?;
        Ok(buffer)
    }

    /// The communicator fails because of `error`, unless something was before; what that is.
    pub(crate) fn first_cause(&self, error: Error) -> Error {
        if error.is_usage() {
            return error;
        }
        self.fail(&error);
        self.barrier().err().unwrap_or(error)
    }

    fn allocate(&self, bytes: usize) -> Result<Option<OwnRegion>> {
        let Parts {
            group,
            timeout,
            runtime,
            ..
        } = &self.0.parts;
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

/// The thread that makes a buffer: of one communicator one at a time.
#[derive(Default)]
pub(super) struct Turn {
    owner: Mutex<Option<ThreadId>>,
    given_back: Condvar,
}

impl Turn {
    /// Waits for the turn, which is given back when what is returned is dropped.
    ///
    /// # Errors
    /// [`Error::usage`] if this thread has it: its interrupt's callback may make calls, but not
    /// this one, in which the other ranks would wait for the first one's end.
    fn take(&self) -> Result<impl Drop> {
        let own = Some(std::thread::current().id());
        let owner = super::lock(&self.owner);
        if *owner == own {
            return Err(Error::usage(
                "this thread waits in alloc of this communicator already, and was interrupted: \
                 make the buffer once that call has returned",
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
        *super::lock(&self.0.owner) = None;
        self.0.given_back.notify_one();
    }
}

/// Ordinary memory, all zero.
fn private<T: Element>(count: usize) -> Result<Vec<T>> {
    let mut elements = Vec::new();
    elements.try_reserve_exact(count).map_err(|_| {
        let bytes = count * size_of::<T>();
        Error::system(format!(
            "this machine has no memory for a buffer of {bytes} bytes"
        ))
    })?;
    elements.resize(count, T::zeroed());
    Ok(elements)
}
