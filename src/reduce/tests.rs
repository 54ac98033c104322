//! Compares the kernels with a naive reference, at every SIMD level that this CPU supports.

use super::Kernel;
use crate::dtype::Dtype;
use crate::op::ReduceOp;
use crate::sys::simd::Level;
use half::{bf16, f16};
use proptest::prelude::*;

/// Returns all kernels at every SIMD level that this CPU supports.
fn kernels() -> Vec<Kernel> {
    let mut kernels = Vec::new();
    for level in Level::all() {
        for &dtype in Dtype::ALL {
            for &op in ReduceOp::ALL {
                let kernel = Kernel::at_level(dtype, op, level);
                assert_eq!(kernel.is_some(), op.supports(dtype), "{dtype} {op}");
                kernels.extend(kernel);
            }
        }
    }
    kernels
}

/// An element, widened to the type in which the reference computes.
#[derive(Clone, Copy, Debug)]
enum Wide {
    Integer(i128),
    Single(f32),
    Double(f64),
}

fn widen(dtype: Dtype, bytes: &[u8]) -> Wide {
    let mut eight = [0; 8];
    eight[..bytes.len()].copy_from_slice(bytes);
    let bits = u64::from_le_bytes(eight);
    match dtype {
        Dtype::I8 => Wide::Integer((bits as i8).into()),
        Dtype::U8 => Wide::Integer((bits as u8).into()),
        Dtype::I16 => Wide::Integer((bits as i16).into()),
        Dtype::U16 => Wide::Integer((bits as u16).into()),
        Dtype::I32 => Wide::Integer((bits as i32).into()),
        Dtype::U32 => Wide::Integer((bits as u32).into()),
        Dtype::I64 => Wide::Integer((bits as i64).into()),
        Dtype::U64 => Wide::Integer(bits.into()),
        Dtype::F16 => Wide::Single(f16::from_bits(bits as u16).to_f32()),
        Dtype::Bf16 => Wide::Single(bf16::from_bits(bits as u16).to_f32()),
        Dtype::F32 => Wide::Single(f32::from_bits(bits as u32)),
        Dtype::F64 => Wide::Double(f64::from_bits(bits)),
    }
}

/// Returns the bytes to store. Rounds with the `half` crate, and makes NaNs canonical.
fn narrow(dtype: Dtype, wide: Wide) -> Vec<u8> {
    let bits = match (dtype, wide) {
        (_, Wide::Integer(integer)) => integer as u64,
        (Dtype::F16, Wide::Single(single)) if single.is_nan() => 0x7e00,
        (Dtype::F16, Wide::Single(single)) => f16::from_f32(single).to_bits().into(),
        (Dtype::Bf16, Wide::Single(single)) if single.is_nan() => 0x7fc0,
        (Dtype::Bf16, Wide::Single(single)) => bf16::from_f32(single).to_bits().into(),
        (_, Wide::Single(single)) if single.is_nan() => 0x7fc0_0000,
        (_, Wide::Single(single)) => single.to_bits().into(),
        (_, Wide::Double(double)) if double.is_nan() => 0x7ff8_0000_0000_0000,
        (_, Wide::Double(double)) => double.to_bits(),
    };
    bits.to_le_bytes()[..dtype.size()].to_vec()
}

macro_rules! combine_floats {
    ($op:ident, $left:ident, $right:ident) => {
        match $op {
            ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum(_) => $left + $right,
            ReduceOp::Prod => $left * $right,
            _ if $left.is_nan() || $right.is_nan() => f32::NAN.into(),
            ReduceOp::Min if $left.total_cmp(&$right).is_lt() => $left,
            ReduceOp::Max if $left.total_cmp(&$right).is_gt() => $left,
            _ => $right,
        }
    };
}

fn combine(dtype: Dtype, op: ReduceOp, left: Wide, right: Wide) -> Wide {
    match (left, right) {
        (Wide::Integer(left), Wide::Integer(right)) => {
            let exact = match op {
                ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum(_) => left + right,
                ReduceOp::Prod => left.wrapping_mul(right),
                ReduceOp::Min => left.min(right),
                ReduceOp::Max => left.max(right),
                ReduceOp::Band => left & right,
                ReduceOp::Bor => left | right,
                ReduceOp::Bxor => left ^ right,
            };
            widen(dtype, &narrow(dtype, Wide::Integer(exact)))
        }
        (Wide::Single(left), Wide::Single(right)) => Wide::Single(combine_floats!(op, left, right)),
        (Wide::Double(left), Wide::Double(right)) => Wide::Double(combine_floats!(op, left, right)),
        _ => panic!("the operands must have the same type"),
    }
}

fn divide(wide: Wide, divisor: usize) -> Wide {
    match wide {
        Wide::Integer(integer) => Wide::Integer(integer / divisor as i128),
        Wide::Single(single) => Wide::Single(single / divisor as f32),
        Wide::Double(double) => Wide::Double(double / divisor as f64),
    }
}

/// Returns the expected result for one element.
fn reference(kernel: Kernel, operands: &[&[u8]], divisor: Option<usize>) -> Vec<u8> {
    let Kernel { dtype, op, .. } = kernel;
    if operands.len() == 1 && divisor.is_none_or(|divisor| divisor == 1) {
        return operands[0].to_vec();
    }
    let wide = operands.iter().map(|bytes| widen(dtype, bytes));
    let folded = wide
        .reduce(|left, right| combine(dtype, op, left, right))
        .unwrap();
    narrow(
        dtype,
        divisor.map_or(folded, |divisor| divide(folded, divisor)),
    )
}

/// Compares a fold of `count` elements with the reference. The operands are the pieces of `bytes`,
/// at addresses that are usually unaligned.
fn check(kernel: Kernel, bytes: &[u8], count: usize, own: Option<usize>, divisor: Option<usize>) {
    let size = kernel.dtype.size();
    let operands: Vec<&[u8]> = bytes
        .chunks(count * size + 1)
        .map(|piece| &piece[1..])
        .collect();
    let mut sources = operands.clone();
    let mut buffer = vec![0xa5; count * size + 5];
    if let Some(own) = own {
        buffer[3..][..count * size].copy_from_slice(sources.remove(own));
    }
    kernel.fold(&mut buffer[3..][..count * size], own, &sources, divisor);
    assert_eq!(
        (&buffer[..3], &buffer[count * size + 3..]),
        (&[0xa5; 3][..], &[0xa5; 2][..])
    );
    for index in 0..count {
        let at = index * size..(index + 1) * size;
        let elements: Vec<_> = operands
            .iter()
            .map(|operand| &operand[at.clone()])
            .collect();
        let expected = reference(kernel, &elements, divisor);
        let found = &buffer[3..][at];
        assert_eq!(
            found, expected,
            "{kernel:?} own {own:?} divisor {divisor:?} element {index} of {elements:x?}"
        );
    }
}

/// Returns pseudorandom bytes. Almost half of the bytes have special values.
fn random_bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        let byte = (state >> 33) as u8;
        if byte < 100 {
            [0, 0xff, 0x80, 0x7f, 0x7c, 1][usize::from(byte) % 6]
        } else {
            (state >> 41) as u8
        }
    };
    (0..len).map(|_| next()).collect()
}

fn divisors(op: ReduceOp, seed: u64) -> Option<usize> {
    let choices = [None, Some(1), Some(3), Some(1000), Some(1 << 20)];
    choices[seed as usize % 5].filter(|_| op == ReduceOp::Avg)
}

#[test]
fn kernels_match_reference_at_various_lengths_and_alignments() {
    for kernel in kernels() {
        let size = kernel.dtype.size();
        for (seed, count) in [0, 1, 2, 7, 31, 33, 97, 1000, 1031].into_iter().enumerate() {
            let bytes = random_bytes(seed as u64, 2 * (count * size + 1));
            for own in [None, Some(0), Some(1)] {
                check(kernel, &bytes, count, own, divisors(kernel.op, seed as u64));
            }
        }
    }
}

#[test]
fn fold_reduces_from_left_and_rounds_once() {
    for kernel in kernels() {
        let piece = 1100 * kernel.dtype.size() + 1;
        for (operands, own) in [
            (1, None),
            (3, None),
            (3, Some(1)),
            (3, Some(2)),
            (4, Some(2)),
            (9, Some(8)),
        ] {
            let bytes = random_bytes(operands as u64, operands * piece);
            check(
                kernel,
                &bytes,
                1100,
                own,
                divisors(kernel.op, operands as u64),
            );
        }
    }
}

/// Returns the bits of zero, one, the extreme finite and subnormal values, infinity, and quiet and
/// signaling NaNs with several payloads, each with both signs.
fn special_values(exponent_bits: u32, mantissa_bits: u32) -> Vec<u64> {
    let infinity = ((1 << exponent_bits) - 1) << mantissa_bits;
    let quiet = infinity | 1 << (mantissa_bits - 1);
    let one = ((1 << (exponent_bits - 1)) - 1) << mantissa_bits;
    let smallest_normal = 1 << mantissa_bits;
    let positive = [
        0,
        1,
        2,
        smallest_normal - 1,
        smallest_normal,
        one - 1,
        one,
        one + 1,
        infinity - 1,
        infinity,
        infinity + 1,
        quiet - 1,
        quiet,
        quiet + 1,
        quiet | (smallest_normal - 1),
    ];
    let sign = 1 << (exponent_bits + mantissa_bits);
    positive
        .into_iter()
        .chain(positive.map(|bits| bits | sign))
        .collect()
}

#[test]
fn float_operators_are_commutative_to_the_bit() {
    let floats = [
        (Dtype::F16, 5, 10),
        (Dtype::Bf16, 8, 7),
        (Dtype::F32, 8, 23),
        (Dtype::F64, 11, 52),
    ];
    for (dtype, exponent_bits, mantissa_bits) in floats {
        let values = special_values(exponent_bits, mantissa_bits);
        let encode = |bits: u64| bits.to_le_bytes()[..dtype.size()].to_vec();
        let (mut left, mut right) = (Vec::new(), Vec::new());
        for &first in &values {
            for &second in &values {
                left.extend(encode(first));
                right.extend(encode(second));
            }
        }
        for kernel in kernels().into_iter().filter(|kernel| kernel.dtype == dtype) {
            let (mut forward, mut backward) = (left.clone(), right.clone());
            kernel.fold(&mut forward, Some(0), &[&right], None);
            kernel.fold(&mut backward, Some(0), &[&left], None);
            assert_eq!(forward, backward, "{kernel:?}");
            kernel.fold(&mut backward, None, &[&right, &left], None);
            assert_eq!(forward, backward, "{kernel:?}");
            let both = [vec![0], left.clone(), vec![0], right.clone()].concat();
            check(kernel, &both, left.len() / dtype.size(), Some(0), None);
        }
    }
}

#[test]
fn halves_convert_exactly_and_round_to_nearest_even() {
    for kernel in kernels()
        .into_iter()
        .filter(|kernel| kernel.op == ReduceOp::Sum)
    {
        if !matches!(kernel.dtype, Dtype::F16 | Dtype::Bf16) {
            continue;
        }
        let every: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        for other in [
            0x0000_u16, 0x0001, 0x1001, 0x3c01, 0x3f81, 0x8000, 0xb555, 0x7bff,
        ] {
            let others: Vec<u8> = other.to_le_bytes().repeat(1 << 16);
            let bytes = [&[0], &every[..], &[0], &others[..]].concat();
            check(kernel, &bytes, 1 << 16, Some(1), None);
            check(kernel, &bytes, 1 << 16, Some(0), Some(3));
        }
    }
}

#[test]
fn integer_mean_truncates_near_multiples_of_divisor() {
    for kernel in kernels()
        .into_iter()
        .filter(|kernel| kernel.op == ReduceOp::Avg)
    {
        let size = kernel.dtype.size();
        if kernel.dtype.is_float() {
            continue;
        }
        for divisor in [2, 3, 7, 255, 256, 1023, 65_535, (1 << 20) - 1, 1 << 20] {
            let multiples = (0..200_u64).map(|k| k.wrapping_mul(0x0101_0101_0101_0101) / divisor);
            let near = multiples.flat_map(|quotient| {
                let multiple = quotient.wrapping_mul(divisor);
                [multiple.wrapping_sub(1), multiple, multiple.wrapping_add(1)]
            });
            let signed = near.flat_map(|dividend| [dividend, dividend.wrapping_neg()]);
            let dividends: Vec<u8> = signed
                .flat_map(|dividend| dividend.to_le_bytes()[..size].to_vec())
                .collect();
            let bytes = [&[0], &dividends[..], &[0], &vec![0; dividends.len()]].concat();
            check(
                kernel,
                &bytes,
                dividends.len() / size,
                Some(0),
                Some(divisor as usize),
            );
        }
    }
}

#[test]
fn scale_rounds_each_product_once() {
    for dtype in [Dtype::F16, Dtype::Bf16, Dtype::F32, Dtype::F64] {
        let size = dtype.size();
        for (seed, count) in [0, 1, 7, 31, 33, 1031].into_iter().enumerate() {
            for factor in [0.1, -3.0, 1e-3, f64::INFINITY, f64::NAN, -0.0] {
                let bytes = random_bytes(seed as u64, count * size);
                let mut found = [&[0xa5], &bytes[..], &[0xa5]].concat();
                super::scale(dtype, &mut found[1..=count * size], factor);
                let element = |bytes: &[u8]| match widen(dtype, bytes) {
                    Wide::Single(single) => narrow(dtype, Wide::Single(single * factor as f32)),
                    Wide::Double(double) => narrow(dtype, Wide::Double(double * factor)),
                    Wide::Integer(_) => panic!("only floats are scaled"),
                };
                let scaled: Vec<u8> = bytes.chunks(size).flat_map(element).collect();
                let expected = [&[0xa5], &scaled[..], &[0xa5]].concat();
                assert_eq!(found, expected, "{dtype} {factor}");
            }
        }
    }
}

#[test]
fn copy_preserves_nan_payload() {
    let signaling = 0xffa0_0001_u32.to_ne_bytes();
    let mut destination = [0; 4];
    let kernel = Kernel::new(Dtype::F32, ReduceOp::Sum).unwrap();
    kernel.fold(&mut destination, None, &[&signaling], None);
    assert_eq!(destination, signaling);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn random_folds_match_reference(
        choice in any::<prop::sample::Index>(),
        count in 0_usize..300,
        operands in 1_usize..7,
        position in 0_usize..8,
        seed in any::<u64>(),
    ) {
        let kernels = kernels();
        let kernel = kernels[choice.index(kernels.len())];
        let bytes = random_bytes(seed, operands * (count * kernel.dtype.size() + 1));
        let own = Some(position).filter(|&position| position < operands && operands > 1);
        check(kernel, &bytes, count, own, divisors(kernel.op, seed));
    }
}
