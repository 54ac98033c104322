//! Operands of the reductions: random and special elements of every type.

use ringtree::Dtype;

/// Numbers drawn from a seed: SplitMix64 (Steele, Lea, Flood 2014).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.bits() % bound as u64) as usize
    }

    pub(crate) fn flip(&mut self) -> bool {
        self.bits() & 1 == 1
    }
}

/// Returns the number of exponent and mantissa bits of a float type.
fn format_of(dtype: Dtype) -> Option<(u32, u32)> {
    match dtype {
        Dtype::F16 => Some((5, 10)),
        Dtype::Bf16 => Some((8, 7)),
        Dtype::F32 => Some((8, 23)),
        Dtype::F64 => Some((11, 52)),
        _ => None,
    }
}

/// Returns special values. For floats: zeros, ones, the extreme finite and subnormal values,
/// infinities and NaNs of several payloads, with both signs. For integers: the extremes.
pub(crate) fn special_values(dtype: Dtype) -> Vec<u64> {
    let Some((exponent_bits, mantissa_bits)) = format_of(dtype) else {
        let sign = 1 << (dtype.size() * 8 - 1);
        return vec![0, 1, 2, sign - 1, sign, sign + 1, u64::MAX - 1, u64::MAX];
    };
    let infinity: u64 = ((1 << exponent_bits) - 1) << mantissa_bits;
    let one: u64 = ((1 << (exponent_bits - 1)) - 1) << mantissa_bits;
    let quiet = infinity | 1 << (mantissa_bits - 1);
    let normal = 1 << mantissa_bits;
    let edges = [0, normal, one, infinity, quiet, infinity | (normal - 1)];
    let near = edges
        .iter()
        .flat_map(|&edge| [edge.max(1) - 1, edge, edge + 1]);
    let sign = 1 << (exponent_bits + mantissa_bits);
    near.filter(|bits| *bits < sign)
        .flat_map(|bits| [bits, bits | sign])
        .collect()
}

/// Returns elements of one of several kinds: any bits, special values, floats of similar magnitude.
pub(crate) fn random_elements(dtype: Dtype, count: usize, random: &mut Random) -> Vec<u8> {
    let special = special_values(dtype);
    let kind = random.below(4);
    let elements = (0..count).flat_map(|_| {
        let bits = match (kind, format_of(dtype)) {
            (0, _) => special[random.below(special.len())],
            (1, _) if random.below(8) == 0 => special[random.below(special.len())],
            (2, Some((exponent_bits, mantissa_bits))) => {
                let one: u64 = ((1 << (exponent_bits - 1)) - 1) << mantissa_bits;
                let bits = random.bits();
                let sign = (bits >> 63) << (exponent_bits + mantissa_bits);
                sign | (one + bits % (3 << mantissa_bits))
            }
            _ => random.bits(),
        };
        bits.to_le_bytes()[..dtype.size()].to_vec()
    });
    elements.collect()
}
