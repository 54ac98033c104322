//! sys
#![allow(unsafe_code)]

pub(crate) mod simd;
