//! Runs generic loops with the widest vectors that this CPU supports.
//!
//! A loop is written once, as a [`Body`] whose `run` is `#[inline(always)]`. [`Level::run`] calls
//! it inside a function that is compiled for the level's instruction set, so the compiler
//! vectorizes the same source once per level. The [`Isa`] value that is passed to the body proves
//! that the CPU has the instructions, because only this file creates such values.

use half::f16;

/// Number of lanes that are converted together.
pub(crate) const LANES: usize = 16;

/// The lower halves and the upper halves of words, separated from each other.
#[derive(Clone, Copy)]
pub(crate) struct Pair<T>(pub(crate) T, pub(crate) T);

/// An instruction set, represented by a value that exists only if the CPU has the instruction set.
pub(crate) trait Isa: Copy {
    /// Converts half precision to single precision, exactly.
    fn widen_f16(self, halves: [u16; LANES]) -> [f32; LANES];
    /// Converts single precision to half precision, rounding to nearest even. A NaN becomes the
    /// canonical NaN.
    fn narrow_f16(self, singles: [f32; LANES]) -> [u16; LANES];
    /// Returns the lower halves and the upper halves of all words, both converted to single
    /// precision. A bf16 is the upper half of an f32.
    fn widen_bf16(self, words: [u32; LANES]) -> Pair<[f32; LANES]>;
    /// Reverses [`Isa::widen_bf16`], rounding to nearest even. A NaN becomes the canonical NaN.
    fn narrow_bf16(self, singles: Pair<[f32; LANES]>) -> [u32; LANES];
}

/// A computation that [`Level::run`] compiles once per instruction set.
pub(crate) trait Body {
    /// Runs the computation. Implementations must be `#[inline(always)]`, and so must everything
    /// that they call in their loops, because only inlined code is compiled for the level's
    /// instruction set.
    fn run<I: Isa>(self, isa: I);
}

/// The baseline instruction set of the machine, which is SSE2 or NEON.
#[derive(Clone, Copy)]
pub(crate) struct Portable(());

impl Isa for Portable {
    #[inline(always)]
    fn widen_f16(self, halves: [u16; LANES]) -> [f32; LANES] {
        halves.map(widen_f16_bits)
    }

    #[inline(always)]
    fn narrow_f16(self, singles: [f32; LANES]) -> [u16; LANES] {
        singles.map(narrow_f16_bits)
    }

    #[inline(always)]
    fn widen_bf16(self, words: [u32; LANES]) -> Pair<[f32; LANES]> {
        let lower = words.map(|word| f32::from_bits(word << 16));
        let upper = words.map(|word| f32::from_bits(word & UPPER_HALF));
        Pair(lower, upper)
    }

    #[inline(always)]
    fn narrow_bf16(self, Pair(lower, upper): Pair<[f32; LANES]>) -> [u32; LANES] {
        std::array::from_fn(|lane| {
            round_to_bf16(lower[lane]) >> 16 | round_to_bf16(upper[lane]) & UPPER_HALF
        })
    }
}

const UPPER_HALF: u32 = 0xffff_0000;
/// The positive quiet NaN that has no other payload bits set.
const CANONICAL_NAN: f32 = f32::from_bits(0x7fc0_0000);

/// Converts a half-precision float. A multiplication by 2¹¹² adjusts the exponent bias and also
/// normalizes subnormals.
#[inline(always)]
fn widen_f16_bits(half: u16) -> f32 {
    let magnitude = u32::from(half & 0x7fff);
    let sign = u32::from(half & 0x8000) << 16;
    let finite = (f32::from_bits(magnitude << 13) * f32::from_bits((112 + 127) << 23)).to_bits();
    let special = 0x7f80_0000 | (magnitude << 13);
    f32::from_bits(sign | if magnitude >= 0x7c00 { special } else { finite })
}

/// Converts a single-precision float to half precision. Rounds to units in the last place of the
/// result. If the result is subnormal, this is done by adding 0.5, which has the same unit in the
/// last place as a half-precision subnormal. If the result is normal, it is done with integer
/// arithmetic.
#[inline(always)]
fn narrow_f16_bits(single: f32) -> u16 {
    let bits = single.to_bits();
    let sign = ((bits >> 16) & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    let subnormal = (f32::from_bits(magnitude) + 0.5)
        .to_bits()
        .wrapping_sub(0.5_f32.to_bits());
    let even = (magnitude >> 13) & 1;
    let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0xfff + even) >> 13;
    let rounded = if magnitude < 113 << 23 {
        subnormal
    } else {
        normal
    };
    let finite = if magnitude >= (127 + 16) << 23 {
        0x7c00
    } else {
        rounded as u16
    };
    if single.is_nan() {
        f16::NAN.to_bits()
    } else {
        sign | finite
    }
}

/// Returns the bits of the nearest bf16 in the upper half. Adds slightly less than half a unit in
/// the last place, and 1 more if the last bit is odd. This causes a carry into the last place
/// exactly if the value must be rounded up. The largest f32 values are rounded up to infinity.
#[inline(always)]
fn round_to_bf16(single: f32) -> u32 {
    let bits = single.to_bits();
    let odd = (bits >> 16) & 1;
    if single.is_nan() {
        CANONICAL_NAN.to_bits()
    } else {
        bits.wrapping_add(0x7fff + odd)
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Body, CANONICAL_NAN, Isa, LANES, Pair, UPPER_HALF};
    use std::arch::x86_64::*;
    use std::mem::transmute;

    const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;
    /// Rounding argument of the conversion from half precision, which is exact and never rounds.
    /// With this argument, the instruction accepts an operand in memory.
    const CURRENT: i32 = _MM_FROUND_CUR_DIRECTION;

    /// Returns `singles` with every NaN replaced by the canonical NaN.
    ///
    /// # Safety
    ///
    /// The CPU must have AVX2.
    #[inline(always)]
    unsafe fn canonical_avx2(singles: __m256) -> __m256 {
        // SAFETY: the caller proves AVX2.
        unsafe {
            let is_nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(singles, singles);
            _mm256_blendv_ps(singles, _mm256_set1_ps(CANONICAL_NAN), is_nan)
        }
    }

    /// Returns the bits of the nearest bf16 in the upper halves, like `round_to_bf16`.
    ///
    /// # Safety
    ///
    /// The CPU must have AVX2.
    #[inline(always)]
    unsafe fn round_avx2(singles: __m256) -> __m256i {
        // SAFETY: the caller proves AVX2.
        unsafe {
            let bits = _mm256_castps_si256(canonical_avx2(singles));
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd)
        }
    }

    /// Returns the words whose halves are the nearest bf16 values.
    ///
    /// # Safety
    ///
    /// The CPU must have AVX2.
    #[inline(always)]
    unsafe fn join_avx2(lower: __m256, upper: __m256) -> __m256i {
        // SAFETY: the caller proves AVX2.
        unsafe {
            let lower = _mm256_srli_epi32::<16>(round_avx2(lower));
            _mm256_blend_epi16::<0b1010_1010>(lower, round_avx2(upper))
        }
    }

    /// Returns `singles` with every NaN replaced by the canonical NaN.
    ///
    /// # Safety
    ///
    /// The CPU must have AVX-512F.
    #[inline(always)]
    unsafe fn canonical_avx512(singles: __m512) -> __m512 {
        // The table has four bits for each of eight classes of operands. For NaNs, 0 keeps the
        // first argument. For all other classes, 1 selects the second argument.
        const NAN_ALONE: i32 = 0x1111_1100;
        // SAFETY: the caller proves AVX-512F.
        unsafe {
            let canonical = _mm512_set1_ps(CANONICAL_NAN);
            _mm512_fixupimm_ps::<0>(canonical, singles, _mm512_set1_epi32(NAN_ALONE))
        }
    }

    /// Returns the bits of the nearest bf16 in the upper halves. Adding half a unit in the last
    /// place rounds to nearest. Only after a tie are all bits below the last place zero. In this
    /// case, the last bit is cleared, so that the result is even.
    ///
    /// # Safety
    ///
    /// The CPU must have AVX-512F.
    #[inline(always)]
    unsafe fn round_avx512(singles: __m512) -> __m512i {
        // SAFETY: the caller proves AVX-512F.
        unsafe {
            let bits = _mm512_castps_si512(canonical_avx512(singles));
            let nearest = _mm512_add_epi32(bits, _mm512_set1_epi32(0x8000));
            let tie = _mm512_testn_epi32_mask(nearest, _mm512_set1_epi32(0xffff));
            _mm512_mask_and_epi32(nearest, tie, nearest, _mm512_set1_epi32(!0x1_ffff))
        }
    }

    /// AVX2 and F16C.
    #[derive(Clone, Copy)]
    pub(super) struct Avx2(());

    impl Isa for Avx2 {
        #[inline(always)]
        fn widen_f16(self, halves: [u16; LANES]) -> [f32; LANES] {
            let [low, high]: [[u16; 8]; 2] = bytemuck::cast(halves);
            // SAFETY: an `Avx2` exists only inside `run_avx2`, whose caller proves F16C.
            let lanes = unsafe {
                [
                    _mm256_cvtph_ps(bytemuck::cast(low)),
                    _mm256_cvtph_ps(bytemuck::cast(high)),
                ]
            };
            bytemuck::cast(lanes)
        }

        #[inline(always)]
        fn narrow_f16(self, singles: [f32; LANES]) -> [u16; LANES] {
            let [low, high]: [__m256; 2] = bytemuck::cast(singles);
            // SAFETY: an `Avx2` exists only inside `run_avx2`, whose caller proves AVX2 and F16C.
            let lanes = unsafe {
                [
                    _mm256_cvtps_ph::<NEAREST>(canonical_avx2(low)),
                    _mm256_cvtps_ph::<NEAREST>(canonical_avx2(high)),
                ]
            };
            bytemuck::cast(lanes)
        }

        #[inline(always)]
        fn widen_bf16(self, words: [u32; LANES]) -> Pair<[f32; LANES]> {
            let [first, second]: [__m256i; 2] = bytemuck::cast(words);
            // SAFETY: an `Avx2` exists only inside `run_avx2`, whose caller proves AVX2.
            let (lower, upper) = unsafe {
                let upper = _mm256_set1_epi32(UPPER_HALF as i32);
                (
                    [
                        _mm256_slli_epi32::<16>(first),
                        _mm256_slli_epi32::<16>(second),
                    ],
                    [
                        _mm256_and_si256(first, upper),
                        _mm256_and_si256(second, upper),
                    ],
                )
            };
            Pair(bytemuck::cast(lower), bytemuck::cast(upper))
        }

        #[inline(always)]
        fn narrow_bf16(self, Pair(lower, upper): Pair<[f32; LANES]>) -> [u32; LANES] {
            let [first_lower, second_lower]: [__m256; 2] = bytemuck::cast(lower);
            let [first_upper, second_upper]: [__m256; 2] = bytemuck::cast(upper);
            // SAFETY: an `Avx2` exists only inside `run_avx2`, whose caller proves AVX2.
            let words = unsafe {
                [
                    join_avx2(first_lower, first_upper),
                    join_avx2(second_lower, second_upper),
                ]
            };
            bytemuck::cast(words)
        }
    }

    /// AVX-512F with the BW, DQ and VL extensions.
    #[derive(Clone, Copy)]
    pub(super) struct Avx512(());

    impl Isa for Avx512 {
        #[inline(always)]
        fn widen_f16(self, halves: [u16; LANES]) -> [f32; LANES] {
            let halves: __m256i = bytemuck::cast(halves);
            // SAFETY: an `Avx512` exists only inside `run_avx512`, whose caller proves AVX-512F;
            // sixteen `f32` are exactly the bits of a `__m512`, and all bits are valid.
            unsafe { transmute::<__m512, [f32; LANES]>(_mm512_cvt_roundph_ps::<CURRENT>(halves)) }
        }

        #[inline(always)]
        fn narrow_f16(self, singles: [f32; LANES]) -> [u16; LANES] {
            // SAFETY: as in `widen_f16`.
            let halves = unsafe {
                let singles = canonical_avx512(transmute::<[f32; LANES], __m512>(singles));
                _mm512_cvtps_ph::<NEAREST>(singles)
            };
            bytemuck::cast(halves)
        }

        #[inline(always)]
        fn widen_bf16(self, words: [u32; LANES]) -> Pair<[f32; LANES]> {
            // SAFETY: as in `widen_f16`. Sixteen `u32`s have exactly the bits of a `__m512i`.
            unsafe {
                let words = transmute::<[u32; LANES], __m512i>(words);
                let lower = _mm512_slli_epi32::<16>(words);
                let upper = _mm512_and_si512(words, _mm512_set1_epi32(UPPER_HALF as i32));
                Pair(
                    transmute::<__m512i, [f32; LANES]>(lower),
                    transmute::<__m512i, [f32; LANES]>(upper),
                )
            }
        }

        #[inline(always)]
        fn narrow_bf16(self, Pair(lower, upper): Pair<[f32; LANES]>) -> [u32; LANES] {
            // SAFETY: as in `widen_bf16`. The caller of `run_avx512` also proves AVX-512BW.
            unsafe {
                let lower = round_avx512(transmute::<[f32; LANES], __m512>(lower));
                let upper = round_avx512(transmute::<[f32; LANES], __m512>(upper));
                let lower = _mm512_srli_epi32::<16>(lower);
                let words = _mm512_mask_blend_epi16(0xaaaa_aaaa, lower, upper);
                transmute::<__m512i, [u32; LANES]>(words)
            }
        }
    }

    /// # Safety
    ///
    /// The CPU must have AVX2, BMI1, BMI2 and F16C.
    #[target_feature(enable = "avx2,bmi1,bmi2,f16c")]
    pub(super) unsafe fn run_avx2<B: Body>(body: B) {
        body.run(Avx2(()));
    }

    /// # Safety
    ///
    /// The CPU must have AVX2, BMI1, BMI2, F16C, and AVX-512 F, BW, DQ and VL.
    #[target_feature(enable = "avx2,bmi1,bmi2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
    pub(super) unsafe fn run_avx512<B: Body>(body: B) {
        body.run(Avx512(()));
    }
}

/// The instruction sets for which loops are compiled, from the narrowest to the widest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Width {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

/// An instruction set that this CPU has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Level(Width);

impl Level {
    /// Returns the levels that this CPU has, from the narrowest to the widest. There is always at
    /// least one level.
    pub(crate) fn all() -> impl Iterator<Item = Level> {
        const WIDTHS: &[Width] = &[
            Width::Portable,
            #[cfg(target_arch = "x86_64")]
            Width::Avx2,
            #[cfg(target_arch = "x86_64")]
            Width::Avx512,
        ];
        WIDTHS
            .iter()
            .copied()
            .filter(|width| width.is_present())
            .map(Level)
    }

    /// Returns the widest level that this CPU has.
    pub(crate) fn best() -> Level {
        Self::all()
            .last()
            .expect("invariant: every CPU has the portable level")
    }

    /// Returns the level that every machine has. Use this level for data that is too short for wide
    /// vectors to be worth their start-up time.
    #[inline]
    pub(crate) const fn portable() -> Level {
        Level(Width::Portable)
    }

    /// Runs `body`, compiled for this level.
    #[inline]
    pub(crate) fn run<B: Body>(self, body: B) {
        match self.0 {
            Width::Portable => body.run(Portable(())),
            // SAFETY: a `Level` is created only by `all`, which keeps what `is_present` detected.
            #[cfg(target_arch = "x86_64")]
            Width::Avx2 => unsafe { x86::run_avx2(body) },
            // SAFETY: a `Level` is created only by `all`, which keeps what `is_present` detected.
            #[cfg(target_arch = "x86_64")]
            Width::Avx512 => unsafe { x86::run_avx512(body) },
        }
    }
}

impl Width {
    fn is_present(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        use std::arch::is_x86_feature_detected as has;
        match self {
            Width::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Width::Avx2 => has!("avx2") && has!("bmi1") && has!("bmi2") && has!("f16c"),
            #[cfg(target_arch = "x86_64")]
            Width::Avx512 => {
                let wide = has!("avx512f") && has!("avx512bw");
                let short = has!("avx512dq") && has!("avx512vl");
                Width::Avx2.is_present() && wide && short
            }
        }
    }
}
