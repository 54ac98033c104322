//! The kernels for GPUs as values: their text, their names, their arguments, and how many threads a
//! launch has. Nothing here needs a GPU; a device loads [`PTX`] and launches what [`reduce`] says.
//!
//! The kernels have the numbers of the CPU's (`reduce::Kernel`), to the bit. The destination may
//! also be a source, at the same address; buffers must not overlap otherwise. Any address will do,
//! but a launch whose buffers have the same offset within 16 bytes is much the fastest.

use crate::dtype::Dtype;
use crate::limits::{DEVICE_SOURCES_MAX, WORLD_SIZE_MAX};
use crate::op::ReduceOp;
use bytemuck::{Pod, Zeroable};
use std::ffi::CStr;

/// The kernels, as text that a driver compiles for its GPU: `cuda/reduce.cu`, compiled by
/// `cuda/build.py`.
pub const PTX: &str = include_str!("../../../cuda/reduce.ptx");

/// Threads of a block, which the kernels' registers are planned for.
const BLOCK_THREADS: u32 = 256;

/// Blocks that run on a multiprocessor at once. More would wait for the first to end.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 5;

/// Bytes of the widest access.
const VECTOR_BYTES: usize = 16;

/// The argument of a kernel, as `cuda/reduce.cu` reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Arguments {
    /// Addresses of the sources in order; the places without one are zero.
    pub sources: [u64; DEVICE_SOURCES_MAX],
    /// Address of the result.
    pub destination: u64,
    /// Elements of every buffer.
    pub elements: u64,
    /// How many places of `sources` count.
    pub source_count: u32,
    /// The operator's position in the table of operators; a mean is a sum.
    pub op: u32,
    /// What the result is divided by; one divides nothing.
    pub divisor: u32,
    /// The widest access that all addresses allow: 16 bytes, an element, or one byte.
    pub access_bytes: u32,
}

/// A launch of a kernel. The kernel's one argument is passed by value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The kernel's name in [`PTX`].
    pub entry: &'static CStr,
    /// Blocks of the grid, which has one dimension.
    pub blocks: u32,
    /// Threads of a block.
    pub threads: u32,
    /// The kernel's argument.
    pub arguments: Arguments,
}

/// The launch that reduces `sources` in order into `destination`, as
/// the CPU's kernel does; all are addresses of `elements` elements of `dtype`. `None` where `op` is
/// not defined for `dtype`.
///
/// One source without a divisor is copied, to the bit. Where the destination's present content is
/// an operand, its address is one of the sources.
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
/// On a caller's mistake: no source, or more than [`DEVICE_SOURCES_MAX`]; a divisor of zero or
/// above [`WORLD_SIZE_MAX`], or one for an operator other than `Avg` and `Sum`.
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
        "a reduce has one to {DEVICE_SOURCES_MAX} sources"
    );
    if let Some(divisor) = divisor {
        assert!(
            (1..=WORLD_SIZE_MAX).contains(&divisor),
            "a divisor is a number of ranks"
        );
        assert!(
            matches!(op, ReduceOp::Avg | ReduceOp::Sum),
            "a mean is a sum, divided"
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
        // The kernels of floats change a NaN; those of integers copy it.
        entry: match (sources, divisor) {
            ([_], 1) => entry(unsigned(dtype.size())),
            _ => entry(dtype),
        },
        blocks: blocks(pieces, multiprocessors),
        threads: BLOCK_THREADS,
        arguments,
    })
}

/// The widest access, in bytes, that every buffer of elements of `size` bytes allows.
fn access_bytes(sources: &[u64], destination: u64, size: usize) -> usize {
    // Bits in which addresses differ.
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

/// Blocks for so many pieces, of which a thread takes one at a time: as many as have work, but no
/// more than run at once.
fn blocks(pieces: usize, multiprocessors: u32) -> u32 {
    let useful = pieces.div_ceil(BLOCK_THREADS as usize);
    let resident = multiprocessors.max(1) * BLOCKS_PER_MULTIPROCESSOR;
    useful.clamp(1, resident as usize) as u32
}

/// The unsigned integer of so many bytes.
fn unsigned(size: usize) -> Dtype {
    match size {
        1 => Dtype::U8,
        2 => Dtype::U16,
        4 => Dtype::U32,
        _ => Dtype::U64,
    }
}

/// The kernel's name.
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
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// The names of the kernels in the text, and the bytes of their argument.
    fn entries() -> Vec<(&'static str, usize)> {
        let entries = PTX.split(".visible .entry ").skip(1);
        let parsed = entries.map(|entry| {
            let (name, rest) = entry.split_once('(').unwrap();
            let (parameters, _) = rest.split_once(')').unwrap();
            assert!(!parameters.contains(','), "{name} has one parameter");
            assert!(parameters.contains(".param .align 8 .b8 "), "{parameters}");
            let (_, size) = parameters.split_once('[').unwrap();
            let size = size.trim_end().trim_end_matches(']').parse().unwrap();
            (name, size)
        });
        parsed.collect()
    }

    #[test]
    fn the_text_holds_a_kernel_for_every_type_and_no_other() {
        let name = |dtype| entry(dtype).to_str().unwrap();
        let expected: BTreeSet<_> = Dtype::ALL.iter().map(|&dtype| name(dtype)).collect();
        let found: BTreeSet<_> = entries().iter().map(|(name, _)| *name).collect();
        assert_eq!(found, expected);
        for &dtype in Dtype::ALL {
            assert_eq!(name(dtype), format!("ringtree_reduce_{dtype}"));
        }
    }

    #[test]
    fn the_text_says_what_made_it_and_is_short() {
        assert!(PTX.starts_with("// Generated by cuda/build.py from cuda/reduce.cu"));
        assert!(PTX.lines().count() <= 15_000);
    }

    #[test]
    fn arguments_are_as_large_as_the_kernels_parameters() {
        for (name, size) in entries() {
            assert_eq!(size, size_of::<Arguments>(), "{name}");
        }
    }

    #[test]
    fn drivers_from_550_on_and_gpus_from_ampere_on_take_the_text() {
        let value = |directive: &str| {
            let line = PTX.lines().find(|line| line.starts_with(directive));
            line.unwrap()[directive.len()..].trim()
        };
        let (major, minor) = value(".version").split_once('.').unwrap();
        let version: (u32, u32) = (major.parse().unwrap(), minor.parse().unwrap());
        assert!(version <= (8, 4), "{version:?}");
        assert_eq!(value(".target"), "sm_80");
        assert_eq!(value(".address_size"), "64");
    }

    #[test]
    fn no_instruction_approximates_fuses_flushes_or_spills() {
        let code = PTX.lines().map(str::trim_start);
        let code = code.filter(|line| !line.starts_with("//"));
        for line in code {
            let words: Vec<_> = line.split(['.', ' ', '\t']).collect();
            for forbidden in ["approx", "full", "ftz", "fma", "local"] {
                assert!(!words.contains(&forbidden), "{line}");
            }
            // Without its rounding the driver may fuse it with another.
            let is_float = words.contains(&"f32") || words.contains(&"f64");
            if is_float && matches!(words[0], "add" | "sub" | "mul" | "div") {
                assert_eq!(words[1], "rn", "{line}");
            }
        }
    }

    /// A launch on addresses of multiples of 16.
    fn launch(dtype: Dtype, op: ReduceOp, sources: &[u64], divisor: Option<usize>) -> Launch {
        reduce(dtype, op, sources, 32, 1, divisor, 1).unwrap()
    }

    #[test]
    fn a_copy_of_floats_is_one_of_integers() {
        let copy = |dtype, op, divisor| launch(dtype, op, &[16], divisor).entry;
        assert_eq!(
            copy(Dtype::F16, ReduceOp::Max, None),
            c"ringtree_reduce_u16"
        );
        assert_eq!(
            copy(Dtype::F64, ReduceOp::Avg, Some(1)),
            c"ringtree_reduce_u64"
        );
        assert_eq!(
            copy(Dtype::F32, ReduceOp::Avg, Some(2)),
            c"ringtree_reduce_f32"
        );
        let pair = launch(Dtype::F32, ReduceOp::Max, &[16, 32], None);
        assert_eq!(pair.entry, c"ringtree_reduce_f32");
    }

    #[test]
    fn an_operator_is_defined_where_the_table_says_so() {
        for &dtype in Dtype::ALL {
            for &op in ReduceOp::ALL {
                for sources in [&[16][..], &[16, 32]] {
                    let launch = reduce(dtype, op, sources, 16, 1, None, 1);
                    assert_eq!(launch.is_some(), op.supports(dtype), "{dtype} {op}");
                }
            }
        }
    }

    #[test]
    fn accesses_are_as_wide_as_all_addresses_allow() {
        let aligned = 0x1000;
        assert_eq!(access_bytes(&[aligned, aligned + 16], aligned, 4), 16);
        assert_eq!(
            access_bytes(&[aligned + 4, aligned + 36], aligned + 20, 4),
            16
        );
        assert_eq!(access_bytes(&[aligned, aligned + 4], aligned, 4), 4);
        assert_eq!(access_bytes(&[aligned, aligned], aligned + 8, 4), 4);
        assert_eq!(access_bytes(&[aligned, aligned + 2], aligned, 4), 1);
        assert_eq!(access_bytes(&[aligned + 2, aligned + 2], aligned + 2, 4), 1);
        assert_eq!(
            access_bytes(&[aligned + 2, aligned + 2], aligned + 2, 2),
            16
        );
    }

    #[test]
    fn a_grid_grows_with_the_work_until_it_fills_the_gpu() {
        assert_eq!(blocks(0, 132), 1);
        assert_eq!(blocks(256, 132), 1);
        assert_eq!(blocks(257, 132), 2);
        assert_eq!(blocks(1 << 40, 132), 660);
        assert_eq!(blocks(1 << 40, 0), 5);
        let grid = |destination| {
            let sources = [16, 1 << 20];
            reduce(
                Dtype::F32,
                ReduceOp::Sum,
                &sources,
                destination,
                4096,
                None,
                132,
            )
        };
        // A thread takes a vector, or an element.
        assert_eq!(grid(16).map(|launch| launch.blocks), Some(4));
        assert_eq!(grid(20).map(|launch| launch.blocks), Some(16));
        assert_eq!(grid(21).map(|launch| launch.blocks), Some(16));
    }
}
