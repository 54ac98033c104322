//! Tests the C library: its header, its symbols, its installation, and C programs that use it.

#![allow(clippy::unwrap_used)]

#[path = "../../../../tests/support/address.rs"]
mod address;
mod header;
mod installed;
mod programs;
