//! What the trainer registers.

use crate::dtype::Dtype;
use std::fmt;

/// A parameter of the model, as all ranks know it. Its number is its place in the list that was
/// registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name, as messages and checkpoints use it.
    pub name: String,
    /// Its extents; the product is the number of elements.
    pub shape: Vec<usize>,
    /// The type of its gradient: a floating-point one.
    pub dtype: Dtype,
}

impl Parameter {
    /// A parameter.
    #[must_use]
    pub fn new(name: &str, shape: &[usize], dtype: Dtype) -> Self {
        Self {
            name: name.to_owned(),
            shape: shape.to_vec(),
            dtype,
        }
    }

    /// Its elements.
    #[must_use]
    pub fn count(&self) -> usize {
        self.shape.iter().product()
    }

    /// Its bytes.
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
