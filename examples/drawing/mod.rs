//! Draws the pictures of the examples. Each example uses some of the functions in this module.

#![allow(dead_code)]

pub(crate) mod chart;
pub(crate) mod lanes;
pub(crate) mod overlap;
pub(crate) mod page;
