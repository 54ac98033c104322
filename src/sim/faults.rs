//! Injects faults into a simulated network, at times that are determined by a seed.

use std::time::Duration;

/// The faults that a network injects. By default, no faults are injected.
///
/// ```
/// use ringtree::sim::{Faults, World};
/// use std::time::Duration;
/// let mut world = World::new(3);
/// world.network.faults = Faults {
///     delay_max: Duration::from_millis(1),
///     short_io: true,
///     deaths: vec![(2, Duration::ZERO)],
///     ..Faults::default()
/// };
/// let ends = world.run(|comm| comm.barrier());
/// let error = ends[0].clone().unwrap_err().to_string();
/// assert!(error.contains("rank 2"), "{error}");
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults {
    /// Maximum random delay of each packet and of each control message. The order is preserved
    /// within a connection, but not across connections.
    pub delay_max: Duration,
    /// Probability, between 0 and 1, that a rank stalls when an event reaches it.
    pub stall_probability: f64,
    /// Maximum random duration of a stall. During a stall, the rank is not scheduled.
    pub stall_max: Duration,
    /// If `true`, each read or write transfers only a random part of the bytes that it could
    /// transfer.
    pub short_io: bool,
    /// Ranks whose processes die, each with the virtual time at which it dies.
    pub deaths: Vec<(usize, Duration)>,
}

impl Faults {
    /// Draws the delay of the next packet, in nanoseconds.
    pub(crate) fn delay_ns(&self, chance: &mut SplitMix64) -> u64 {
        match nanoseconds(self.delay_max) {
            0 => 0,
            most => chance.below(most.saturating_add(1)),
        }
    }

    /// Draws how long, in nanoseconds, a rank stalls when an event reaches it. Returns `None` if
    /// the rank does not stall.
    pub(crate) fn stall_ns(&self, chance: &mut SplitMix64) -> Option<u64> {
        if self.stall_probability <= 0.0 || self.stall_max.is_zero() {
            return None;
        }
        let stalls = chance.unit() < self.stall_probability;
        stalls.then(|| 1 + chance.below(nanoseconds(self.stall_max)))
    }

    /// Draws how many of `bytes` bytes a read or write transfers. The result is at least 1 unless
    /// `bytes` is 0.
    pub(crate) fn accepted_bytes(&self, bytes: usize, chance: &mut SplitMix64) -> usize {
        if !self.short_io || bytes < 2 || chance.below(2) == 0 {
            return bytes;
        }
        1 + chance.below(bytes as u64) as usize
    }
}

/// Converts a duration to nanoseconds. Saturates at 584 years.
pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A small seeded random number generator (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
/// Generators, OOPSLA 2014). It is good enough for shuffling events, and nothing that must stay
/// secret depends on it.
#[derive(Clone, Debug)]
pub struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    /// Creates a generator from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        SplitMix64 { state: seed }
    }

    /// Returns the next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// Returns a random number below `bound`, which must not be 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a random number in [0, 1).
    fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests;
