//! Generates random numbers that depend only on a seed and a purpose. They are the same on every
//! machine and after every restart, so no state needs to be saved.

use ringtree::ddp::stream_seed;

/// A stream of random numbers: a counter whose values are mixed.
pub(crate) struct Stream {
    seed: u64,
    drawn: u64,
}

impl Stream {
    /// Creates the stream for `seed` and `purpose`.
    pub(crate) fn new(seed: u64, purpose: &str) -> Self {
        let fold = |seed, byte: u8| stream_seed(seed, u64::from(byte), 0);
        Self {
            seed: purpose.bytes().fold(seed, fold),
            drawn: 0,
        }
    }

    /// Creates a separate stream for `key`. It does not depend on the numbers that were drawn from
    /// this stream.
    pub(crate) fn of(&self, key: u64) -> Self {
        Self {
            seed: stream_seed(self.seed, key, 1),
            drawn: 0,
        }
    }

    /// Returns a number from 0 (inclusive) to 1 (exclusive).
    pub(crate) fn unit(&mut self) -> f64 {
        let bits = stream_seed(self.seed, self.drawn, 0);
        self.drawn += 1;
        (bits >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns a number from the standard normal distribution (Box, Muller, 1958).
    pub(crate) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seed_and_purpose_has_a_separate_stream() {
        let keys = [
            (0, "a"),
            (1, "a"),
            (0, "b"),
            (0, "ab"),
            (0, "ba"),
            (0, "a\0"),
        ];
        let of = |(seed, purpose)| Stream::new(seed, purpose).unit().to_bits();
        let firsts: std::collections::BTreeSet<_> = keys.into_iter().map(of).collect();
        assert_eq!(firsts.len(), keys.len());
    }

    #[test]
    fn every_key_has_a_separate_stream() {
        let mut stream = Stream::new(3, "a");
        let drawn = std::array::from_fn::<_, 3, _>(|_| stream.unit().to_bits());
        let first = |key| Stream::new(3, "a").of(key).unit().to_bits();
        let all = drawn.into_iter().chain((0..3).map(first));
        let all: std::collections::BTreeSet<_> = all.collect();
        assert_eq!(all.len(), 6);
        assert_eq!(stream.of(2).unit().to_bits(), first(2));
    }

    #[test]
    fn normal_numbers_have_expected_mean_and_spread() {
        let mut stream = Stream::new(7, "test");
        let numbers: Vec<f64> = (0..20_000).map(|_| stream.normal()).collect();
        let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
        let variance = numbers.iter().map(|x| x * x).sum::<f64>() / numbers.len() as f64;
        assert!(
            mean.abs() < 0.03 && (variance - 1.0).abs() < 0.05,
            "{mean} {variance}"
        );
    }
}
