//! Casts, against the `half` crate.

use super::launched::{Case, Memory, check, request};
use super::values::{Random, format_of, random_elements};
use bytemuck::bytes_of;
use half::{bf16, f16};
use ringtree::Dtype;
use ringtree::reduce::gpu;

/// What a cast makes of one value, by the `half` crate.
fn cast_one(to: Dtype, value: f32) -> Vec<u8> {
    match to {
        Dtype::F16 if value.is_nan() => 0x7e00_u16.to_le_bytes().to_vec(),
        Dtype::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
        Dtype::Bf16 if value.is_nan() => 0x7fc0_u16.to_le_bytes().to_vec(),
        Dtype::Bf16 => bf16::from_f32(value).to_le_bytes().to_vec(),
        _ if value.is_nan() => 0x7fc0_0000_u32.to_le_bytes().to_vec(),
        _ => value.to_le_bytes().to_vec(),
    }
}

fn cast_case(from: Dtype, to: Dtype, source: &[u8], scale: f32, random: &mut Random) -> Case {
    let values = source.chunks(from.size()).map(|bytes| match from {
        Dtype::F16 => f16::from_le_bytes(bytes.try_into().unwrap()).to_f32(),
        Dtype::Bf16 => bf16::from_le_bytes(bytes.try_into().unwrap()).to_f32(),
        _ => f32::from_le_bytes(bytes.try_into().unwrap()),
    });
    let result: Vec<u8> = values
        .flat_map(|value| cast_one(to, value * scale))
        .collect();
    let mut memory = Memory::default();
    // Half of all cases lie where quads of elements meet.
    let (quad, head) = (random.flip(), random.below(4));
    let mut residue = |size: usize| match quad {
        true => head * size % 16,
        false => random.below(16),
    };
    let (source_residue, destination_residue) = (residue(from.size()), residue(to.size()));
    let source_at = memory.place(source, source_residue);
    let destination_at = memory.place(&vec![0x5a; result.len()], destination_residue);
    let elements = source.len() / from.size();
    let launch = gpu::cast(from, to, source_at, destination_at, elements, scale, 2).unwrap();
    let mut expected = memory.bytes.clone();
    expected[destination_at as usize..][..result.len()].copy_from_slice(&result);
    Case {
        what: format!(
            "{from} to {to} times {scale}, {elements} elements at {source_residue} and \
             {destination_residue}"
        ),
        request: request(launch.entry, launch.blocks, memory.bytes.len(), random),
        arguments: bytes_of(&launch.arguments).to_vec(),
        memory: memory.bytes,
        expected,
        bytes_read: source.len(),
        bytes_written: result.len(),
        // The wide side passes in vectors, but for a tile and a head.
        bytes_by_vector_min: 4 * elements.saturating_sub(512 + 4) * usize::from(quad),
    }
}

#[test]
fn casts_scale_in_f32_and_round_to_nearest_even() {
    let mut random = Random(8);
    let every: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let mut cases = Vec::new();
    for half in [Dtype::F16, Dtype::Bf16] {
        // Every half, and every neighbour and tie of halves.
        let (_, half_mantissa) = format_of(half).unwrap();
        let tie = 1_u32 << (23 - half_mantissa - 1);
        let wide = every.chunks(2).flat_map(|bytes| {
            let bits = match half {
                Dtype::F16 => f16::from_le_bytes(bytes.try_into().unwrap()).to_f32(),
                _ => bf16::from_le_bytes(bytes.try_into().unwrap()).to_f32(),
            };
            let bits = bits.to_bits();
            [bits, bits + 1, bits + tie - 1, bits + tie, bits + tie + 1].map(u32::to_le_bytes)
        });
        let wide: Vec<u8> = wide.flatten().collect();
        for scale in [1.0, 0.125, 1.0 / 3.0, -65536.0, 1e-30] {
            cases.push(cast_case(half, Dtype::F32, &every, scale, &mut random));
            cases.push(cast_case(Dtype::F32, half, &wide, scale, &mut random));
        }
        for _ in 0..150 {
            let bound = [4, 40, 3000][random.below(3)];
            let elements = random.below(bound);
            let (from, to) = if random.flip() {
                (half, Dtype::F32)
            } else {
                (Dtype::F32, half)
            };
            let source = random_elements(from, elements, &mut random);
            cases.push(cast_case(from, to, &source, 1.0, &mut random));
        }
    }
    check(cases.into_iter());
}
