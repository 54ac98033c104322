//! Compares the GPU kernels with the CPU kernels bit by bit, without a GPU. This machine's C++
//! compiler compiles the source in `cuda/`, and `cuda/host.cpp` runs it thread by thread and checks
//! every access. These tests do not cover properties that only a GPU has, such as its conversions
//! and its speed.

mod launched;
mod reduces;
mod values;
