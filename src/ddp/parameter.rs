//! Describes the parameters of a model.

use crate::dtype::Dtype;
use std::fmt;

/// A model parameter. All ranks register the same list of parameters. A parameter's index in this
/// list is also called its number.
///
/// `("bias", 8)` converts into an f32 vector, and `("weight", [8, 4])` into an f32 tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Name that is used in messages and checkpoints.
    pub name: String,
    /// Extent of each dimension. The product of the extents is the number of elements.
    pub shape: Vec<usize>,
    /// Type of the gradient, which must be floating-point.
    pub dtype: Dtype,
}

impl Parameter {
    /// Creates a parameter.
    #[must_use]
    pub fn new(name: &str, shape: &[usize], dtype: Dtype) -> Self {
        Self {
            name: name.to_owned(),
            shape: shape.to_vec(),
            dtype,
        }
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn count(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns the size of the parameter in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.count() * self.dtype.size()
    }
}

/// An f32 vector.
impl From<(&str, usize)> for Parameter {
    fn from((name, count): (&str, usize)) -> Self {
        Self::new(name, &[count], Dtype::F32)
    }
}

/// An f32 tensor.
impl<const N: usize> From<(&str, [usize; N])> for Parameter {
    fn from((name, shape): (&str, [usize; N])) -> Self {
        Self::new(name, &shape, Dtype::F32)
    }
}

/// A parameter's name or its index. Methods accept either.
#[derive(Clone, Copy, Debug)]
pub enum ParameterId<'a> {
    /// The name. Finding it costs one lookup in a hash table.
    Name(&'a str),
    /// The index in the list of registered parameters.
    Number(usize),
}

impl From<usize> for ParameterId<'_> {
    fn from(number: usize) -> Self {
        Self::Number(number)
    }
}

impl<'a, S: AsRef<str> + ?Sized> From<&'a S> for ParameterId<'a> {
    fn from(name: &'a S) -> Self {
        Self::Name(name.as_ref())
    }
}

impl fmt::Display for Parameter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, shape, dtype } = self;
        write!(formatter, "{name} {shape:?} {dtype}")
    }
}
