//! The door by which memory comes in.

use crate::device::{self, Stream};
use crate::dtype::Element;
use crate::error::{Error, Result};

/// Memory of a device that a collective works on.
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
    Device(DeviceMemory),
}

/// Memory that a collective can read and write.
#[derive(Debug)]
#[non_exhaustive]
pub enum MemoryMut<'a, T> {
    /// A slice of the process's own memory.
    Host(&'a mut [T]),
    /// A device's.
    Device(DeviceMemory),
}

impl<'a, T> Memory<'a, T> {
    /// How many elements there are.
    #[must_use]
    pub fn count(&self) -> usize {
        match self {
            Self::Host(slice) => slice.len(),
            Self::Device(memory) => memory.count,
        }
    }

    /// The slice, for calls that know no other memory.
    pub(super) fn on_host(self) -> Result<&'a [T]> {
        match self {
            Self::Host(slice) => Ok(slice),
            Self::Device(_) => Err(refused()),
        }
    }
}

impl<'a, T> MemoryMut<'a, T> {
    /// The slice, for calls that know no other memory.
    pub(super) fn on_host(self) -> Result<&'a mut [T]> {
        match self {
            Self::Host(slice) => Ok(slice),
            Self::Device(_) => Err(refused()),
        }
    }
}

fn refused() -> Error {
    Error::usage(
        "device buffers take part in collectives in place (all_reduce, broadcast, reduce, \
         reduce_scatter, all_gather), not in other calls",
    )
}

/// A buffer whose elements can be read.
pub trait Buffer {
    /// What it holds.
    type Element: Element;

    /// Its memory.
    fn memory(&self) -> Memory<'_, Self::Element>;
}

/// A buffer whose elements can be read and written.
pub trait BufferMut: Buffer {
    /// Its memory.
    fn memory_mut(&mut self) -> MemoryMut<'_, Self::Element>;
}

impl<T: Element> Buffer for [T] {
    type Element = T;

    fn memory(&self) -> Memory<'_, T> {
        Memory::Host(self)
    }
}

impl<T: Element> BufferMut for [T] {
    fn memory_mut(&mut self) -> MemoryMut<'_, T> {
        MemoryMut::Host(self)
    }
}

impl<T: Element> Buffer for Vec<T> {
    type Element = T;

    fn memory(&self) -> Memory<'_, T> {
        Memory::Host(self)
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
}

impl<T: Element, const N: usize> BufferMut for [T; N] {
    fn memory_mut(&mut self) -> MemoryMut<'_, T> {
        MemoryMut::Host(self)
    }
}
