//! The door by which memory comes in.

use crate::dtype::Element;

/// Memory that a collective can read. Host memory today; device buffers enter by the same door.
#[derive(Debug)]
#[non_exhaustive]
pub enum Memory<'a, T> {
    /// A slice of the process's own memory.
    Host(&'a [T]),
}

/// Memory that a collective can read and write.
#[derive(Debug)]
#[non_exhaustive]
pub enum MemoryMut<'a, T> {
    /// A slice of the process's own memory.
    Host(&'a mut [T]),
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
