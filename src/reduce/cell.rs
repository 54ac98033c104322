//! Defines how elements are laid out in bytes, and how they are loaded, widened, rounded and
//! stored.

use super::number::Number;
use crate::sys::simd::{Isa, LANES, Pair};
use half::{bf16, f16};
use std::marker::PhantomData;

/// The smallest unit that a loop loads, computes and stores: a single element, or a group of
/// elements that are converted together. A cell is stored as plain bytes, so any alignment is
/// allowed.
pub(super) trait Cell {
    /// The in-memory representation of a cell.
    type Bytes: bytemuck::Pod;
    /// The type in which values are computed.
    type Wide: Number;
    /// The cells that are reduced together in registers, for any number of operands.
    type Tile: AsMut<[Self::Wide]>;
    /// The initial value of a tile.
    const TILE: Self::Tile;
    /// The cell type used to compute minima.
    type ForMin: Cell;
    /// The cell type used to compute maxima.
    type ForMax: Cell;

    /// Loads a cell and returns its exact value.
    fn load<I: Isa>(isa: I, bytes: Self::Bytes) -> Self::Wide;

    /// Rounds a value to nearest even and returns the bytes of the result. Every NaN becomes the
    /// canonical quiet NaN, which is positive and has only the first bit of its payload set.
    fn store<I: Isa>(isa: I, wide: Self::Wide) -> Self::Bytes;
}

/// Number of bytes of each operand that are reduced together. They fill four of the widest vectors,
/// or eight once half-precision elements are widened. So many independent vectors hide the latency
/// of an addition.
const TILE_BYTES: usize = 256;

macro_rules! integer_cells {
    ($($integer:ident)*) => {$(
        impl Cell for $integer {
            type Bytes = [u8; size_of::<$integer>()];
            type Wide = $integer;
            type Tile = [$integer; TILE_BYTES / size_of::<$integer>()];
            const TILE: Self::Tile = [0; TILE_BYTES / size_of::<$integer>()];
            type ForMin = Self;
            type ForMax = Self;

            #[inline(always)]
            fn load<I: Isa>(_: I, bytes: Self::Bytes) -> $integer {
                $integer::from_ne_bytes(bytes)
            }

            #[inline(always)]
            fn store<I: Isa>(_: I, wide: $integer) -> Self::Bytes {
                wide.to_ne_bytes()
            }
        }
    )*};
}

integer_cells! { i8 u8 i16 u16 i32 u32 i64 u64 }

macro_rules! float_cells {
    ($($float:ident $bits:ident $canonical:ident = $canonical_bits:literal;)*) => {$(
        const $canonical: $bits = $canonical_bits;

        impl Cell for $float {
            type Bytes = [u8; size_of::<$float>()];
            type Wide = $float;
            type Tile = [$float; TILE_BYTES / size_of::<$float>()];
            const TILE: Self::Tile = [0.0; TILE_BYTES / size_of::<$float>()];
            type ForMin = Self;
            type ForMax = Self;

            #[inline(always)]
            fn load<I: Isa>(_: I, bytes: Self::Bytes) -> $float {
                $float::from_ne_bytes(bytes)
            }

            #[inline(always)]
            fn store<I: Isa>(_: I, wide: $float) -> Self::Bytes {
                let bits = if wide.is_nan() { $canonical } else { wide.to_bits() };
                bits.to_ne_bytes()
            }
        }
    )*};
}

float_cells! {
    f32 u32 CANONICAL_NAN_F32 = 0x7fc0_0000;
    f64 u64 CANONICAL_NAN_F64 = 0x7ff8_0000_0000_0000;
}

/// Each 32-bit word holds two neighboring elements. A shift or a mask turns each of them into an
/// f32 in place, which is cheaper than spreading the elements across vectors and packing them
/// again.
impl Cell for bf16 {
    type Bytes = [u8; 4 * LANES];
    type Wide = Pair<[f32; LANES]>;
    type Tile = [Self::Wide; TILE_BYTES / size_of::<Self::Bytes>()];
    const TILE: Self::Tile =
        [Pair([0.0; LANES], [0.0; LANES]); TILE_BYTES / size_of::<Self::Bytes>()];
    type ForMin = Ordered<bf16, false>;
    type ForMax = Ordered<bf16, true>;

    #[inline(always)]
    fn load<I: Isa>(isa: I, bytes: Self::Bytes) -> Self::Wide {
        isa.widen_bf16(bytemuck::cast(bytes))
    }

    #[inline(always)]
    fn store<I: Isa>(isa: I, wide: Self::Wide) -> Self::Bytes {
        bytemuck::cast(isa.narrow_bf16(wide))
    }
}

impl Cell for f16 {
    type Bytes = [u8; 2 * LANES];
    type Wide = [f32; LANES];
    type Tile = [Self::Wide; TILE_BYTES / size_of::<Self::Bytes>()];
    const TILE: Self::Tile = [[0.0; LANES]; TILE_BYTES / size_of::<Self::Bytes>()];
    type ForMin = Ordered<f16, false>;
    type ForMax = Ordered<f16, true>;

    #[inline(always)]
    fn load<I: Isa>(isa: I, bytes: Self::Bytes) -> Self::Wide {
        isa.widen_f16(bytemuck::cast(bytes))
    }

    #[inline(always)]
    fn store<I: Isa>(isa: I, wide: Self::Wide) -> Self::Bytes {
        bytemuck::cast(isa.narrow_f16(wide))
    }
}

/// A half-precision float that is represented by an integer, so that comparisons do not have to
/// widen it. The integers have the same order as the floats, with −0 below +0. A NaN is represented
/// by the extreme that wins the comparison: the largest or the smallest integer. No number is
/// represented by that value.
pub(super) struct Ordered<H, const LARGEST_WINS: bool>(PhantomData<H>);

/// The bit patterns of a half-precision format.
pub(super) trait Half {
    const INFINITY_BITS: u16;
    const CANONICAL_NAN_BITS: u16;
}

impl Half for f16 {
    const INFINITY_BITS: u16 = 0x7c00;
    const CANONICAL_NAN_BITS: u16 = 0x7e00;
}

impl Half for bf16 {
    const INFINITY_BITS: u16 = 0x7f80;
    const CANONICAL_NAN_BITS: u16 = 0x7fc0;
}

impl<H, const LARGEST_WINS: bool> Ordered<H, LARGEST_WINS> {
    const NAN: i16 = if LARGEST_WINS { i16::MAX } else { i16::MIN };
}

/// Reverses the order of negative values. Applying this function a second time restores it.
#[inline(always)]
fn reorder(bits: i16) -> i16 {
    bits ^ ((bits >> 15) & i16::MAX)
}

impl<H: Half, const LARGEST_WINS: bool> Cell for Ordered<H, LARGEST_WINS> {
    type Bytes = [u8; 2];
    type Wide = i16;
    type Tile = [i16; TILE_BYTES / 2];
    const TILE: Self::Tile = [0; TILE_BYTES / 2];
    type ForMin = Self;
    type ForMax = Self;

    #[inline(always)]
    fn load<I: Isa>(_: I, bytes: Self::Bytes) -> i16 {
        let bits = i16::from_ne_bytes(bytes);
        let is_nan = bits & i16::MAX > H::INFINITY_BITS as i16;
        if is_nan { Self::NAN } else { reorder(bits) }
    }

    #[inline(always)]
    fn store<I: Isa>(_: I, wide: i16) -> Self::Bytes {
        let is_nan = wide == Self::NAN;
        let bits = if is_nan {
            H::CANONICAL_NAN_BITS as i16
        } else {
            reorder(wide)
        };
        bits.to_ne_bytes()
    }
}
