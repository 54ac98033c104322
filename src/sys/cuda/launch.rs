//! Describes launches of GPU kernels as values: the text and names of the kernels, their arguments,
//! and the number of threads. This module does not need a GPU. A device loads [`PTX`] and performs
//! the launches that [`reduce`] returns.
//!
//! The results have the same bits as the results of the CPU kernels (`reduce::Kernel`). The
//! destination may also be a source, at the same address. Otherwise, buffers must not overlap.
//! Addresses may have any alignment, but a launch is by far fastest if the addresses of all its
//! buffers are equal modulo 16 bytes.

use crate::dtype::Dtype;
use crate::limits::{DEVICE_SOURCES_MAX, WORLD_SIZE_MAX};
use crate::op::ReduceOp;
use bytemuck::{Pod, Zeroable};
use std::ffi::CStr;

pub use ringtree_kernels::PTX;

/// Number of threads per block. The register usage of the kernels is chosen for this number.
const BLOCK_THREADS: u32 = 256;

/// Number of blocks that a multiprocessor runs at the same time. Additional blocks would have to
/// wait until earlier blocks end.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 5;

/// Size of the widest access in bytes.
const VECTOR_BYTES: usize = 16;

/// The argument of a kernel, with the layout that `cuda/reduce.cu` expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Arguments {
    /// Addresses of the sources, in order. Unused entries are zero.
    pub sources: [u64; DEVICE_SOURCES_MAX],
    /// Address of the result.
    pub destination: u64,
    /// Number of elements in each buffer.
    pub elements: u64,
    /// Number of entries in `sources` that are used.
    pub source_count: u32,
    /// Position of the operator in the table of operators. For a mean, this is the position of the
    /// sum.
    pub op: u32,
    /// The divisor of the result. 1 means no division.
    pub divisor: u32,
    /// Size in bytes of the widest access that all addresses allow: 16 bytes, one element, or one
    /// byte.
    pub access_bytes: u32,
}

/// A launch of a kernel. The kernel has a single argument, which is passed by value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Name of the kernel in [`PTX`].
    pub entry: &'static CStr,
    /// Number of blocks in the grid, which has one dimension.
    pub blocks: u32,
    /// Number of threads per block.
    pub threads: u32,
    /// Argument of the kernel.
    pub arguments: Arguments,
}

/// Returns the launch that reduces `sources`, in order, into `destination`, like the CPU kernel.
/// Each address refers to a buffer of `elements` elements of type `dtype`. Returns `None` if `op`
/// is not defined for `dtype`.
///
/// If there is a single source and no divisor, the source is copied bit for bit. If the current
/// content of the destination is an operand, the address of the destination must be one of the
/// sources.
///
/// ```
/// use ringtree::internal::compute::gpu;
/// use ringtree::{Dtype, ReduceOp};
///
/// let (own, other) = (0x7f00_0000, 0x7f10_0000);
/// let launch = gpu::reduce(Dtype::F32, ReduceOp::Avg, &[own, other], own, 1000, Some(2), 132)
///     .expect("means are defined for floats");
/// assert_eq!(launch.entry, c"ringtree_reduce_f32");
/// assert_eq!((launch.blocks, launch.threads), (1, 256));
/// assert_eq!(bytemuck::bytes_of(&launch.arguments).len(), 544);
/// ```
///
/// # Panics
///
/// Panics if there are no sources, or more than [`DEVICE_SOURCES_MAX`]; if the divisor is zero or
/// above [`WORLD_SIZE_MAX`]; or if there is a divisor and the operator is neither `Avg` nor `Sum`.
#[must_use]
pub fn reduce(
    dtype: Dtype,
    op: ReduceOp,
    sources: &[u64],
    destination: u64,
    elements: usize,
    divisor: Option<usize>,
    multiprocessors: u32,
) -> Option<Launch> {
    assert!(
        (1..=DEVICE_SOURCES_MAX).contains(&sources.len()),
        "a reduction must have 1 to {DEVICE_SOURCES_MAX} sources"
    );
    if let Some(divisor) = divisor {
        assert!(
            (1..=WORLD_SIZE_MAX).contains(&divisor),
            "the divisor must be a valid number of ranks"
        );
        assert!(
            matches!(op, ReduceOp::Avg | ReduceOp::Sum),
            "a divisor requires the operator Avg or Sum"
        );
    }
    let divisor = divisor.unwrap_or(1);
    let access_bytes = access_bytes(sources, destination, dtype.size());
    let mut arguments = Arguments {
        sources: [0; DEVICE_SOURCES_MAX],
        destination,
        elements: elements as u64,
        source_count: sources.len() as u32,
        op: match op {
            ReduceOp::Avg | ReduceOp::PreMulSum(_) => ReduceOp::Sum.code().into(),
            op => op.code().into(),
        },
        divisor: divisor as u32,
        access_bytes: access_bytes as u32,
    };
    arguments.sources[..sources.len()].copy_from_slice(sources);
    let pieces = (elements * dtype.size()).div_ceil(access_bytes.max(dtype.size()));
    op.supports(dtype).then(|| Launch {
        // The kernels for floats change NaNs, so a plain copy uses the kernel for an integer type.
        entry: match (sources, divisor) {
            ([_], 1) => entry(unsigned(dtype.size())),
            _ => entry(dtype),
        },
        blocks: blocks(pieces, multiprocessors),
        threads: BLOCK_THREADS,
        arguments,
    })
}

/// Returns the size, in bytes, of the widest access that every buffer allows, for elements of
/// `size` bytes.
fn access_bytes(sources: &[u64], destination: u64, size: usize) -> usize {
    // The bits in which the addresses differ.
    let differences = |bits, source| bits | (source ^ destination);
    let differences = sources.iter().fold(0, differences);
    let are_multiples = |bits: u64, bytes| bits.is_multiple_of(bytes as u64);
    if are_multiples(differences, VECTOR_BYTES) && are_multiples(destination, size) {
        VECTOR_BYTES
    } else if are_multiples(differences | destination, size) {
        size
    } else {
        1
    }
}

/// Returns the number of blocks for `pieces` pieces if each thread processes one piece at a time.
/// This is the number of blocks that have work, but at most the number of blocks that can run at
/// the same time.
fn blocks(pieces: usize, multiprocessors: u32) -> u32 {
    let useful = pieces.div_ceil(BLOCK_THREADS as usize);
    let resident = multiprocessors.max(1) * BLOCKS_PER_MULTIPROCESSOR;
    useful.clamp(1, resident as usize) as u32
}

/// Returns the unsigned integer type that has `size` bytes.
fn unsigned(size: usize) -> Dtype {
    match size {
        1 => Dtype::U8,
        2 => Dtype::U16,
        4 => Dtype::U32,
        _ => Dtype::U64,
    }
}

/// Returns the name of the kernel for `dtype`.
pub(super) fn entry(dtype: Dtype) -> &'static CStr {
    match dtype {
        Dtype::I8 => c"ringtree_reduce_i8",
        Dtype::U8 => c"ringtree_reduce_u8",
        Dtype::I16 => c"ringtree_reduce_i16",
        Dtype::U16 => c"ringtree_reduce_u16",
        Dtype::I32 => c"ringtree_reduce_i32",
        Dtype::U32 => c"ringtree_reduce_u32",
        Dtype::I64 => c"ringtree_reduce_i64",
        Dtype::U64 => c"ringtree_reduce_u64",
        Dtype::F16 => c"ringtree_reduce_f16",
        Dtype::Bf16 => c"ringtree_reduce_bf16",
        Dtype::F32 => c"ringtree_reduce_f32",
        Dtype::F64 => c"ringtree_reduce_f64",
    }
}

#[cfg(test)]
mod tests;
