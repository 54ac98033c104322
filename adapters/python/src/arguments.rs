//! What Python passes to a call, as values.

use crate::call::Call;
use crate::sys::Memory;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use ringtree::{Collective, Dtype, ReduceOp};
use std::str::FromStr;

/// What a call combines by.
#[derive(Clone, Copy)]
pub(crate) struct Operator(pub(crate) ReduceOp);

impl Operator {
    /// For a call that has no operator.
    pub(crate) const NONE: Self = Self(ReduceOp::Sum);

    /// # Errors
    /// `ValueError`: there is no such operator, or it takes no factor.
    pub(crate) fn new(name: &str, factor: Option<f64>) -> PyResult<Self> {
        match (ReduceOp::from_str(name), factor) {
            (Ok(op), None) => Ok(Self(op)),
            (Ok(ReduceOp::Sum), Some(factor)) => Ok(Self(ReduceOp::PreMulSum(factor))),
            (Ok(op), Some(_)) => Err(PyValueError::new_err(format!(
                "a factor multiplies what is summed: op must be 'sum', not '{op}'"
            ))),
            (Err(line), _) => Err(PyValueError::new_err(line)),
        }
    }
}

/// # Errors
/// `ValueError`: no type is called so.
pub(crate) fn dtype(name: &str) -> PyResult<Dtype> {
    Dtype::from_str(name).map_err(PyValueError::new_err)
}

/// Buffers of one call, which have elements of one type.
pub(crate) struct Buffers {
    /// What the program says that the bytes are.
    told: Option<Dtype>,
    dtype: Option<Dtype>,
}

impl Buffers {
    /// # Errors
    /// `ValueError`: no type is called so.
    pub(crate) fn of(name: Option<&str>) -> PyResult<Self> {
        let told = name.map(dtype).transpose()?;
        Ok(Self { told, dtype: None })
    }

    /// The memory of one of them.
    ///
    /// # Errors
    /// Those of [`Memory::of_buffer`]; `TypeError` if its elements are of another type.
    pub(crate) fn take(&mut self, object: &Bound<'_, PyAny>, is_written: bool) -> PyResult<Memory> {
        let (found, memory) = Memory::of_buffer(object, self.told, is_written)?;
        match self.dtype.replace(found) {
            Some(other) if other != found => Err(PyTypeError::new_err(format!(
                "one buffer has elements of {other}, the other of {found}"
            ))),
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
/// `ValueError`: there is no such collective, type or operator.
pub(crate) fn call_of(raw: Raw, keeper: &Bound<'_, PyAny>) -> PyResult<Call> {
    let (collective, name, op, factor, root, is_in_place, inputs, outputs, counts) = raw;
    let memory = |parts| Memory::of_addresses(parts, keeper.clone().unbind());
    Ok(Call {
        collective: Collective::from_str(&collective).map_err(PyValueError::new_err)?,
        dtype: dtype(&name)?,
        op: Operator::new(&op, factor)?.0,
        root,
        is_in_place,
        input: memory(inputs),
        output: memory(outputs),
        counts,
    })
}
