//! Exports the functions of the header, in the same order as in the header.
//!
//! Only C code calls these functions, because no Rust code outside this crate can name them. The
//! pointers that they receive either point to what the header documents or are null, which each
//! function checks. This module has no unsafe blocks. Code that needs an unsafe block is in
//! `memory`. Only the `no_mangle` attribute is unsafe, because no other symbol in the program may
//! have the same name.

#![allow(unsafe_code, unreachable_pub)]

mod collectives;
mod communicators;
mod messages;
mod results;
mod started;
mod work;
