//! Fenced unsafe: what needs the operating system or the processor beneath Rust's guarantees.
//!
//! *Purpose.* The only room in which `unsafe` may be written; every use carries the proof of its
//! soundness, and every function offered to the other rooms is safe to call.
//!
//! *May import* only the base files (`error`, `dtype`, `op`, `limits`).

#![allow(unsafe_code)]

pub mod process;
