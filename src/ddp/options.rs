//! What the trainer may choose.

use super::hooks::{Hook, Plain};
use super::size::BucketSize;

/// How gradients are averaged. All ranks choose the same.
///
/// ```
/// use ringtree::ddp::{BucketSize, Options};
/// let options = Options::new().buckets(BucketSize::Bytes(1 << 20)).uneven_data();
/// # drop(options);
/// ```
pub struct Options {
    pub(super) size: BucketSize,
    pub(super) hook: Box<dyn Hook>,
    pub(super) has_uneven_data: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

impl Options {
    /// Buckets of automatic size, averaged as they are.
    #[must_use]
    pub fn new() -> Self {
        Self {
            size: BucketSize::Auto,
            hook: Box::new(Plain),
            has_uneven_data: false,
        }
    }

    /// How large buckets are.
    #[must_use]
    pub fn buckets(self, size: BucketSize) -> Self {
        Self { size, ..self }
    }

    /// What is done with f32 gradients.
    #[must_use]
    pub fn hook(self, hook: impl Hook + 'static) -> Self {
        Self {
            hook: Box::new(hook),
            ..self
        }
    }

    /// Ranks may run out of data before others do: every step starts with a small all-reduce, and
    /// a rank without data calls [`DataParallel::join`](super::DataParallel::join).
    #[must_use]
    pub fn uneven_data(self) -> Self {
        Self {
            has_uneven_data: true,
            ..self
        }
    }
}
