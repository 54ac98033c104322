//! Provides the code that ringtree's bindings for other languages share.
//!
//! | file | contents |
//! |---|---|
//! | `buffer` | buffers in memory that another language owns: the only unsafe code |
//! | `pending` | calls in flight, which any number of threads can wait for |
//!
//! *Invariants.* No code in this crate depends on a particular language.

#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod buffer;
mod pending;

pub use buffer::{ForeignBuffer, first_element};
pub use pending::{Operation, Outcome, Pending, catch_panic};
