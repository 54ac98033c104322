//! Converts the arguments of calls from Python.

use crate::call::Call;
use crate::error::{unsuitable, usage};
use crate::sys::Memory;
use pyo3::exceptions::PyOverflowError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use ringtree::{Dtype, ReduceOp};
use std::fmt::Display;
use std::str::FromStr;

/// The operator of a call.
#[derive(Clone, Copy)]
pub(crate) struct Operator(pub(crate) ReduceOp);

impl Operator {
    /// The placeholder for calls without an operator.
    pub(crate) const NONE: Self = Self(ReduceOp::Sum);

    /// Converts the name of an operator, which may be in capitals. If `factor` is given, this
    /// rank's contribution is multiplied by it.
    ///
    /// # Errors
    /// Returns a `UsageError` if there is no operator with this name, or if the operator does not
    /// support a factor.
    pub(crate) fn new(py: Python<'_>, name: &str, factor: Option<f64>) -> PyResult<Self> {
        let op = named(py, name).or_else(|_| named(py, &name.to_ascii_lowercase()))?;
        match (op, factor) {
            (op, None) => Ok(Self(op)),
            (ReduceOp::Sum, Some(factor)) => Ok(Self(ReduceOp::PreMulSum(factor))),
            (op, Some(_)) => {
                let line = format!("op must be 'sum' if a factor is passed; got '{op}'");
                Err(usage(py, line))
            }
        }
    }
}

/// Converts a name, such as the name of an operator or an element type.
///
/// # Errors
/// Returns a `UsageError` if the name is unknown.
pub(crate) fn named<T: FromStr<Err: Display>>(py: Python<'_>, name: &str) -> PyResult<T> {
    name.parse().map_err(|line| usage(py, line))
}

/// A number, or a list of numbers, from Python. A value that is out of range raises a `UsageError`,
/// like any other invalid value.
pub(crate) struct Number<T>(pub(crate) T);

impl<'a, 'py, T: FromPyObject<'a, 'py, Error = PyErr>> FromPyObject<'a, 'py> for Number<T> {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let py = object.py();
        let refused = |error: PyErr| match error.is_instance_of::<PyOverflowError>(py) {
            true => {
                let given = object.as_any();
                let line = format!("{given} is out of range for a rank, a count or a tag");
                usage(py, line)
            }
            false => error,
        };
        object.extract().map(Self).map_err(refused)
    }
}

/// The number of elements in each rank's block, if the blocks differ in length.
pub(crate) type Counts = Option<Number<Vec<usize>>>;

/// The buffers of one call, which all have the same element type.
pub(crate) struct Buffers {
    /// The element type that the program passed. It replaces the element type of the buffers.
    told: Option<Dtype>,
    /// The element type of the buffers so far, and `true` if it is bool.
    dtype: Option<(Dtype, bool)>,
}

impl Buffers {
    /// Creates an empty set of buffers. `name` is the element type that the program passed.
    ///
    /// # Errors
    /// Returns a `UsageError` if there is no type with this name.
    pub(crate) fn of(py: Python<'_>, name: Option<&str>) -> PyResult<Self> {
        let told = name.map(|name| named(py, name)).transpose()?;
        Ok(Self { told, dtype: None })
    }

    /// Returns the memory of a buffer.
    ///
    /// # Errors
    /// Returns the same errors as [`Memory::of_buffer`]. Also returns a `BufferUsageError` if an
    /// earlier buffer has a different element type.
    pub(crate) fn take(&mut self, object: &Bound<'_, PyAny>, is_written: bool) -> PyResult<Memory> {
        let (dtype, is_bool, memory) = Memory::of_buffer(object, self.told, is_written)?;
        let found = (dtype, is_bool);
        let name = |(dtype, is_bool): (Dtype, bool)| if is_bool { "bool" } else { dtype.name() };
        match self.dtype.replace(found) {
            Some(other) if other != found => {
                let (other, found) = (name(other), name(found));
                let line = format!("the buffers must have the same type; got {other} and {found}");
                Err(unsuitable(object.py(), line))
            }
            _ => Ok(memory),
        }
    }

    /// Returns the element type of the buffers.
    pub(crate) fn dtype(&self) -> Dtype {
        self.dtype.map_or(Dtype::U8, |(dtype, _)| dtype)
    }

    /// Returns the operator for the elements of the buffers. A bool is a byte that must remain 0 or
    /// 1, so its sum is "any" and its product is "all", as in torch.
    ///
    /// # Errors
    /// Returns a `BufferUsageError` if the operator is not defined for bool.
    pub(crate) fn operator(&self, py: Python<'_>, op: Operator) -> PyResult<ReduceOp> {
        match op.0 {
            op if !self.dtype.is_some_and(|(_, is_bool)| is_bool) => Ok(op),
            ReduceOp::Sum | ReduceOp::Max | ReduceOp::Bor => Ok(ReduceOp::Bor),
            ReduceOp::Prod | ReduceOp::Min | ReduceOp::Band => Ok(ReduceOp::Band),
            ReduceOp::Bxor => Ok(ReduceOp::Bxor),
            op => {
                let name = op.name();
                let line = format!("{name} of bool is not defined; pass an array of numbers");
                Err(unsuitable(py, line))
            }
        }
    }
}

/// Returns the element type and the memory of a tensor. Returns `None` if a call cannot use the
/// memory directly. This is the case if autograd tracks the tensor, if the tensor is the lazy
/// negative of its memory, or if [`Memory::of_tensor`] returns `None`.
///
/// # Errors
/// Returns the exception that torch raises.
pub(crate) fn plain_tensor(tensor: &Bound<'_, PyAny>) -> PyResult<Option<(Dtype, Memory)>> {
    let py = tensor.py();
    let Some(found) = Memory::of_tensor(tensor) else {
        return Ok(None);
    };
    let is_followed = tensor.getattr(intern!(py, "requires_grad"))?.is_truthy()?;
    let is_plain = !is_followed && !tensor.call_method0(intern!(py, "is_neg"))?.is_truthy()?;
    Ok(is_plain.then_some(found))
}

/// A call from the package's Python code: collective, element type, operator, factor, root, `true`
/// if it works in place, the addresses and lengths of the inputs, the addresses and lengths of the
/// outputs, and the counts.
pub(crate) type Raw = (
    PyBackedStr,
    PyBackedStr,
    PyBackedStr,
    Option<f64>,
    Number<usize>,
    bool,
    Vec<(usize, usize)>,
    Vec<(usize, usize)>,
    Option<(Vec<usize>, Vec<usize>)>,
);

/// Converts a call whose memory `keeper` keeps alive.
///
/// # Errors
/// Returns a `UsageError` if the collective, the type or the operator is unknown.
pub(crate) fn call_of(raw: Raw, keeper: &Bound<'_, PyAny>) -> PyResult<Call> {
    let py = keeper.py();
    let (collective, name, op, factor, root, is_in_place, inputs, outputs, counts) = raw;
    let memory = |parts| Memory::of_addresses(parts, keeper.clone().unbind());
    Ok(Call {
        collective: named(py, &collective)?,
        dtype: named(py, &name)?,
        op: Operator::new(py, &op, factor)?.0,
        root: root.0,
        is_in_place,
        input: memory(inputs),
        output: memory(outputs),
        counts: counts.map_or([None, None], |(send, receive)| [Some(send), Some(receive)]),
    })
}
