//! Running one generic loop with the widest vectors this CPU has.
//!
//! A loop is written once, as a [`Body`] whose `run` is `#[inline(always)]`. [`Level::run`] calls
//! it inside a function compiled for the level's instruction set, so the compiler vectorises the
//! same source once per level. The [`Isa`] value handed to the body is the proof that the CPU has
//! the instructions: only this file makes one.

use half::f16;

/// The lanes of one half-precision conversion.
pub(crate) const HALF_LANES: usize = 16;

/// An instruction set, as a value that exists only where the CPU has it.
pub(crate) trait Isa: Copy {
    /// Half to single precision, exactly.
    fn widen_f16(self, halves: [u16; HALF_LANES]) -> [f32; HALF_LANES];
    /// Single to half precision, rounding to nearest even. The input holds no NaN but the
    /// canonical one.
    fn narrow_f16(self, singles: [f32; HALF_LANES]) -> [u16; HALF_LANES];
}

/// A computation that [`Level::run`] compiles once per instruction set.
pub(crate) trait Body {
    /// The computation. Implementations are `#[inline(always)]`, and so is all that they call in
    /// their loops: only inlined code is compiled for the level's instruction set.
    fn run<I: Isa>(self, isa: I);
}

/// The instruction set of the machine's baseline: SSE2, or NEON.
#[derive(Clone, Copy)]
pub(crate) struct Portable(());

impl Isa for Portable {
    #[inline(always)]
    fn widen_f16(self, halves: [u16; HALF_LANES]) -> [f32; HALF_LANES] {
        halves.map(widen_f16_bits)
    }

    #[inline(always)]
    fn narrow_f16(self, singles: [f32; HALF_LANES]) -> [u16; HALF_LANES] {
        singles.map(narrow_f16_bits)
    }
}

/// Moves the exponent's bias by one multiplication by 2¹¹², which also normalises subnormals.
#[inline(always)]
fn widen_f16_bits(half: u16) -> f32 {
    let magnitude = u32::from(half & 0x7fff);
    let sign = u32::from(half & 0x8000) << 16;
    let finite = (f32::from_bits(magnitude << 13) * f32::from_bits((112 + 127) << 23)).to_bits();
    let special = 0x7f80_0000 | (magnitude << 13);
    f32::from_bits(sign | if magnitude >= 0x7c00 { special } else { finite })
}

/// Rounds in the unit of the last place of the result: for a subnormal result by adding 0.5, whose
/// last place is that of a half subnormal; for a normal one in integers.
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
    let infinite = if magnitude > 0x7f80_0000 {
        f16::NAN.to_bits()
    } else {
        0x7c00
    };
    sign | if magnitude >= (127 + 16) << 23 {
        infinite
    } else {
        rounded as u16
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Body, HALF_LANES, Isa};
    use std::arch::x86_64::{
        __m256i, __m512, _MM_FROUND_TO_NEAREST_INT, _mm256_cvtph_ps, _mm256_cvtps_ph,
        _mm512_cvtph_ps, _mm512_cvtps_ph,
    };

    const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;

    /// AVX2 and F16C.
    #[derive(Clone, Copy)]
    pub(super) struct Avx2(());

    impl Isa for Avx2 {
        #[inline(always)]
        fn widen_f16(self, halves: [u16; HALF_LANES]) -> [f32; HALF_LANES] {
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
        fn narrow_f16(self, singles: [f32; HALF_LANES]) -> [u16; HALF_LANES] {
            let [low, high]: [[f32; 8]; 2] = bytemuck::cast(singles);
            // SAFETY: an `Avx2` exists only inside `run_avx2`, whose caller proves F16C.
            let lanes = unsafe {
                [
                    _mm256_cvtps_ph::<NEAREST>(bytemuck::cast(low)),
                    _mm256_cvtps_ph::<NEAREST>(bytemuck::cast(high)),
                ]
            };
            bytemuck::cast(lanes)
        }
    }

    /// AVX-512 with byte, word, doubleword and short-vector forms.
    #[derive(Clone, Copy)]
    pub(super) struct Avx512(());

    impl Isa for Avx512 {
        #[inline(always)]
        fn widen_f16(self, halves: [u16; HALF_LANES]) -> [f32; HALF_LANES] {
            let halves: __m256i = bytemuck::cast(halves);
            // SAFETY: an `Avx512` exists only inside `run_avx512`, whose caller proves AVX-512F.
            let singles = unsafe { _mm512_cvtph_ps(halves) };
            // SAFETY: sixteen `f32` are exactly the bits of a `__m512`, and all bits are valid.
            unsafe { std::mem::transmute::<__m512, [f32; HALF_LANES]>(singles) }
        }

        #[inline(always)]
        fn narrow_f16(self, singles: [f32; HALF_LANES]) -> [u16; HALF_LANES] {
            // SAFETY: an `Avx512` exists only inside `run_avx512`, whose caller proves AVX-512F;
            // sixteen `f32` are exactly the bits of a `__m512`.
            let halves = unsafe {
                let singles = std::mem::transmute::<[f32; HALF_LANES], __m512>(singles);
                _mm512_cvtps_ph::<NEAREST>(singles)
            };
            bytemuck::cast(halves)
        }
    }

    /// # Safety
    ///
    /// The CPU has AVX2, BMI1, BMI2 and F16C.
    #[target_feature(enable = "avx2,bmi1,bmi2,f16c")]
    pub(super) unsafe fn run_avx2<B: Body>(body: B) {
        body.run(Avx2(()));
    }

    /// # Safety
    ///
    /// The CPU has AVX2, BMI1, BMI2, F16C, and AVX-512 F, BW, DQ and VL.
    #[target_feature(enable = "avx2,bmi1,bmi2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
    pub(super) unsafe fn run_avx512<B: Body>(body: B) {
        body.run(Avx512(()));
    }
}

/// The instruction sets that loops are compiled for, narrowest first.
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
    /// The levels of this CPU, narrowest first; never empty.
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

    /// The widest level of this CPU.
    pub(crate) fn best() -> Level {
        Self::all()
            .last()
            .expect("invariant: the portable level is always there")
    }

    /// The level that every machine has: where there is too little for wide vectors to pay for
    /// the way to them.
    #[inline]
    pub(crate) const fn portable() -> Level {
        Level(Width::Portable)
    }

    /// Runs `body` compiled for this level.
    #[inline]
    pub(crate) fn run<B: Body>(self, body: B) {
        match self.0 {
            Width::Portable => body.run(Portable(())),
            // SAFETY: a `Level` is made only by `all`, which keeps what `is_present` detected.
            #[cfg(target_arch = "x86_64")]
            Width::Avx2 => unsafe { x86::run_avx2(body) },
            // SAFETY: a `Level` is made only by `all`, which keeps what `is_present` detected.
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
