//! Provides ringtree for C: `include/ringtree.h`, `libringtree.so` and `libringtree.a`.
//!
//! | file | contents |
//! |---|---|
//! | `types` | the types and constants of the header |
//! | `door/` | the exported functions, whose documentation becomes the header's |
//! | `call` | a blocking or started call as a value, for any element type |
//! | `config` | communicators from a configuration or an ID |
//! | `macros.h` | the macros of the header, with the package's version |
//! | `handles` | the tables behind the handles of communicators and work |
//! | `error` | results, and the last error of each thread |
//! | `memory` | access to the memory behind C's pointers: the only unsafe blocks |
//!
//! `include/ringtree.h` is generated from `types`, `macros.h` and `door/`, and a test checks that
//! it matches them.
//!
//! *Invariants.* No panic leaves an exported function. A handle is never dereferenced, so using a
//! stale handle, or a handle of a different kind, only causes an error. The program must not use
//! the buffers of a call until the call has completed.

#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod call;
mod config;
mod door;
mod error;
mod handles;
mod memory;
mod types;
