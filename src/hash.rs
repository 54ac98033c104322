//! The hash by which ranks compare values and detect accidental changes.

pub(crate) use crate::plan::internal::tuning::fnv_1a;
