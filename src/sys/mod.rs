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

pub mod barrier;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod fork;
pub mod generation;
pub(crate) mod inherit;
pub mod interfaces;
pub mod memory;
#[cfg(feature = "launch")]
pub mod process;
pub mod shared;
pub(crate) mod simd;
pub mod tcp;
