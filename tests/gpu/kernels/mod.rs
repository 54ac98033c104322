//! The GPU's kernels against the CPU's, bit by bit, without a GPU: the source in `cuda/` is
//! compiled by this machine's C++ compiler and run thread by thread (`cuda/host.cpp`), with every
//! access checked. What only a GPU can show (its conversions, its speed) is not shown here.

mod launched;
mod reduces;
mod values;
