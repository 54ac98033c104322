//! Describes the parameters of a model.

use crate::dtype::Dtype;
use std::fmt;

/// A model parameter. All ranks register the same list of parameters. A parameter's number is its
/// index in this list.
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

impl fmt::Display for Parameter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, shape, dtype } = self;
        write!(formatter, "{name} {shape:?} {dtype}")
    }
}
