//! Gives access to Python's memory as slices. Contains the only unsafe code in this crate.
//!
//! *Assumptions.* A [`Memory`] is created in one of three ways. [`Memory::of_buffer`] gets the
//! address of the bytes from the buffer protocol, and a memoryview keeps the bytes there.
//! [`Memory::of_tensor`] gets the address from torch, through the DLPack C function that torch's
//! tensor class provides, and keeps the tensor's storage. [`Memory::of_addresses`] trusts the
//! package's own Python code, just as any foreign function trusts the addresses that it receives:
//! the tensors are contiguous and in host memory, and the object that is passed with the addresses
//! keeps their storages alive. A program may give a tensor a different storage during a call, but
//! it must not resize a storage that a call uses. Every other torch backend has the same rule.

#![allow(unsafe_code)]

use crate::error::{bufferless, unsuitable};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::ffi::PyObject;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyCapsuleMethods, PyMemoryView, PyType};
use ringtree::{Dtype, Element, Error, ErrorKind, Result};
use ringtree_foreign::{ForeignBuffer, first_element};
use std::borrow::Cow;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::sync::OnceLock;

/// A contiguous range of elements.
#[derive(Clone, Copy, Debug)]
struct Span {
    address: usize,
    count: usize,
}

/// The locations of the elements. The usual case is one range, which does not need an allocation.
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

/// Parts of this process's memory that a call reads or writes.
pub(crate) struct Memory {
    parts: Parts,
    /// The object that keeps the memory in place. Any thread can drop it without blocking: if the
    /// thread does not hold the interpreter's lock, pyo3 leaves the release of the object to the
    /// next thread that holds the lock. A pyo3 buffer would wait for the lock instead.
    _keeper: Option<Py<PyAny>>,
}

impl Memory {
    /// Creates a memory without parts.
    pub(crate) fn none() -> Self {
        Self {
            parts: Parts::Several(Vec::new()),
            _keeper: None,
        }
    }

    /// Creates a memory that consists of parts, each with an address and a number of elements.
    /// `keeper` keeps the parts alive.
    pub(crate) fn of_addresses(parts: Vec<(usize, usize)>, keeper: Py<PyAny>) -> Self {
        let spans = parts.into_iter();
        let spans = spans.map(|(address, count)| Span { address, count });
        Self {
            parts: Parts::Several(spans.collect()),
            _keeper: Some(keeper),
        }
    }

    /// Returns the element type and the memory of a tensor. Returns `None` if the class of the
    /// tensor is not exactly torch's, if the tensor is not contiguous in host memory, or if its
    /// elements cannot be reduced.
    pub(crate) fn of_tensor(tensor: &Bound<'_, PyAny>) -> Option<(Dtype, Self)> {
        let before = Tensors::describe(tensor)?;
        let storage = tensor.call_method0(intern!(tensor.py(), "untyped_storage"));
        let described = Tensors::describe(tensor)?;
        // Creating the storage's object can start the garbage collector, and a finalizer could give
        // the tensor a different storage. If the address is the same before and after, the object
        // is that of the memory at this address.
        let storage = storage.ok().filter(|_| before.first == described.first)?;
        let dtype = described.dtype()?;
        let span = Span {
            address: described.first as usize + usize::try_from(described.offset).ok()?,
            count: described.count()?,
        };
        // A tensor that only represents another tensor has elements but no memory.
        let is_there = span.count == 0 || !described.first.is_null();
        is_there.then(|| {
            let memory = Self {
                parts: Parts::One(span),
                _keeper: Some(storage.unbind()),
            };
            (dtype, memory)
        })
    }

    /// Returns the element type and the memory of an object with the buffer protocol. The type is
    /// `told`, or the type that the object's format specifies if `told` is `None`. The second value
    /// is `true` if the format specifies bool and `told` is `None`.
    ///
    /// # Errors
    /// Returns a `BufferUsageError` if the object has no contiguous memory, if the memory is
    /// read-only and the call writes to it, or if the element type is not supported. If `told` is
    /// given, the buffer's elements must be bytes or numbers of the same size.
    pub(crate) fn of_buffer(
        object: &Bound<'_, PyAny>,
        told: Option<Dtype>,
        is_written: bool,
    ) -> PyResult<(Dtype, bool, Self)> {
        let py = object.py();
        let view = PyMemoryView::from(object).map_err(|error| bufferless(object, &error))?;
        let view = view.into_any();
        let (view, export) = match PyUntypedBuffer::get(&view) {
            Ok(export) => (view, export),
            Err(error) => {
                // pyo3 refuses a buffer without dimensions, such as a NumPy array with one number.
                let refused = |_| unsuitable(py, error.value(py));
                let view = with_one_dimension(&view).map_err(refused)?;
                let export = PyUntypedBuffer::get(&view).map_err(refused)?;
                (view, export)
            }
        };
        if !export.is_c_contiguous() {
            let line = "the buffer is not contiguous; pass a contiguous copy \
                        (numpy.ascontiguousarray)";
            return Err(unsuitable(py, line));
        }
        if is_written && export.readonly() {
            let line = "the buffer is read-only, but the call writes to it; pass a writable buffer";
            return Err(unsuitable(py, line));
        }
        let found = dtype_of(export.format().to_bytes(), export.item_size());
        let is_bool = export.format().to_bytes().ends_with(b"?");
        let format = || export.format().to_string_lossy().into_owned();
        let Some(found) = found else {
            let line = format!(
                "unsupported element format '{}'; use one of {}",
                format(),
                names()
            );
            return Err(unsuitable(py, line));
        };
        let dtype = told.unwrap_or(found);
        let are_bytes = found.size() == 1 && !is_bool;
        if found.size() != dtype.size() && !are_bytes {
            let line = format!(
                "the buffer has elements of format '{}', which cannot be treated as {dtype}; pass \
                 bytes or elements of {} bytes",
                format(),
                dtype.size()
            );
            return Err(unsuitable(py, line));
        }
        let is_bool = is_bool && told.is_none();
        if !export.len_bytes().is_multiple_of(dtype.size()) {
            let line = format!(
                "the buffer has {} bytes, which is not a multiple of the size of {dtype}",
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
            _keeper: Some(view.unbind()),
        };
        Ok((dtype, is_bool, memory))
    }

    /// Returns the number of elements in each part.
    pub(crate) fn lengths(&self) -> Vec<usize> {
        self.parts.iter().map(|part| part.count).collect()
    }

    /// Returns the number of elements in all parts together.
    pub(crate) fn total(&self) -> usize {
        self.parts.iter().map(|part| part.count).sum()
    }

    /// Returns `true` if the two memories overlap.
    pub(crate) fn overlaps<T: Element>(&self, other: &Self) -> bool {
        let size = size_of::<T>();
        let end = |one: &Span| one.address + one.count * size;
        let mut pairs = self
            .parts
            .iter()
            .flat_map(|one| other.parts.iter().map(move |two| (one, two)));
        pairs.any(|(one, two)| one.address < end(two) && two.address < end(one))
    }

    /// Returns `true` if this is a range of elements of `whole` that begins with element `start`.
    /// Returns `false` if the parts of either memory are not contiguous.
    pub(crate) fn is_part_of<T: Element>(&self, whole: &Self, start: usize) -> bool {
        match (self.joined::<T>(), whole.joined::<T>()) {
            (Some(part), Some(whole)) => {
                part.address == whole.address + start * size_of::<T>()
                    && start + part.count <= whole.count
            }
            _ => false,
        }
    }

    /// Returns `true` if the parts are contiguous, so that no copy is needed.
    pub(crate) fn is_one<T: Element>(&self) -> bool {
        self.joined::<T>().is_some()
    }

    /// Returns all parts as one range, or `None` if they are not contiguous.
    fn joined<T: Element>(&self) -> Option<Span> {
        let nothing = Span {
            address: 0,
            count: 0,
        };
        let first = self.parts.first().copied().unwrap_or(nothing);
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

    /// Returns all elements. Copies them if the parts are not contiguous.
    ///
    /// # Errors
    /// Returns `ErrorKind::Usage` if a part is not aligned.
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

    /// Lets `act` write all elements. If the parts are not contiguous, `act` receives a copy, which
    /// is then written back.
    ///
    /// # Errors
    /// Returns the error from `act`, or `ErrorKind::Usage` if a part is
    /// not aligned.
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

    /// Converts the memory to a buffer that an operation can own while it is in flight.
    ///
    /// # Errors
    /// Returns `ErrorKind::Usage` if the memory is not contiguous or not
    /// aligned.
    pub(crate) fn held<T: Element>(self) -> Result<ForeignBuffer<T, Self>> {
        let apart = || {
            Error::new(
                ErrorKind::Usage,
                "the buffer must be contiguous; pass a contiguous copy",
            )
        };
        let span = self.joined::<T>().ok_or_else(apart)?;
        // SAFETY: as for `read` and `write`; the buffer owns what keeps the elements there. Memory
        // that is sent may be read-only, and is only read.
        unsafe { ForeignBuffer::new(span.address, span.count, self) }
    }

    fn read<T: Element>(&self, span: Span) -> Result<&[T]> {
        let first = first_element::<T>(span.address, span.count)?;
        // SAFETY: the pointer is aligned and not null, and `span.count` elements are there (see the
        // module documentation) as long as `_keeper` lives, which `self` owns. Every bit pattern is
        // a valid element. The program must not write them until the call has completed, and this
        // crate writes only memory that it borrows as `&mut`.
        Ok(unsafe { std::slice::from_raw_parts(first.as_ptr(), span.count) })
    }

    fn write<T: Element>(&mut self, span: Span) -> Result<&mut [T]> {
        let first = first_element::<T>(span.address, span.count)?;
        // SAFETY: as for `read`. All ways to create a `Memory` for writing guarantee that its bytes
        // may be written, and `&mut self` makes this the only access through this object; `call`
        // copies what another `Memory` of the same call shares with it.
        Ok(unsafe { std::slice::from_raw_parts_mut(first.as_ptr(), span.count) })
    }
}

/// A tensor in the layout of DLPack's `DLTensor` structure.
#[repr(C)]
struct Described {
    first: *mut c_void,
    device_type: i32,
    _device_number: i32,
    dimensions: i32,
    /// The kind of the element type.
    kind: u8,
    /// Number of bits per element.
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    /// Offset of the first element in bytes.
    offset: u64,
}

impl Described {
    const HOST: i32 = 1;
    const SIGNED: u8 = 0;
    const UNSIGNED: u8 = 1;
    const FLOAT: u8 = 2;
    const BFLOAT: u8 = 4;

    /// Returns the element type, or `None` if the elements are not in host memory or have a type
    /// that cannot be reduced.
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

    /// Returns the number of elements, or `None` if they are not contiguous.
    fn count(&self) -> Option<usize> {
        let dimensions = usize::try_from(self.dimensions).ok()?;
        if dimensions == 0 {
            return Some(1);
        }
        if self.shape.is_null() || self.strides.is_null() {
            return None;
        }
        // SAFETY: torch has set both pointers to `dimensions` numbers of the tensor. The caller
        // holds the tensor and the interpreter's lock, so nothing changes the tensor meanwhile.
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

/// The beginning of DLPack's table of C functions, which is the same in every version.
#[repr(C)]
struct TableHead {
    major: u32,
    _minor: u32,
    _older: *const c_void,
}

/// DLPack's table of C functions in versions 1.x.
#[repr(C)]
struct Table {
    _head: TableHead,
    _others: [*const c_void; 3],
    describe: Option<Describe>,
}

/// torch's tensor class, and the C function that describes a tensor.
pub(crate) struct Tensors {
    class: Py<PyType>,
    describe: Describe,
}

static TENSORS: OnceLock<Tensors> = OnceLock::new();

impl Tensors {
    /// Makes [`Memory::of_tensor`] accept tensors of this class. Has no effect if the class does
    /// not have a function table of a supported version.
    ///
    /// # Errors
    /// Returns an exception if the class's attribute for the table is not a table.
    pub(crate) fn are(class: &Bound<'_, PyType>) -> PyResult<()> {
        let Ok(carried) = class.getattr("__dlpack_c_exchange_api__") else {
            return Ok(());
        };
        let carried = carried.cast_into::<PyCapsule>()?;
        let table = carried.pointer_checked(Some(c"dlpack_exchange_api"))?;
        // SAFETY: a capsule of this name contains the address of such a table, which lives as long
        // as the process; the name guarantees this.
        let major = unsafe { table.cast::<TableHead>().as_ref() }.major;
        if major != 1 {
            return Ok(());
        }
        // SAFETY: as above, and the version of the table has these fields.
        let table = unsafe { table.cast::<Table>().as_ref() };
        if let Some(describe) = table.describe {
            let class = class.clone().unbind();
            TENSORS.get_or_init(|| Self { class, describe });
        }
        Ok(())
    }

    /// Returns torch's description of a tensor, or `None` if the tensor has a different class or no
    /// memory.
    fn describe(tensor: &Bound<'_, PyAny>) -> Option<Described> {
        let Self { class, describe } = TENSORS.get()?;
        let py = tensor.py();
        if tensor.get_type_ptr() != class.bind(py).as_type_ptr() {
            return None;
        }
        let mut described = MaybeUninit::uninit();
        // SAFETY: the object has the class that provides this function, and `described` has room
        // for what it writes. This thread holds the interpreter's lock.
        let code = unsafe { describe(tensor.as_ptr(), described.as_mut_ptr()) };
        if code != 0 {
            // The reason does not matter, because the call then takes a different path, which
            // reports errors.
            drop(PyErr::take(py));
            return None;
        }
        // SAFETY: the function has succeeded, so it has written all fields.
        Some(unsafe { described.assume_init() })
    }
}

/// Returns the memory of `view`, which has no dimensions, as a memoryview with one dimension.
///
/// # Errors
/// Returns an exception if the format is not one of the machine's own.
fn with_one_dimension<'py>(view: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let format: String = view.getattr("format")?.extract()?;
    // `cast` does not accept the byte order, which ctypes adds. It is that of the machine, or
    // `dtype_of` rejects the format of the result.
    let native = if cfg!(target_endian = "little") {
        '<'
    } else {
        '>'
    };
    let format = format.strip_prefix([native, '@', '=']).unwrap_or(&format);
    view.call_method1("cast", ("B",))?
        .call_method1("cast", (format,))
}

/// A source of exceptions for the main thread.
pub(crate) trait Raise {
    /// Returns the exception to raise, if any. Does not panic.
    fn raise() -> PyResult<()>;
}

/// Makes Python's main thread call `R::raise` between two of its instructions. Returns `false` if
/// too many such requests are pending.
pub(crate) fn raise_soon<R: Raise>() -> bool {
    extern "C" fn raise<R: Raise>(_: *mut c_void) -> c_int {
        let raised = Python::try_attach(|py| R::raise().map_err(|error| error.restore(py)));
        if matches!(raised, Some(Err(()))) {
            -1
        } else {
            0
        }
    }
    // SAFETY: the function is never unloaded, does not use its argument, and fits the type that
    // Python expects: it returns -1 if and only if it has set an exception. `Raise` guarantees that
    // it does not panic, and a panic would abort the process instead of crossing the boundary.
    unsafe { pyo3::ffi::Py_AddPendingCall(Some(raise::<R>), std::ptr::null_mut()) == 0 }
}

/// Returns the element type for a format of Python's `struct` module, or `None` if the format is
/// not supported. The byte order must be that of the machine.
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

/// Returns the names of all element types.
pub(crate) fn names() -> String {
    let names: Vec<&str> = Dtype::ALL.iter().map(|one| one.name()).collect();
    names.join(" ")
}
