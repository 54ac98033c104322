//! The functions that C calls, in the order of the header.
//!
//! They are called by C alone: no Rust code outside this crate can name them. What their pointers
//! lead to is as the header says, or null, which each of them checks. There are no unsafe blocks
//! here; what needs one is in `memory`. Unsafe are only the names, which must be the program's only
//! ones.

#![allow(unsafe_code, unreachable_pub)]

mod collectives;
mod communicators;
mod messages;
mod results;
mod started;
