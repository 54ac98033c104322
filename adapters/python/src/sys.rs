//! Memory that Python owns, as slices: the only unsafe code of this crate.
//!
//! *What it rests on.* A [`Memory`] is made in two ways. [`Memory::of_buffer`] asks the buffer
//! protocol, which says where the bytes are and keeps them there. [`Memory::of_addresses`] believes
//! the package's own Python code, as any foreign function does that is given an address: the
//! tensors are contiguous, lie in host memory, and are kept alive by the object that comes along.
//! A program that resizes a tensor while a call works on it, or changes it from another thread,
//! breaks the same rule as with every other backend of torch.

#![allow(unsafe_code)]

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;
use ringtree::{Dtype, Element, Error, Result};
use ringtree_foreign::{ForeignBuffer, first_element};
use std::borrow::Cow;

/// Elements that lie one after the other.
#[derive(Clone, Copy, Debug)]
struct Span {
    address: usize,
    count: usize,
}

/// What keeps the memory where it is. It is dropped by whichever thread has it last; without the
/// interpreter's lock, pyo3 leaves the release of an object to the next thread that has it.
enum Keeper {
    Nothing,
    Buffer { _export: PyUntypedBuffer },
    Object { _tensors: Py<PyAny> },
}

/// Parts of a process's memory that a call reads or writes.
pub(crate) struct Memory {
    parts: Vec<Span>,
    _keeper: Keeper,
}

impl Memory {
    /// Nothing.
    pub(crate) fn none() -> Self {
        Self {
            parts: Vec::new(),
            _keeper: Keeper::Nothing,
        }
    }

    /// The parts that Python names by address and number of elements, kept alive by `keeper`.
    pub(crate) fn of_addresses(parts: Vec<(usize, usize)>, keeper: Py<PyAny>) -> Self {
        let spans = parts.into_iter();
        Self {
            parts: spans
                .map(|(address, count)| Span { address, count })
                .collect(),
            _keeper: Keeper::Object { _tensors: keeper },
        }
    }

    /// The whole of an object with the buffer protocol, and the type of its elements: `dtype`, or
    /// what the object says.
    ///
    /// # Errors
    /// `TypeError`, `BufferError`: the object has no contiguous memory, or none that may be
    /// written, or of no type that travels.
    pub(crate) fn of_buffer(
        object: &Bound<'_, PyAny>,
        dtype: Option<Dtype>,
        is_written: bool,
    ) -> PyResult<(Dtype, Self)> {
        let export = PyUntypedBuffer::get(object)?;
        if !export.is_c_contiguous() {
            return Err(PyBufferError::new_err(
                "the buffer is not contiguous; pass a contiguous copy (numpy.ascontiguousarray)",
            ));
        }
        if is_written && export.readonly() {
            return Err(PyBufferError::new_err(
                "the buffer is read-only, and this call writes to it",
            ));
        }
        let found = dtype_of(export.format().to_bytes(), export.item_size());
        let dtype = dtype.or(found).ok_or_else(|| {
            let format = export.format().to_string_lossy();
            PyTypeError::new_err(format!(
                "elements of the format '{format}' do not travel; there are {}, and dtype=... \
                 says what the bytes are",
                names()
            ))
        })?;
        if !export.len_bytes().is_multiple_of(dtype.size()) {
            return Err(PyTypeError::new_err(format!(
                "{} bytes are no whole number of {dtype}",
                export.len_bytes()
            )));
        }
        let span = Span {
            address: export.buf_ptr() as usize,
            count: export.len_bytes() / dtype.size(),
        };
        let memory = Self {
            parts: vec![span],
            _keeper: Keeper::Buffer { _export: export },
        };
        Ok((dtype, memory))
    }

    /// The same memory as parts of these lengths.
    ///
    /// # Errors
    /// [`Error::usage`]: there are more or fewer elements.
    pub(crate) fn split(mut self, lengths: &[usize], size: usize) -> Result<Self> {
        let whole = lengths
            .iter()
            .try_fold(0usize, |sum, one| sum.checked_add(*one));
        let ([span], true) = (&self.parts[..], whole == Some(self.total())) else {
            return Err(Error::usage(format!(
                "the buffer has {} elements, which counts of {lengths:?} do not make up",
                self.total()
            )));
        };
        let mut address = span.address;
        let next = |count: &usize| {
            let part = Span {
                address,
                count: *count,
            };
            address += count * size;
            part
        };
        self.parts = lengths.iter().map(next).collect();
        Ok(self)
    }

    /// How many elements the parts have.
    pub(crate) fn lengths(&self) -> Vec<usize> {
        self.parts.iter().map(|part| part.count).collect()
    }

    /// How many elements all parts have together.
    pub(crate) fn total(&self) -> usize {
        self.parts.iter().map(|part| part.count).sum()
    }

    /// Whether some byte is in both.
    pub(crate) fn overlaps<T: Element>(&self, other: &Self) -> bool {
        let size = size_of::<T>();
        let end = |one: &Span| one.address + one.count * size;
        let mut pairs = self
            .parts
            .iter()
            .flat_map(|one| other.parts.iter().map(move |two| (one, two)));
        pairs.any(|(one, two)| one.address < end(two) && two.address < end(one))
    }

    /// Whether this is exactly `count` elements of `whole`, from number `start` on, where the parts
    /// of `whole` lie one after the other.
    pub(crate) fn is_part_of<T: Element>(&self, whole: &Self, start: usize) -> bool {
        match (self.joined::<T>(), whole.joined::<T>()) {
            (Some(part), Some(whole)) => {
                part.address == whole.address + start * size_of::<T>()
                    && start + part.count <= whole.count
            }
            _ => false,
        }
    }

    /// Whether all parts lie one after the other, so that none is copied.
    pub(crate) fn is_one<T: Element>(&self) -> bool {
        self.joined::<T>().is_some()
    }

    /// All parts as one, if they lie one after the other.
    fn joined<T: Element>(&self) -> Option<Span> {
        let first = *self.parts.first()?;
        let mut end = first.address;
        for part in &self.parts {
            if part.address != end && part.count > 0 {
                return None;
            }
            end += part.count * size_of::<T>();
        }
        let count = self.total();
        Some(Span { count, ..first })
    }

    /// All elements: where they are, or copied together.
    ///
    /// # Errors
    /// [`Error::usage`]: a part is not aligned.
    pub(crate) fn whole<T: Element>(&self) -> Result<Cow<'_, [T]>> {
        if let Some(span) = self.joined::<T>() {
            return self.read(span).map(Cow::Borrowed);
        }
        let mut all = Vec::with_capacity(self.total());
        for part in &self.parts {
            all.extend_from_slice(self.read(*part)?);
        }
        Ok(Cow::Owned(all))
    }

    /// Lets `act` write all elements: where they are, or in a copy that goes back afterwards.
    ///
    /// # Errors
    /// Those of `act`; [`Error::usage`]: a part is not aligned.
    pub(crate) fn write_whole<T: Element>(
        &mut self,
        act: impl FnOnce(&mut [T]) -> Result<()>,
    ) -> Result<()> {
        if let Some(span) = self.joined::<T>() {
            return act(self.write(span)?);
        }
        let mut all = self.whole::<T>()?.into_owned();
        act(&mut all)?;
        let mut rest = &all[..];
        for part in self.parts.clone() {
            let (own, others) = rest.split_at(part.count);
            self.write(part)?.copy_from_slice(own);
            rest = others;
        }
        Ok(())
    }

    /// The one part, for an operation under way, which keeps it.
    ///
    /// # Errors
    /// [`Error::usage`]: there are several, or it is not aligned.
    pub(crate) fn held<T: Element>(self) -> Result<ForeignBuffer<T, Self>> {
        let apart = || Error::usage("a message is one buffer");
        let span = self.joined::<T>().ok_or_else(apart)?;
        // SAFETY: as for `read` and `write`; what keeps the elements there goes along. What is sent
        // may be read-only, and is only read.
        unsafe { ForeignBuffer::new(span.address, span.count, self) }
    }

    fn read<T: Element>(&self, span: Span) -> Result<&[T]> {
        let first = first_element::<T>(span.address, span.count)?;
        // SAFETY: the pointer is aligned and not null, and `span.count` elements lie there (see the
        // module's text) as long as `_keeper` lives, which `self` owns. Every bit pattern is an
        // element. The program must not write them until the call has ended, and this crate writes
        // only what it holds by `&mut`.
        Ok(unsafe { std::slice::from_raw_parts(first.as_ptr(), span.count) })
    }

    fn write<T: Element>(&mut self, span: Span) -> Result<&mut [T]> {
        let first = first_element::<T>(span.address, span.count)?;
        // SAFETY: as for `read`. Both ways to make a `Memory` to be written say that its bytes may
        // be, and `&mut self` makes the access the only one through this object; `call` copies what
        // another `Memory` of the same call shares with it.
        Ok(unsafe { std::slice::from_raw_parts_mut(first.as_ptr(), span.count) })
    }
}

/// The element type of a format of the struct module, in the machine's own byte order.
fn dtype_of(format: &[u8], size: usize) -> Option<Dtype> {
    let code = match format {
        [code] | [b'@' | b'=' | b'<', code] => *code,
        _ => return None,
    };
    let found = match (code, size) {
        (b'b', 1) => Dtype::I8,
        (b'B' | b'c' | b'?', 1) => Dtype::U8,
        (b'h', 2) => Dtype::I16,
        (b'H', 2) => Dtype::U16,
        (b'e', 2) => Dtype::F16,
        (b'i' | b'l', 4) => Dtype::I32,
        (b'I' | b'L', 4) => Dtype::U32,
        (b'q' | b'l', 8) => Dtype::I64,
        (b'Q' | b'L', 8) => Dtype::U64,
        (b'f', 4) => Dtype::F32,
        (b'd', 8) => Dtype::F64,
        _ => return None,
    };
    Some(found)
}

/// The names of all types.
pub(crate) fn names() -> String {
    let names: Vec<&str> = Dtype::ALL.iter().map(|one| one.name()).collect();
    names.join(" ")
}
