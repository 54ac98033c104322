//! The door by which memory comes in.

#[cfg(feature = "cuda")]
use crate::device::{self, Stream};
use crate::dtype::Element;
use crate::error::{Error, Result};
use crate::plan::layout::Layout;
use std::sync::Arc;

/// Memory of a device that a collective works on.
#[cfg(feature = "cuda")]
#[derive(Clone, Debug)]
pub struct DeviceMemory {
    /// Where the elements are, from the first byte on.
    pub memory: device::Memory,
    /// How many there are.
    pub count: usize,
    /// What uses of it are ordered by.
    pub stream: Stream,
}

/// Memory that a collective can read.
#[derive(Debug)]
#[non_exhaustive]
pub enum Memory<'a, T> {
    /// A slice of the process's own memory.
    Host(&'a [T]),
    /// A device's.
    #[cfg(feature = "cuda")]
    Device(DeviceMemory),
}

/// Memory that a collective can read and write.
#[derive(Debug)]
#[non_exhaustive]
pub enum MemoryMut<'a, T> {
    /// A slice of the process's own memory.
    Host(&'a mut [T]),
    /// A device's.
    #[cfg(feature = "cuda")]
    Device(DeviceMemory),
}

impl<'a, T> Memory<'a, T> {
    /// How many elements there are.
    #[must_use]
    pub fn count(&self) -> usize {
        match self {
            Self::Host(slice) => slice.len(),
            #[cfg(feature = "cuda")]
            Self::Device(memory) => memory.count,
        }
    }

    /// The slice, for calls that know no other memory.
    pub(super) fn on_host(self) -> Result<&'a [T]> {
        match self {
            Self::Host(slice) => Ok(slice),
            #[cfg(feature = "cuda")]
            Self::Device(_) => Err(refused()),
        }
    }
}

impl<'a, T> MemoryMut<'a, T> {
    /// How many elements there are.
    #[must_use]
    pub fn count(&self) -> usize {
        match self {
            Self::Host(slice) => slice.len(),
            #[cfg(feature = "cuda")]
            Self::Device(memory) => memory.count,
        }
    }

    /// The slice, for calls that know no other memory.
    pub(super) fn on_host(self) -> Result<&'a mut [T]> {
        match self {
            Self::Host(slice) => Ok(slice),
            #[cfg(feature = "cuda")]
            Self::Device(_) => Err(refused()),
        }
    }
}

#[cfg(feature = "cuda")]
fn refused() -> Error {
    Error::usage(
        "device buffers take part in collectives in place (all_reduce, broadcast, reduce, \
         reduce_scatter, all_gather, gather, scatter, all_to_all), not in other calls",
    )
}

/// A buffer whose elements can be read: a slice, an array, a `Vec`, a
/// [`SharedBuffer`](crate::SharedBuffer), a device's, a reference, `Box` or `Arc` to one, or
/// memory of a type of one's own. What the calls rest on is the slice that `memory` returns, not
/// any promise of the type.
///
/// ```
/// use ringtree::comm::buffer::Memory;
/// use ringtree::{Buffer, Layout};
/// use std::sync::Arc;
///
/// /// Part of memory that others read too.
/// struct Part(Arc<[f32]>, std::ops::Range<usize>);
///
/// impl Buffer for Part {
///     type Element = f32;
///     fn memory(&self) -> Memory<'_, f32> {
///         Memory::Host(&self.0[self.1.clone()])
///     }
///     fn layout(&self) -> Layout<'_> {
///         Layout::Even
///     }
/// }
///
/// let received = ringtree::simulate(2, |comm| {
///     let (all, mut two): (Arc<[f32]>, _) = (Arc::from([0.0, 1.0, 2.0, 3.0]), [0.0f32; 2]);
///     match comm.rank() {
///         0 => drop(comm.send_async(Part(Arc::clone(&all), 2..4), 1)?.wait()?),
///         _ => comm.recv(&mut two, 0)?,
///     }
///     Ok::<_, ringtree::Error>(two)
/// });
/// assert_eq!(received[1], Ok([2.0, 3.0]));
/// ```
pub trait Buffer {
    /// What it holds.
    type Element: Element;

    /// Its memory.
    fn memory(&self) -> Memory<'_, Self::Element>;

    /// How it is split where a call works on one block a rank: [`Layout::Even`], if it has nothing
    /// to say about that.
    fn layout(&self) -> Layout<'_>;
}

/// A buffer whose elements can be read and written.
pub trait BufferMut: Buffer {
    /// Its memory: the same that [`Buffer::memory`] returns. A call refuses a buffer of which the
    /// two are not equally long, or not both the host's or a device's.
    fn memory_mut(&mut self) -> MemoryMut<'_, Self::Element>;
}

const HOST: &str = "of the host";
#[cfg(feature = "cuda")]
const DEVICE: &str = "of a device";

/// The memory of a buffer that is to be written. Every call asks for it here.
pub(super) fn written<B: BufferMut + ?Sized>(buffer: &mut B) -> Result<MemoryMut<'_, B::Element>> {
    let read = match buffer.memory() {
        Memory::Host(slice) => (slice.len(), HOST),
        #[cfg(feature = "cuda")]
        Memory::Device(memory) => (memory.count, DEVICE),
    };
    let memory = buffer.memory_mut();
    let written = match &memory {
        MemoryMut::Host(slice) => (slice.len(), HOST),
        #[cfg(feature = "cuda")]
        MemoryMut::Device(memory) => (memory.count, DEVICE),
    };
    if read == written {
        return Ok(memory);
    }
    Err(Error::usage(format!(
        "the buffer's Buffer::memory is {} elements {}, its BufferMut::memory_mut {} elements {}: \
         they must be the same",
        read.0, read.1, written.0, written.1
    )))
}

/// The same, for calls that know the host's memory alone.
pub(super) fn written_on_host<B>(buffer: &mut B) -> Result<&mut [B::Element]>
where
    B: BufferMut + ?Sized,
{
    written(buffer)?.on_host()
}

impl<T: Element> Buffer for [T] {
    type Element = T;

    fn memory(&self) -> Memory<'_, T> {
        Memory::Host(self)
    }

    fn layout(&self) -> Layout<'_> {
        Layout::Even
    }
}

impl<T: Element> BufferMut for [T] {
    fn memory_mut(&mut self) -> MemoryMut<'_, T> {
        MemoryMut::Host(self)
    }
}

/// A reference, a box or a shared pointer to a buffer is a buffer as well.
macro_rules! pointers {
    ($($pointer:ty $(, $writes:ident)?;)*) => {$(
        impl<B: Buffer + ?Sized> Buffer for $pointer {
            type Element = B::Element;

            fn memory(&self) -> Memory<'_, B::Element> {
                (**self).memory()
            }

            fn layout(&self) -> Layout<'_> {
                (**self).layout()
            }
        }

        $(impl<B: $writes + ?Sized> $writes for $pointer {
            fn memory_mut(&mut self) -> MemoryMut<'_, B::Element> {
                (**self).memory_mut()
            }
        })?
    )*};
}

pointers! {
    &B;
    &mut B, BufferMut;
    Box<B>, BufferMut;
    Arc<B>;
}

impl<T: Element> Buffer for Vec<T> {
    type Element = T;

    fn memory(&self) -> Memory<'_, T> {
        Memory::Host(self)
    }

    fn layout(&self) -> Layout<'_> {
        Layout::Even
    }
}

impl<T: Element> BufferMut for Vec<T> {
    fn memory_mut(&mut self) -> MemoryMut<'_, T> {
        MemoryMut::Host(self)
    }
}

impl<T: Element, const N: usize> Buffer for [T; N] {
    type Element = T;

    fn memory(&self) -> Memory<'_, T> {
        Memory::Host(self)
    }

    fn layout(&self) -> Layout<'_> {
        Layout::Even
    }
}

impl<T: Element, const N: usize> BufferMut for [T; N] {
    fn memory_mut(&mut self) -> MemoryMut<'_, T> {
        MemoryMut::Host(self)
    }
}
