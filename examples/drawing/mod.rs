//! The pictures that the examples draw: each uses a part of this.

#![allow(dead_code)]

pub(crate) mod chart;
pub(crate) mod lanes;
pub(crate) mod overlap;
pub(crate) mod page;
