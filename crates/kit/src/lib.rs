//! Helpers of ringtree's own tests, examples and benches.
//!
//! [`cluster`] runs a [`script`] of calls on thousands of simulated ranks, in one thread, and
//! [`checkers`] say whether what came out is right.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod checkers;
pub mod cluster;
pub mod script;

#[doc(inline)]
pub use ringtree_cli::expected;
