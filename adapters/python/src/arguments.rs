//! What Python passes to a call, as values.

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

/// What a call combines by.
#[derive(Clone, Copy)]
pub(crate) struct Operator(pub(crate) ReduceOp);

impl Operator {
    /// For a call that has no operator.
    pub(crate) const NONE: Self = Self(ReduceOp::Sum);

    /// # Errors
    /// `UsageError`: there is no such operator, or it takes no factor.
    pub(crate) fn new(py: Python<'_>, name: &str, factor: Option<f64>) -> PyResult<Self> {
        match (named(py, name)?, factor) {
            (op, None) => Ok(Self(op)),
            (ReduceOp::Sum, Some(factor)) => Ok(Self(ReduceOp::PreMulSum(factor))),
            (op, Some(_)) => {
                let line =
                    format!("a factor multiplies what is summed: op must be 'sum', not '{op}'");
                Err(usage(py, line))
            }
        }
    }
}

/// What is called so.
///
/// # Errors
/// `UsageError`: nothing is.
pub(crate) fn named<T: FromStr<Err: Display>>(py: Python<'_>, name: &str) -> PyResult<T> {
    name.parse().map_err(|line| usage(py, line))
}

/// A number that a program gives, or a list of them: one that is out of range is refused as any
/// wrong value is.
pub(crate) struct Number<T>(pub(crate) T);

impl<'a, 'py, T: FromPyObject<'a, 'py, Error = PyErr>> FromPyObject<'a, 'py> for Number<T> {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let py = object.py();
        let refused = |error: PyErr| match error.is_instance_of::<PyOverflowError>(py) {
            true => {
                let given = object.as_any();
                let line = format!("{given} is out of range: ranks and counts are from 0 on");
                usage(py, line)
            }
            false => error,
        };
        object.extract().map(Self).map_err(refused)
    }
}

/// How many elements each rank has, where blocks differ.
pub(crate) type Counts = Option<Number<Vec<usize>>>;

/// Buffers of one call, which have elements of one type.
pub(crate) struct Buffers {
    /// What the program says that the bytes are.
    told: Option<Dtype>,
    dtype: Option<Dtype>,
}

impl Buffers {
    /// # Errors
    /// `UsageError`: no type is called so.
    pub(crate) fn of(py: Python<'_>, name: Option<&str>) -> PyResult<Self> {
        let told = name.map(|name| named(py, name)).transpose()?;
        Ok(Self { told, dtype: None })
    }

    /// The memory of one of them.
    ///
    /// # Errors
    /// Those of [`Memory::of_buffer`]; the same if its elements are of another type.
    pub(crate) fn take(&mut self, object: &Bound<'_, PyAny>, is_written: bool) -> PyResult<Memory> {
        let (found, memory) = Memory::of_buffer(object, self.told, is_written)?;
        match self.dtype.replace(found) {
            Some(other) if other != found => {
                let line = format!("one buffer has elements of {other}, the other of {found}");
                Err(unsuitable(object.py(), line))
            }
            _ => Ok(memory),
        }
    }

    /// The type of their elements.
    pub(crate) fn dtype(&self) -> Dtype {
        self.dtype.unwrap_or(Dtype::U8)
    }
}

/// The type of a tensor's elements, and where they lie; nothing if a call on them takes more than
/// that: autograd follows the tensor, or it stands for the negative of what lies there, or
/// [`Memory::of_tensor`] finds nothing.
///
/// # Errors
/// What torch raises when it is asked.
pub(crate) fn plain_tensor(tensor: &Bound<'_, PyAny>) -> PyResult<Option<(Dtype, Memory)>> {
    let py = tensor.py();
    let Some(found) = Memory::of_tensor(tensor) else {
        return Ok(None);
    };
    let is_followed = tensor.getattr(intern!(py, "requires_grad"))?.is_truthy()?;
    let is_plain = !is_followed && !tensor.call_method0(intern!(py, "is_neg"))?.is_truthy()?;
    Ok(is_plain.then_some(found))
}

/// A call as the package's Python code gives it: collective, dtype, operator, factor, root, whether
/// it is in place, the inputs and outputs by address and number of elements, counts.
pub(crate) type Raw = (
    PyBackedStr,
    PyBackedStr,
    PyBackedStr,
    Option<f64>,
    usize,
    bool,
    Vec<(usize, usize)>,
    Vec<(usize, usize)>,
    Option<(Vec<usize>, Vec<usize>)>,
);

/// # Errors
/// `UsageError`: there is no such collective, type or operator.
pub(crate) fn call_of(raw: Raw, keeper: &Bound<'_, PyAny>) -> PyResult<Call> {
    let py = keeper.py();
    let (collective, name, op, factor, root, is_in_place, inputs, outputs, counts) = raw;
    let memory = |parts| Memory::of_addresses(parts, keeper.clone().unbind());
    Ok(Call {
        collective: named(py, &collective)?,
        dtype: named(py, &name)?,
        op: Operator::new(py, &op, factor)?.0,
        root,
        is_in_place,
        input: memory(inputs),
        output: memory(outputs),
        counts,
    })
}
