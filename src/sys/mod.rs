//! Contains all unsafe code in the library.
//!
//! *Purpose.* Wraps operations that the compiler cannot check: memory that is lent to operations in
//! flight, vector instructions, and system calls that have no safe wrapper.
//!
//! *Invariants.* Every `unsafe` block has a comment that explains why it is sound. Every public
//! function is safe to call with any arguments, unless it is marked `unsafe`.
//!
//! *May import* only the base files.

#![allow(unsafe_code)]
#![deny(clippy::undocumented_unsafe_blocks)]

pub(crate) mod barrier;
#[cfg(test)]
pub(crate) mod counting;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod dynamic;
pub(crate) mod fork;
pub(crate) mod generation;
pub(crate) mod inherit;
pub(crate) mod interfaces;
pub(crate) mod memory;
pub(crate) mod mpi;
pub(crate) mod munge;
pub(crate) mod pmix;
#[cfg(feature = "launch")]
pub(crate) mod process;
pub(crate) mod shared;
pub(crate) mod simd;
pub(crate) mod tcp;
