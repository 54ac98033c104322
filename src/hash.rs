//! The hash that ranks use to compare values and to detect accidental changes.

pub(crate) use crate::plan::internal::tuning::fnv_1a;
