//! A small random generator: the same seed gives the same numbers on every machine.

/// The finaliser of SplitMix64 (Steele, Lea, Flood, 2014): scatters the bits of `value`.
pub(crate) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

/// SplitMix64: a counter, mixed.
pub(crate) struct Random {
    state: u64,
}

impl Random {
    /// A generator whose numbers depend on `seed` alone.
    pub(crate) fn new(seed: u64) -> Self {
        Random { state: mix(seed) }
    }

    /// The next 64 random bits.
    pub(crate) fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.state)
    }

    /// A number at or above 0 and below 1, of 24 random bits.
    pub(crate) fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// A number between `-bound` and `bound`.
    pub(crate) fn within(&mut self, bound: f32) -> f32 {
        (2.0 * self.unit() - 1.0) * bound
    }
}
