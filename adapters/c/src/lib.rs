//! ringtree for C: `include/ringtree.h`, `libringtree.so` and `libringtree.a`.
//!
//! | file | what it is |
//! |---|---|
//! | `types` | the types and constants that C sees |
//! | `door/` | the functions that C calls: their comments are the header's |
//! | `call` | one call as a value, for any element type, waited for or started |
//! | `handles` | communicators and work as C holds them |
//! | `error` | results, and the last error of each thread |
//! | `memory` | what C's pointers lead to: the only unsafe blocks |
//!
//! `include/ringtree.h` is generated from `types` and `door/`; a test compares them.
//!
//! *Invariants.* No panic crosses a function of `door/`. A handle is never read as an address, so
//! one that is stale, or of another kind, is refused. What a call under way works on is the
//! program's again only when the call has ended.

#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod call;
mod door;
mod error;
mod handles;
mod memory;
mod types;
