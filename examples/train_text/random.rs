//! Generates random numbers that depend only on a seed and are the same on every machine.

/// Mixes the bits of `value` with the finalizer of SplitMix64 (Steele, Lea, Flood, 2014).
pub(crate) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

/// The generator SplitMix64, which mixes the values of a counter.
pub(crate) struct Random {
    state: u64,
}

impl Random {
    /// Creates a generator whose numbers depend only on `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Random { state: mix(seed) }
    }

    /// Returns 64 random bits.
    pub(crate) fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.state)
    }

    /// Returns a number from 0 (inclusive) to 1 (exclusive) with 24 random bits.
    pub(crate) fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// Returns a number between `-bound` and `bound`.
    pub(crate) fn within(&mut self, bound: f32) -> f32 {
        (2.0 * self.unit() - 1.0) * bound
    }
}
