//! Memory that Python owns, as slices: the only unsafe code of this crate.
//!
//! *What it rests on.* A [`Memory`] is made in three ways. [`Memory::of_buffer`] asks the buffer
//! protocol, which says where the bytes are; a memoryview keeps them there. [`Memory::of_tensor`]
//! asks torch, by the C function of DLPack that torch's class of tensors carries.
//! [`Memory::of_addresses`] believes the package's own Python code, as any foreign function does
//! that is given an address: the tensors are contiguous, lie in host memory, and their storages are
//! kept alive by the object that comes along. A program that resizes a storage while a call works
//! on it, or changes a tensor from another thread, breaks the same rule as with every other backend
//! of torch.

#![allow(unsafe_code)]

use crate::error::unsuitable;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::ffi::PyObject;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyCapsuleMethods, PyMemoryView, PyType};
use ringtree::{Dtype, Element, Error, Result};
use ringtree_foreign::{ForeignBuffer, first_element};
use std::borrow::Cow;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::sync::OnceLock;

/// Elements that lie one after the other.
#[derive(Clone, Copy, Debug)]
struct Span {
    address: usize,
    count: usize,
}

/// Where a memory's elements are: mostly in one place, for which nothing is allocated.
enum Parts {
    One(Span),
    Several(Vec<Span>),
}

impl Deref for Parts {
    type Target = [Span];

    fn deref(&self) -> &[Span] {
        match self {
            Self::One(span) => std::slice::from_ref(span),
            Self::Several(spans) => spans,
        }
    }
}

/// Parts of a process's memory that a call reads or writes.
pub(crate) struct Memory {
    parts: Parts,
    /// What keeps the memory where it is. Whichever thread has it last drops it, and waits for
    /// nothing: without the interpreter's lock, pyo3 leaves the release of an object to the next
    /// thread that has it. A buffer of pyo3's would wait for the lock.
    _keeper: Option<Py<PyAny>>,
}

impl Memory {
    /// Nothing.
    pub(crate) fn none() -> Self {
        Self {
            parts: Parts::Several(Vec::new()),
            _keeper: None,
        }
    }

    /// The parts that Python names by address and number of elements, kept alive by `keeper`.
    pub(crate) fn of_addresses(parts: Vec<(usize, usize)>, keeper: Py<PyAny>) -> Self {
        let spans = parts.into_iter();
        let spans = spans.map(|(address, count)| Span { address, count });
        Self {
            parts: Parts::Several(spans.collect()),
            _keeper: Some(keeper),
        }
    }

    /// The elements of a tensor, and their type, if it is of torch's own class, in host memory,
    /// contiguous, and of a type that is reduced.
    pub(crate) fn of_tensor(tensor: &Bound<'_, PyAny>) -> Option<(Dtype, Self)> {
        let described = Tensors::describe(tensor)?;
        let dtype = described.dtype()?;
        let span = Span {
            address: described.first as usize + usize::try_from(described.offset).ok()?,
            count: described.count()?,
        };
        // A tensor that stands for another one has elements, and no memory.
        let is_there = span.count == 0 || !described.first.is_null();
        is_there.then(|| {
            let memory = Self {
                parts: Parts::One(span),
                _keeper: Some(tensor.clone().unbind()),
            };
            (dtype, memory)
        })
    }

    /// The whole of an object with the buffer protocol, and the type of its elements: `dtype`, or
    /// what the object says.
    ///
    /// # Errors
    /// `BufferUsageError`: the object has no contiguous memory, or none that may be written, or of
    /// no type that travels.
    pub(crate) fn of_buffer(
        object: &Bound<'_, PyAny>,
        dtype: Option<Dtype>,
        is_written: bool,
    ) -> PyResult<(Dtype, Self)> {
        let py = object.py();
        let refused = |error: PyErr| unsuitable(py, error.value(py));
        let view = PyMemoryView::from(object).map_err(refused)?;
        let export = PyUntypedBuffer::get(&view).map_err(refused)?;
        if !export.is_c_contiguous() {
            let line = "the buffer is not contiguous; pass a contiguous copy \
                        (numpy.ascontiguousarray)";
            return Err(unsuitable(py, line));
        }
        if is_written && export.readonly() {
            let line = "the buffer is read-only, and this call writes to it";
            return Err(unsuitable(py, line));
        }
        let found = dtype_of(export.format().to_bytes(), export.item_size());
        let dtype = dtype.or(found).ok_or_else(|| {
            let format = export.format().to_string_lossy();
            let line = format!(
                "elements of the format '{format}' do not travel; there are {}, and dtype=... \
                 says what the bytes are",
                names()
            );
            unsuitable(py, line)
        })?;
        if !export.len_bytes().is_multiple_of(dtype.size()) {
            let line = format!(
                "{} bytes are no whole number of {dtype}",
                export.len_bytes()
            );
            return Err(unsuitable(py, line));
        }
        let span = Span {
            address: export.buf_ptr() as usize,
            count: export.len_bytes() / dtype.size(),
        };
        let memory = Self {
            parts: Parts::One(span),
            _keeper: Some(view.into_any().unbind()),
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
        self.parts = Parts::Several(lengths.iter().map(next).collect());
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
        for part in self.parts.iter() {
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
        for part in self.parts.iter() {
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
        for at in 0..self.parts.len() {
            let part = self.parts[at];
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

/// A tensor as DLPack's structure `DLTensor` describes it.
#[repr(C)]
struct Described {
    first: *mut c_void,
    device_type: i32,
    _device_number: i32,
    dimensions: i32,
    /// The kind of the type, and its bits.
    kind: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    /// In bytes.
    offset: u64,
}

impl Described {
    const HOST: i32 = 1;
    const SIGNED: u8 = 0;
    const UNSIGNED: u8 = 1;
    const FLOAT: u8 = 2;
    const BFLOAT: u8 = 4;

    /// The type of its elements, if they are numbers in host memory that are reduced as they are.
    fn dtype(&self) -> Option<Dtype> {
        if (self.device_type, self.lanes) != (Self::HOST, 1) {
            return None;
        }
        let found = match (self.kind, self.bits) {
            (Self::FLOAT, 16) => Dtype::F16,
            (Self::FLOAT, 32) => Dtype::F32,
            (Self::FLOAT, 64) => Dtype::F64,
            (Self::BFLOAT, 16) => Dtype::Bf16,
            (Self::SIGNED, 8) => Dtype::I8,
            (Self::SIGNED, 16) => Dtype::I16,
            (Self::SIGNED, 32) => Dtype::I32,
            (Self::SIGNED, 64) => Dtype::I64,
            (Self::UNSIGNED, 8) => Dtype::U8,
            (Self::UNSIGNED, 16) => Dtype::U16,
            (Self::UNSIGNED, 32) => Dtype::U32,
            (Self::UNSIGNED, 64) => Dtype::U64,
            _ => return None,
        };
        Some(found)
    }

    /// How many elements it has, if they lie one after the other.
    fn count(&self) -> Option<usize> {
        let dimensions = usize::try_from(self.dimensions).ok()?;
        if dimensions == 0 {
            return Some(1);
        }
        if self.shape.is_null() || self.strides.is_null() {
            return None;
        }
        // SAFETY: torch has set both pointers to so many numbers of the tensor, which its caller
        // holds, and with it the interpreter's lock: nothing changes the tensor meanwhile.
        let (shape, strides) = unsafe {
            (
                std::slice::from_raw_parts(self.shape, dimensions),
                std::slice::from_raw_parts(self.strides, dimensions),
            )
        };
        let mut count = 1i64;
        let mut is_contiguous = true;
        for (length, stride) in shape.iter().zip(strides).rev() {
            is_contiguous &= *length == 1 || *stride == count;
            count = count.checked_mul(*length)?;
        }
        let count = usize::try_from(count).ok()?;
        (is_contiguous || count == 0).then_some(count)
    }
}

type Describe = unsafe extern "C" fn(*mut PyObject, *mut Described) -> c_int;

/// The head of DLPack's table of C functions, which is the same in every version.
#[repr(C)]
struct TableHead {
    major: u32,
    _minor: u32,
    _older: *const c_void,
}

/// That table in the versions 1.x.
#[repr(C)]
struct Table {
    _head: TableHead,
    _others: [*const c_void; 3],
    describe: Option<Describe>,
}

/// torch's class of tensors, and the C function that describes one.
pub(crate) struct Tensors {
    class: Py<PyType>,
    describe: Describe,
}

static TENSORS: OnceLock<Tensors> = OnceLock::new();

impl Tensors {
    /// From now on [`Memory::of_tensor`] takes tensors of this class; none, if it has no table of
    /// functions that this crate knows.
    ///
    /// # Errors
    /// What the class carries under the table's name is no table.
    pub(crate) fn are(class: &Bound<'_, PyType>) -> PyResult<()> {
        let Ok(carried) = class.getattr("__dlpack_c_exchange_api__") else {
            return Ok(());
        };
        let carried = carried.cast_into::<PyCapsule>()?;
        let table = carried.pointer_checked(Some(c"dlpack_exchange_api"))?;
        // SAFETY: a capsule of this name holds the address of such a table, which lasts as long as
        // the process; that is what the name says.
        let major = unsafe { table.cast::<TableHead>().as_ref() }.major;
        if major != 1 {
            return Ok(());
        }
        // SAFETY: as above, and the table is of a version that has these fields.
        let table = unsafe { table.cast::<Table>().as_ref() };
        if let Some(describe) = table.describe {
            let class = class.clone().unbind();
            TENSORS.get_or_init(|| Self { class, describe });
        }
        Ok(())
    }

    /// What torch says of a tensor; nothing if it is of another class, or has no memory.
    fn describe(tensor: &Bound<'_, PyAny>) -> Option<Described> {
        let Self { class, describe } = TENSORS.get()?;
        let py = tensor.py();
        if tensor.get_type_ptr() != class.bind(py).as_type_ptr() {
            return None;
        }
        let mut described = MaybeUninit::uninit();
        // SAFETY: the object is of the class that carries this function, and `described` has room
        // for what it writes. The interpreter's lock is held.
        let code = unsafe { describe(tensor.as_ptr(), described.as_mut_ptr()) };
        if code != 0 {
            // Why not is of no interest: the call is made in another way, and says so itself.
            drop(PyErr::take(py));
            return None;
        }
        // SAFETY: it has ended well, so all fields are written.
        Some(unsafe { described.assume_init() })
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
