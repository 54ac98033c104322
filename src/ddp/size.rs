//! How large a bucket is.

use super::layout::Limits;
use crate::limits::{BUCKET_BYTES_MAX, BUCKET_BYTES_MIN};

/// How many bytes of gradients travel together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BucketSize {
    /// From the number of ranks, the bytes of all gradients and the tuning table; never above
    /// 25 MiB.
    ///
    /// Two costs pull at it. Nothing can be sent before the first bucket is full, and nothing hides
    /// the last one: both shrink with the bucket. Every bucket pays for its messages: that grows
    /// with the number of buckets. The size taken is the one for which filling one bucket plus
    /// communicating all of them takes least, where backward takes as long as communication, which
    /// is when overlap matters most. If a bucket of s bytes takes a + b·s, of B bytes in all, that
    /// is s = √(B·a / b).
    #[default]
    Auto,
    /// At most this many bytes (a larger parameter has a bucket to itself). PyTorch's default is
    /// 25 MiB, with a first bucket of 1 MiB.
    Bytes(usize),
}

impl BucketSize {
    /// The limits, where all gradients have `total_bytes` and `seconds` predicts the all-reduce of
    /// some bytes.
    pub(super) fn limits(self, total_bytes: usize, seconds: impl Fn(usize) -> f64) -> Limits {
        let bytes = match self {
            Self::Bytes(bytes) => bytes.max(1),
            Self::Auto => automatic(total_bytes, seconds),
        };
        Limits {
            first_bytes: (bytes / FIRST_BUCKET_SHARE).max(1),
            bytes,
        }
    }
}

/// The first bucket is this much smaller than the others, so that the links start early.
const FIRST_BUCKET_SHARE: usize = 4;

fn automatic(total_bytes: usize, seconds: impl Fn(usize) -> f64) -> usize {
    let total = total_bytes.max(1);
    let time = |bytes: usize| (1.0 + (total as f64 / bytes as f64).max(1.0)) * seconds(bytes);
    let sizes = std::iter::successors(Some(BUCKET_BYTES_MIN), |size| Some(size * 2));
    sizes
        .take_while(|size| *size < BUCKET_BYTES_MAX)
        .chain([BUCKET_BYTES_MAX])
        .min_by(|one, other| time(*one).total_cmp(&time(*other)))
        .unwrap_or(BUCKET_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_automatic_size_follows_the_square_root_and_keeps_within_bounds() {
        let link = |a: f64, b: f64| move |bytes: usize| a + b * bytes as f64;
        // 40 MB, 0.5 ms a collective, 1 Gbit/s: the square root is 1.58 MB.
        let bytes = automatic(40_000_000, link(0.5e-3, 8e-9));
        assert!((1 << 20..=2 << 20).contains(&bytes), "{bytes}");
        // Four times the model or the latency: twice the bucket.
        assert_eq!(automatic(160_000_000, link(0.5e-3, 8e-9)), 2 * bytes);
        assert_eq!(automatic(40_000_000, link(2e-3, 8e-9)), 2 * bytes);
        assert_eq!(automatic(40_000_000, link(10.0, 8e-9)), BUCKET_BYTES_MAX);
        assert_eq!(automatic(40_000_000, link(0.0, 8e-9)), BUCKET_BYTES_MIN);
        assert_eq!(automatic(0, link(0.5e-3, 8e-9)), BUCKET_BYTES_MIN);
    }
}
