//! Helpers for ringtree's tests, examples and benches.
//!
//! [`cluster`] runs a [`script`] of calls on thousands of simulated ranks in one thread.
//! [`checkers`] check the outcome.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod checkers;
pub mod cluster;
pub mod script;

#[doc(inline)]
pub use ringtree_cli::expected;
