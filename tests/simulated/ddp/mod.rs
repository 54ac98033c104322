//! Tests the data-parallel layer on simulated ranks: all hooks, all types of gradients, misuse, and
//! the death of a rank.

mod averages;
mod death;
mod half_precision;
mod mismatch;
mod misuse;
mod power_sgd;
mod sharded;
mod uneven;

use half::{bf16, f16};
use ringtree::ddp::{HalfHook, Options, Parameter, PowerSgd};
use ringtree::internal::sim::SplitMix64;
use ringtree::{Dtype, Element};

/// A hook, and the tolerance of its averages: a fraction of the largest magnitude, plus an absolute
/// amount.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) set: fn(Options) -> Options,
    pub(crate) relative: f64,
    pub(crate) absolute: f64,
}

impl std::fmt::Debug for Row {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.name)
    }
}

/// All hooks. As matrices, the gradients in these tests have rank 1, so PowerSGD is almost exact.
pub(crate) const HOOKS: &[Row] = &[
    Row {
        name: "plain",
        set: |options| options,
        relative: 1e-6,
        absolute: 0.0,
    },
    Row {
        name: "bf16",
        set: |options| options.hook(HalfHook::bf16()),
        relative: 2.02 / 256.0,
        absolute: 0.0,
    },
    Row {
        name: "f16",
        set: |options| options.hook(HalfHook::f16()),
        relative: 2.02 / 2048.0,
        // This covers two roundings, each by at most half of the smallest positive number.
        absolute: 6e-8,
    },
    Row {
        name: "PowerSGD",
        set: |options| options.hook(PowerSgd::new(2)),
        relative: 1e-3,
        absolute: 0.0,
    },
    Row {
        name: "PowerSGD after a step",
        set: |options| options.hook(PowerSgd::new(1).seed(5).start_after(1)),
        relative: 1e-3,
        absolute: 0.0,
    },
];

/// An element of a gradient.
pub(crate) trait Real: Element {
    fn from_f64(value: f64) -> Self;
    fn to_f64(self) -> f64;
    /// Tolerance of a sum of a few gradients, as a fraction of the largest magnitude.
    const RELATIVE: f64;
}

macro_rules! reals {
    ($($real:ty, $from:expr, $to:expr, $relative:expr;)*) => {$(
        impl Real for $real {
            fn from_f64(value: f64) -> Self {
                $from(value)
            }
            fn to_f64(self) -> f64 {
                $to(self)
            }
            const RELATIVE: f64 = $relative;
        }
    )*};
}

reals! {
    f32, |value| value as f32, f64::from, 1e-6;
    f64, |value| value, |value| value, 1e-14;
    bf16, bf16::from_f64, bf16::to_f64, 10.0 / 256.0;
    f16, f16::from_f64, f16::to_f64, 10.0 / 2048.0;
}

/// Evaluates an expression in which `$real` is the type of `$dtype`.
macro_rules! with_real {
    ($dtype:expr, $real:ident => $body:expr) => {
        match $dtype {
            ringtree::Dtype::F32 => {
                type $real = f32;
                $body
            }
            ringtree::Dtype::F64 => {
                type $real = f64;
                $body
            }
            ringtree::Dtype::Bf16 => {
                type $real = half::bf16;
                $body
            }
            ringtree::Dtype::F16 => {
                type $real = half::f16;
                $body
            }
            other => panic!("gradients cannot have the type {other}"),
        }
    };
}
pub(crate) use with_real;

/// Returns numbers from −1 to 1 that depend only on `words`.
pub(crate) fn numbers(words: &[u64], count: usize) -> Vec<f64> {
    let seed = words.iter().fold(17u64, |seed, word| {
        SplitMix64::new(seed ^ word.wrapping_mul(0x9E37_79B9_7F4A_7C15)).next_u64()
    });
    let mut chance = SplitMix64::new(seed);
    let one = |_| chance.next_u64() as f64 / u64::MAX as f64 * 2.0 - 1.0;
    (0..count).map(one).collect()
}

/// Returns a gradient. Viewed as a matrix (the first extent by the others), it is left ⊗ right. A
/// parameter's right vector is always the same, so that any sum of its gradients has rank 1, too.
pub(crate) fn gradient(parameter: &Parameter, number: usize, step: u64, from: u64) -> Vec<f64> {
    let rows = parameter.shape.first().copied().unwrap_or(1).max(1);
    let right = numbers(&[number as u64], parameter.count() / rows);
    let left = numbers(&[step, number as u64, from], rows);
    left.iter()
        .flat_map(|left| right.iter().map(move |right| left * right))
        .take(parameter.count())
        .collect()
}

/// Returns 0..`count` in an order that depends only on `words`.
pub(crate) fn shuffled(words: &[u64], count: usize) -> Vec<usize> {
    let keys = numbers(words, count);
    let mut order: Vec<_> = (0..count).collect();
    order.sort_by(|one, other| keys[*one].total_cmp(&keys[*other]));
    order
}

/// Returns the parameters of a small model, with several types and shapes.
pub(crate) fn model() -> Vec<Parameter> {
    vec![
        Parameter::new("embedding", &[16, 12], Dtype::F32),
        Parameter::new("scale", &[7], Dtype::F32),
        Parameter::new("half", &[9], Dtype::Bf16),
        Parameter::new("convolution", &[10, 4, 5], Dtype::F32),
        Parameter::new("bias", &[], Dtype::F32),
    ]
}
