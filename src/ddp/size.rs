//! Chooses the bucket size.

use super::layout::Limits;
use crate::limits::{BUCKET_BYTES_MAX, BUCKET_BYTES_MIN};

/// The size of buckets, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BucketSize {
    /// A size of up to 25 MiB that is chosen based on the number of ranks, the total size of all
    /// gradients, and the tuning table.
    ///
    /// The size is a trade-off between two kinds of cost. On the one hand, nothing can be sent
    /// until the first bucket is full, and the backward pass does not hide the communication of the
    /// last bucket. Both delays are shorter with smaller buckets. On the other hand, every bucket
    /// has a fixed cost for its messages, so using more buckets costs more. The chosen size
    /// minimizes the total time needed to fill one bucket and to communicate all buckets, assuming
    /// that the backward pass takes as long as the communication. This is the case in which overlap
    /// matters most. If communicating a bucket of s bytes takes a time of a + b·s, the optimal size
    /// for a total of B bytes is s = √(B·a / b).
    #[default]
    Auto,
    /// At most the given number of bytes. A parameter that is larger gets its own bucket. PyTorch's
    /// default is 25 MiB, with a first bucket of 1 MiB.
    Bytes(usize),
}

impl BucketSize {
    /// Returns the bucket size limits for gradients whose total size is `total_bytes`. `seconds`
    /// predicts how long an all-reduce of a given number of bytes takes.
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

/// Ratio between the size of the other buckets and the size of the first bucket. The first bucket
/// is smaller so that communication starts early.
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
mod tests;
