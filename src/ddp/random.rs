//! Computes random numbers from values that are stored in checkpoints.
//!
//! All functions use 64-bit integer arithmetic and return the same numbers on every platform. They
//! must not change: a run that resumes from an old checkpoint must continue with the same numbers.

/// Increment of SplitMix64: 2⁶⁴ divided by the golden ratio, rounded to an odd number.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
/// Constant that is combined with the seed of the shuffles, so that they do not use the same random
/// numbers as rank streams with the same seed.
const SHUFFLE: u64 = 0x5348_5546_464C_4521;
/// Number of bits that are reserved for the rank when the step and the rank are combined.
const RANK_BITS: u32 = 20;

/// Applies the SplitMix64 finalizer. Changing any bit of the input changes each bit of the output
/// with a probability of one half, and different inputs have different outputs.
///
/// Source: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators" (OOPSLA 2014), with
/// the constants of Stafford's variant 13.
fn mix(word: u64) -> u64 {
    let word = (word ^ word >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let word = (word ^ word >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ word >> 31
}

/// Returns the seed for a rank's random numbers in a step, such as those for dropout or data
/// augmentation.
///
/// Use it to seed a random number generator at the start of each step. After a restart, the step
/// then draws the same numbers again, so you do not have to save the generator's state.
///
/// The returned seed is `mix(mix(seed + G) ^ (step rotated left by 20) ^ rank)`, where `mix` is the
/// SplitMix64 finalizer and `G` is the SplitMix64 increment. For the same `seed`, different pairs
/// of step and rank give different results if there are fewer than 2²⁰ ranks and fewer than 2⁴⁴
/// steps.
///
/// ```
/// use ringtree::ddp::stream_seed;
/// let (seed, step, rank) = (42, 1000, 3);
/// assert_eq!(stream_seed(seed, step, rank), stream_seed(seed, step, rank));
/// assert_ne!(stream_seed(seed, step, rank), stream_seed(seed, step, 2));
/// assert_ne!(stream_seed(seed, step, rank), stream_seed(seed, 1001, rank));
/// ```
#[must_use]
pub fn stream_seed(seed: u64, step: u64, rank: usize) -> u64 {
    mix(mix(seed.wrapping_add(GOLDEN)) ^ step.rotate_left(RANK_BITS) ^ rank as u64)
}

/// Returns the integers in 0..`length` in an order determined by `seed` and `epoch`. Uses the
/// Fisher–Yates algorithm from the last position down (Durstenfeld's version) with SplitMix64.
pub(super) fn permutation(length: usize, seed: u64, epoch: u64) -> Vec<usize> {
    let mut generator = SplitMix64(mix(mix(seed ^ SHUFFLE).wrapping_add(epoch)));
    let mut order: Vec<_> = (0..length).collect();
    for last in (1..length).rev() {
        order.swap(last, generator.below(last as u64 + 1) as usize);
    }
    order
}

/// Fills `numbers` with values from −1 (inclusive) to 1 (exclusive). The values are uniformly
/// distributed and are determined by `seed` and `name`.
pub(super) fn fill_uniform(numbers: &mut [f32], seed: u64, name: &str) {
    let named = |state: u64, byte: u8| mix(state.wrapping_add(u64::from(byte) + 1));
    let mut generator = SplitMix64(name.bytes().fold(mix(seed), named));
    for number in numbers {
        // Use the highest 24 bits, because an f32 represents 24 bits exactly.
        let fraction = (generator.next() >> 40) as f32 / (1 << 24) as f32;
        *number = 2.0 * fraction - 1.0;
    }
}

/// The SplitMix64 generator of Steele, Lea and Flood (OOPSLA 2014). The field is its state.
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// Returns a number below `bound`. All such numbers are equally likely. `bound` must not be 0.
    ///
    /// Source: Lemire, "Fast Random Integer Generation in an Interval" (ACM TOMACS 2019).
    fn below(&mut self, bound: u64) -> u64 {
        loop {
            let product = u128::from(self.next()) * u128::from(bound);
            // Reject products whose low half is below 2⁶⁴ mod `bound`. Each result is then produced
            // by the same number of products.
            if product as u64 >= bound.wrapping_neg() % bound {
                return (product >> 64) as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests;
