//! The kernels for GPUs as values: their text, their names, their arguments, and how many threads a
//! launch has. Nothing here needs a GPU; a device loads [`PTX`] and launches what these say.
//!
//! The kernels have the numbers of the CPU's [`Kernel`](super::Kernel), to the bit. A destination
//! may also be a source, at the same address; buffers must not overlap otherwise. Any address will
//! do, but a launch whose buffers all lie alike in their 16 bytes is much the fastest: staging
//! memory is best offset as the user's buffer is.

use crate::dtype::Dtype;
use crate::limits::{DEVICE_DESTINATIONS_MAX, DEVICE_SOURCES_MAX, WORLD_SIZE_MAX};
use crate::op::ReduceOp;
use bytemuck::{Pod, Zeroable};

/// The kernels, as text that a driver compiles for its GPU: `cuda/reduce.cu`, compiled by
/// `cuda/build.py`.
pub const PTX: &str = include_str!("../../cuda/reduce.ptx");

/// Threads of a block: a multiple of a warp, and what the kernels' registers are planned for.
pub const BLOCK_THREADS: u32 = 256;

/// Blocks that run on a multiprocessor at once, at least. More would wait for the first to end.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 4;

/// Bytes of a destination that a thread sees to before it looks for more: fewer make a launch
/// wider, not longer.
const THREAD_BYTES: u64 = 32;

/// The arguments of a fold, as the kernel takes them. The unused places are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct FoldArguments {
    /// Addresses of the operands in order.
    pub sources: [u64; DEVICE_SOURCES_MAX],
    /// Addresses that each get the result.
    pub destinations: [u64; DEVICE_DESTINATIONS_MAX],
    /// Elements of every buffer.
    pub elements: u64,
    /// How many places of `sources` count.
    pub source_count: u32,
    /// How many places of `destinations` count.
    pub destination_count: u32,
    /// What a mean is divided by, at least 2; no other kernel reads it.
    pub divisor: u32,
    /// Zero.
    pub unused: u32,
}

/// The arguments of a cast, as the kernel takes them.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct CastArguments {
    /// Address of what is read.
    pub source: u64,
    /// Address of what is written.
    pub destination: u64,
    /// Elements of either buffer.
    pub elements: u64,
    /// What every value is multiplied with in f32, before it is rounded.
    pub scale: f32,
    /// Zero.
    pub unused: u32,
}

/// A kernel, launched in a grid of `blocks` times [`BLOCK_THREADS`] threads. Its one argument is
/// passed by value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Launch<A> {
    /// The kernel's name in [`PTX`].
    pub entry: &'static str,
    /// Blocks of the grid.
    pub blocks: u32,
    /// The kernel's argument.
    pub arguments: A,
}

/// The launch that folds `sources` in order into every one of `destinations`, as
/// [`Kernel::fold`](super::Kernel::fold) does; all are addresses of `elements` elements of `dtype`.
/// `None` where `op` is not defined for `dtype`.
///
/// A fold of one source without a divisor is a copy and keeps every bit. Where the destination's
/// present content is an operand, its address stands among the sources.
///
/// ```
/// use ringtree::{Dtype, ReduceOp, reduce::gpu};
///
/// let (own, other) = (0x7f00_0000, 0x7f10_0000);
/// let launch = gpu::fold(Dtype::F32, ReduceOp::Avg, &[own, other], &[own], 1000, Some(2), 132)
///     .expect("means are defined for floats");
/// assert_eq!((launch.entry, launch.blocks), ("ringtree_avg_f32", 1));
/// assert_eq!(bytemuck::bytes_of(&launch.arguments).len(), 600);
/// ```
///
/// # Panics
///
/// On a caller's mistake: no source or no destination, or more than [`DEVICE_SOURCES_MAX`] and
/// [`DEVICE_DESTINATIONS_MAX`]; a divisor of zero or above [`WORLD_SIZE_MAX`], or one for an
/// operator other than `Avg` and `Sum`.
#[must_use]
pub fn fold(
    dtype: Dtype,
    op: ReduceOp,
    sources: &[u64],
    destinations: &[u64],
    elements: usize,
    divisor: Option<usize>,
    multiprocessors: u32,
) -> Option<Launch<FoldArguments>> {
    assert!(
        (1..=DEVICE_SOURCES_MAX).contains(&sources.len()),
        "a fold has one to {DEVICE_SOURCES_MAX} sources"
    );
    assert!(
        (1..=DEVICE_DESTINATIONS_MAX).contains(&destinations.len()),
        "a fold has one to {DEVICE_DESTINATIONS_MAX} destinations"
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
    // One divides nothing.
    let divisor = divisor.filter(|&divisor| divisor > 1);
    let mut arguments = FoldArguments {
        elements: elements as u64,
        source_count: sources.len() as u32,
        destination_count: destinations.len() as u32,
        divisor: divisor.unwrap_or(1) as u32,
        ..FoldArguments::zeroed()
    };
    arguments.sources[..sources.len()].copy_from_slice(sources);
    arguments.destinations[..destinations.len()].copy_from_slice(destinations);
    let entry = fold_entry(dtype, op, divisor.is_some())?;
    Some(Launch {
        // A sum of one unsigned integer is the integer.
        entry: match (sources, divisor) {
            ([_], None) => entry_of_sum(unsigned(dtype.size())),
            _ => entry,
        },
        blocks: blocks(elements as u64 * dtype.size() as u64, multiprocessors),
        arguments,
    })
}

/// The launch that casts `elements` elements from f32 to f16 or bf16, or back: each is multiplied
/// with `scale` in f32, then rounded to nearest even. Every NaN becomes the canonical one. `None`
/// for other pairs of types.
///
/// ```
/// use ringtree::{Dtype, reduce::gpu};
///
/// let launch = gpu::cast(Dtype::F32, Dtype::Bf16, 0x1000, 0x8000, 1 << 20, 1.0, 132);
/// assert_eq!(launch.expect("gradients may be bf16").entry, "ringtree_cast_f32_bf16");
/// ```
#[must_use]
pub fn cast(
    from: Dtype,
    to: Dtype,
    source: u64,
    destination: u64,
    elements: usize,
    scale: f32,
    multiprocessors: u32,
) -> Option<Launch<CastArguments>> {
    let entry = match (from, to) {
        (Dtype::F32, Dtype::F16) => "ringtree_cast_f32_f16",
        (Dtype::F32, Dtype::Bf16) => "ringtree_cast_f32_bf16",
        (Dtype::F16, Dtype::F32) => "ringtree_cast_f16_f32",
        (Dtype::Bf16, Dtype::F32) => "ringtree_cast_bf16_f32",
        _ => return None,
    };
    Some(Launch {
        entry,
        blocks: blocks(elements as u64 * to.size() as u64, multiprocessors),
        arguments: CastArguments {
            source,
            destination,
            elements: elements as u64,
            scale,
            unused: 0,
        },
    })
}

/// The kernel of `dtype` and `op`, which divides its result or not; `None` where `op` is not
/// defined for `dtype`. A mean that is not divided is a sum.
#[must_use]
pub fn fold_entry(dtype: Dtype, op: ReduceOp, divides: bool) -> Option<&'static str> {
    let op = match op {
        ReduceOp::Sum | ReduceOp::Avg if divides => ReduceOp::Avg,
        ReduceOp::Avg => ReduceOp::Sum,
        op => op,
    };
    // To order and to divide integers takes their sign; nothing else does.
    let dtype = match op {
        ReduceOp::Min | ReduceOp::Max | ReduceOp::Avg => dtype,
        _ if dtype.is_float() => dtype,
        _ => unsigned(dtype.size()),
    };
    op.supports(dtype).then(|| match op {
        ReduceOp::Sum => entry_of_sum(dtype),
        ReduceOp::Prod => entry_of_prod(dtype),
        ReduceOp::Min => entry_of_min(dtype),
        ReduceOp::Max => entry_of_max(dtype),
        ReduceOp::Avg => entry_of_avg(dtype),
        ReduceOp::Band => entry_of_band(dtype),
        ReduceOp::Bor => entry_of_bor(dtype),
        ReduceOp::Bxor => entry_of_bxor(dtype),
    })
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

macro_rules! entries {
    ($($function:ident $op:literal;)*) => {$(
        fn $function(dtype: Dtype) -> &'static str {
            entry_for_dtype!(dtype, $op)
        }
    )*};
}

macro_rules! entry_for_dtype {
    ($dtype:ident, $op:literal) => {
        match $dtype {
            Dtype::I8 => concat!("ringtree_", $op, "_i8"),
            Dtype::U8 => concat!("ringtree_", $op, "_u8"),
            Dtype::I16 => concat!("ringtree_", $op, "_i16"),
            Dtype::U16 => concat!("ringtree_", $op, "_u16"),
            Dtype::I32 => concat!("ringtree_", $op, "_i32"),
            Dtype::U32 => concat!("ringtree_", $op, "_u32"),
            Dtype::I64 => concat!("ringtree_", $op, "_i64"),
            Dtype::U64 => concat!("ringtree_", $op, "_u64"),
            Dtype::F16 => concat!("ringtree_", $op, "_f16"),
            Dtype::Bf16 => concat!("ringtree_", $op, "_bf16"),
            Dtype::F32 => concat!("ringtree_", $op, "_f32"),
            Dtype::F64 => concat!("ringtree_", $op, "_f64"),
        }
    };
}

entries! {
    entry_of_sum "sum";
    entry_of_prod "prod";
    entry_of_min "min";
    entry_of_max "max";
    entry_of_avg "avg";
    entry_of_band "band";
    entry_of_bor "bor";
    entry_of_bxor "bxor";
}

/// Blocks for destinations of `bytes`: as many as have work, but no more than run at once.
fn blocks(bytes: u64, multiprocessors: u32) -> u32 {
    let useful = bytes.div_ceil(u64::from(BLOCK_THREADS) * THREAD_BYTES);
    let resident = u64::from(multiprocessors.max(1) * BLOCKS_PER_MULTIPROCESSOR);
    useful.clamp(1, resident) as u32
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
    fn the_text_holds_the_kernels_of_the_table_and_no_others() {
        let mut expected = BTreeSet::new();
        for &dtype in Dtype::ALL {
            for &op in ReduceOp::ALL {
                let divides = op == ReduceOp::Avg;
                let entry = fold_entry(dtype, op, divides);
                assert_eq!(entry.is_some(), op.supports(dtype), "{dtype} {op}");
                expected.extend(entry);
            }
            for half in [Dtype::F16, Dtype::Bf16] {
                for (from, to) in [(half, dtype), (dtype, half)] {
                    let launch = cast(from, to, 0, 0, 1, 1.0, 1);
                    assert_eq!(launch.is_some(), dtype == Dtype::F32, "{from} {to}");
                    expected.extend(launch.map(|launch| launch.entry));
                }
            }
        }
        let found: BTreeSet<_> = entries().iter().map(|(name, _)| *name).collect();
        assert_eq!(found, expected);
        assert!(!expected.iter().any(|name| name.len() >= 32));
    }

    #[test]
    fn arguments_are_as_large_as_the_kernels_parameters() {
        for (name, size) in entries() {
            let expected = if name.starts_with("ringtree_cast_") {
                size_of::<CastArguments>()
            } else {
                size_of::<FoldArguments>()
            };
            assert_eq!(size, expected, "{name}");
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

    #[test]
    fn a_copy_of_floats_is_one_of_integers() {
        let copy = |dtype, op, divisor| fold(dtype, op, &[16], &[32], 1, divisor, 1).unwrap().entry;
        assert_eq!(copy(Dtype::F16, ReduceOp::Max, None), "ringtree_sum_u16");
        assert_eq!(copy(Dtype::F64, ReduceOp::Avg, Some(1)), "ringtree_sum_u64");
        assert_eq!(copy(Dtype::F32, ReduceOp::Avg, Some(2)), "ringtree_avg_f32");
        assert_eq!(copy(Dtype::I8, ReduceOp::Sum, Some(3)), "ringtree_avg_i8");
    }

    #[test]
    fn a_bit_operator_on_floats_has_no_launch() {
        for sources in [&[16][..], &[16, 32]] {
            assert!(fold(Dtype::F32, ReduceOp::Band, sources, &[16], 1, None, 1).is_none());
        }
    }

    #[test]
    fn a_grid_grows_with_the_work_until_it_fills_the_gpu() {
        assert_eq!(blocks(0, 132), 1);
        assert_eq!(blocks(8192, 132), 1);
        assert_eq!(blocks(8193, 132), 2);
        assert_eq!(blocks(1 << 40, 132), 528);
        assert_eq!(blocks(1 << 40, 0), 4);
    }
}
