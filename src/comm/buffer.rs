//! Defines the buffers that calls accept.

use super::shared_buffer::SharedBuffer;
#[cfg(feature = "cuda")]
use crate::device::{self, Stream};
use crate::dtype::Element;
use crate::error::{Error, Result};
use crate::plan::Layout;
use std::sync::Arc;

/// Device memory that a collective operates on.
#[cfg(feature = "cuda")]
#[derive(Clone, Debug)]
pub struct DeviceMemory {
    /// The memory. The elements start at its first byte.
    pub memory: device::Memory,
    /// Number of elements.
    pub count: usize,
    /// The stream that orders all uses of the memory.
    pub stream: Stream,
}

/// Memory that a collective can read.
#[derive(Debug)]
#[non_exhaustive]
pub enum Memory<'a, T> {
    /// A slice in host memory.
    Host(&'a [T]),
    /// Memory on a device.
    #[cfg(feature = "cuda")]
    Device(DeviceMemory),
}

/// Memory that a collective can read and write.
#[derive(Debug)]
#[non_exhaustive]
pub enum MemoryMut<'a, T> {
    /// A slice in host memory.
    Host(&'a mut [T]),
    /// Memory on a device.
    #[cfg(feature = "cuda")]
    Device(DeviceMemory),
}

impl<'a, T> Memory<'a, T> {
    /// Returns the slice, for calls that support only host memory.
    pub(super) fn on_host(self) -> Result<&'a [T]> {
        match self {
            Self::Host(slice) => Ok(slice),
            #[cfg(feature = "cuda")]
            Self::Device(_) => Err(refused()),
        }
    }
}

impl<'a, T> MemoryMut<'a, T> {
    /// Returns the number of elements.
    pub(crate) fn count(&self) -> usize {
        match self {
            Self::Host(slice) => slice.len(),
            #[cfg(feature = "cuda")]
            Self::Device(memory) => memory.count,
        }
    }

    /// Returns the slice, for calls that support only host memory.
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
        "device buffers support only in-place collectives (all_reduce, broadcast, reduce, \
         reduce_scatter, all_gather, gather, scatter, all_to_all); use host memory for other calls",
    )
}

/// A buffer whose elements can be read.
///
/// Slices, arrays, `Vec`, [`SharedBuffer`](crate::comm::SharedBuffer) and device buffers implement
/// this trait. So do references to a buffer, and a `Box` or an `Arc` that holds a buffer. You can
/// also implement the trait for your own types. Calls rely only on the slice that `memory` returns,
/// not on any other property of the type.
///
/// ```
/// use ringtree::comm::Memory;
/// use ringtree::{Buffer, Layout};
/// use std::sync::Arc;
///
/// /// A part of memory that other owners read too.
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
///         0 => drop(comm.start_send(Part(Arc::clone(&all), 2..4), 1)?.wait()?),
///         _ => comm.recv(&mut two, 0)?,
///     }
///     Ok::<_, ringtree::Error>(two)
/// });
/// assert_eq!(received[1], Ok([2.0, 3.0]));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a buffer",
    note = "pass a slice, an array or a `Vec` of elements; a single number is an array: `[number]`"
)]
pub trait Buffer {
    /// The type of the elements.
    type Element: Element;

    /// Returns the memory of the buffer.
    fn memory(&self) -> Memory<'_, Self::Element>;

    /// Returns the layout of the buffer. Calls that use one block per rank split the buffer
    /// according to this layout. Implementations that do not need a specific layout return
    /// [`Layout::Even`].
    fn layout(&self) -> Layout<'_>;
}

/// A buffer whose elements can be read and written.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a buffer that can be written",
    note = "pass `&mut` of a slice, an array or a `Vec` of elements"
)]
pub trait BufferMut: Buffer {
    /// Returns the same memory as [`Buffer::memory`].
    ///
    /// Calls return an error if the memory that the two methods return has different lengths, or if
    /// only one of the methods returns host memory.
    fn memory_mut(&mut self) -> MemoryMut<'_, Self::Element>;
}

/// Returns the memory of a buffer for writing, or an error if the methods of the buffer contradict
/// each other. All calls that write to a buffer use this function.
pub(super) fn writable<B: BufferMut + ?Sized>(buffer: &mut B) -> Result<MemoryMut<'_, B::Element>> {
    let read = match buffer.memory() {
        Memory::Host(slice) => (slice.len(), true),
        #[cfg(feature = "cuda")]
        Memory::Device(memory) => (memory.count, false),
    };
    let memory = buffer.memory_mut();
    let written = (memory.count(), matches!(memory, MemoryMut::Host(_)));
    if read == written {
        return Ok(memory);
    }
    let lies = |(count, is_on_host)| {
        let device = if is_on_host { "host" } else { "device" };
        format!("{count} elements in {device} memory")
    };
    Err(Error::usage(format!(
        "Buffer::memory returns {}, but BufferMut::memory_mut returns {}; return the same memory \
         from both",
        lies(read),
        lies(written)
    )))
}

/// Like [`writable`], for calls that support only host memory.
pub(super) fn writable_on_host<B>(buffer: &mut B) -> Result<&mut [B::Element]>
where
    B: BufferMut + ?Sized,
{
    writable(buffer)?.on_host()
}

/// Implements the traits for pointers to a buffer.
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

/// Implements the traits for slices and for types that dereference to a slice.
macro_rules! slices {
    ($([$($generic:tt)*] $slice:ty;)*) => {$(
        impl<T: Element, $($generic)*> Buffer for $slice {
            type Element = T;

            fn memory(&self) -> Memory<'_, T> {
                Memory::Host(self)
            }

            fn layout(&self) -> Layout<'_> {
                Layout::Even
            }
        }

        impl<T: Element, $($generic)*> BufferMut for $slice {
            fn memory_mut(&mut self) -> MemoryMut<'_, T> {
                MemoryMut::Host(self)
            }
        }
    )*};
}

slices! {
    [] [T];
    [] Vec<T>;
    [const N: usize] [T; N];
    [] SharedBuffer<T>;
}
