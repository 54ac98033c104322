//! The library as C sees it: header, symbols, installation, and programs in C that use it.

#![allow(clippy::unwrap_used)]

#[path = "../../../../tests/support/address.rs"]
mod address;
mod header;
mod installed;
mod programs;
