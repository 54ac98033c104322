//! Contains the kernels with which [ringtree](https://docs.rs/ringtree) reduces elements on NVIDIA
//! GPUs.

#![no_std]
#![forbid(unsafe_code)]

/// The kernels, as text that a driver compiles for its GPU. `build.py` generates this text from
/// `reduce.cu`.
pub const PTX: &str = include_str!("reduce.ptx");
