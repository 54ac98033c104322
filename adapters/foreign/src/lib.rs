//! What ringtree's bindings to other languages share.
//!
//! | file | what it is |
//! |---|---|
//! | `buffer` | memory that another language owns, as buffers: the only unsafe code |
//! | `pending` | a call under way, for which any number of threads wait |
//!
//! *Invariants.* Nothing here knows a certain language.

#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod buffer;
mod pending;

pub use buffer::{ForeignBuffer, first_element};
pub use pending::{Operation, Outcome, Pending, unpanicked};
