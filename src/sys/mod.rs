//! The only room with unsafe code.
//!
//! *Purpose.* What the language cannot prove: memory lent to operations in flight, vector
//! instructions, and the system calls that have no safe wrapper.
//!
//! *Invariants.* Every `unsafe` block carries the argument that makes it sound; every public
//! function here is safe to call with any arguments unless it says `unsafe`.
//!
//! *May import* only the base files.

#![allow(unsafe_code)]
#![deny(clippy::undocumented_unsafe_blocks)]

pub(crate) mod barrier;
#[cfg(test)]
pub(crate) mod counting;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
pub(crate) mod fork;
pub(crate) mod generation;
pub(crate) mod inherit;
pub(crate) mod interfaces;
pub(crate) mod memory;
#[cfg(feature = "launch")]
pub(crate) mod process;
pub(crate) mod shared;
pub(crate) mod simd;
pub(crate) mod tcp;
