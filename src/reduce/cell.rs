//! How elements lie in bytes and how they are computed with: loaded, widened, rounded, stored.

use super::number::Number;
use crate::sys::simd::{Isa, LANES, Pair};
use half::{bf16, f16};
use std::marker::PhantomData;

/// The smallest piece that a loop loads, computes and stores: an element, or as many as are
/// converted at once. Bytes, so that any alignment will do.
pub(super) trait Cell {
    /// The cell in memory.
    type Bytes: bytemuck::Pod;
    /// What is computed with.
    type Wide: Number;
    /// As many as are folded in registers at once, whatever the number of operands.
    type Tile: AsMut<[Self::Wide]>;
    /// Memory for them.
    const TILE: Self::Tile;
    /// The cells that the smallest is found with.
    type ForMin: Cell;
    /// The cells that the largest is found with.
    type ForMax: Cell;

    /// The exact value.
    fn load<I: Isa>(isa: I, bytes: Self::Bytes) -> Self::Wide;

    /// The value rounded to nearest even; every NaN becomes the canonical quiet one: positive,
    /// with only the first bit of its payload set.
    fn store<I: Isa>(isa: I, wide: Self::Wide) -> Self::Bytes;
}

/// Bytes of each operand that are folded at once: four of the widest vectors, or eight of widened
/// halves, hide the time that an addition takes.
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

/// Two neighbours in each 32-bit word: either is an f32 where it stands, but for a shift or a mask,
/// which costs less than spreading the elements over vectors and packing them again.
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

/// A half-precision float as an integer of the same order, −0 below +0: to compare halves is no
/// reason to widen them. A NaN is the extreme that wins, the largest integer or the smallest one,
/// which no number becomes.
pub(super) struct Ordered<H, const LARGEST_WINS: bool>(PhantomData<H>);

/// The bits that differ between half-precision formats.
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

/// Turns the order of the negative ones around, or back.
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
