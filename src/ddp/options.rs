//! What the trainer may choose.

use super::hooks::{Hook, Plain};
use super::size::BucketSize;

/// What is done with a step in which a gradient of a rank is infinite or not a number. Looked at is
/// what each rank reports, before it is averaged; a sum that overflows is not found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NonFinite {
    /// Nothing looks: the averages are not finite either, on all ranks.
    #[default]
    Ignore,
    /// No parameter has a gradient in this step, on any rank, and
    /// [`DataParallel::skipped`](super::DataParallel::skipped) counts it.
    Skip,
    /// [`DataParallel::wait`](super::DataParallel::wait) fails on all ranks.
    Fail,
}

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
    pub(super) allows_unused: bool,
    pub(super) non_finite: NonFinite,
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
            allows_unused: false,
            non_finite: NonFinite::Ignore,
        }
    }

    /// What all ranks must choose alike, in words.
    pub(super) fn lines(&self) -> Vec<String> {
        let Self {
            size,
            hook,
            has_uneven_data,
            allows_unused,
            non_finite,
        } = self;
        vec![
            format!("the bucket size {size:?}"),
            format!("the hook {} of {} stages", hook.name(), hook.stages()),
            format!("uneven data: {has_uneven_data}"),
            format!("unused parameters allowed: {allows_unused}"),
            format!("gradients that are not finite: {non_finite:?}"),
        ]
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

    /// A step may leave parameters without a gradient on all ranks, which is an error otherwise.
    /// They have no gradient then: [`DataParallel::unused`](super::DataParallel::unused) lists
    /// them. A parameter that some ranks leave out counts as zero there, with or without this.
    #[must_use]
    pub fn allow_unused(self) -> Self {
        Self {
            allows_unused: true,
            ..self
        }
    }

    /// What is done with a step in which a gradient of a rank is infinite or not a number. Looking
    /// takes one pass over the gradients, which must lie in host memory.
    ///
    /// ```
    /// use ringtree::Dtype;
    /// use ringtree::ddp::{DataParallel, NonFinite, Options, Parameter};
    /// let ends = ringtree::simulate(3, |comm| {
    ///     let parameters = vec![Parameter::new("weight", &[2], Dtype::F32)];
    ///     let options = Options::new().non_finite(NonFinite::Skip);
    ///     let mut model = DataParallel::new(comm, parameters, options)?;
    ///     let bad = if comm.rank() == 1 { f32::NAN } else { 1.0 };
    ///     model.report(0, &[1.0, bad])?;
    ///     model.wait()?;
    ///     assert_eq!(model.gradient::<f32>(0)?, None); // no rank updates its weights
    ///     Ok::<_, ringtree::Error>((model.skipped(), model.non_finite()))
    /// });
    /// assert_eq!(ends, vec![Ok((1, Some((1, 0)))); 3]); // rank 1, parameter 0
    /// ```
    #[must_use]
    pub fn non_finite(self, non_finite: NonFinite) -> Self {
        Self { non_finite, ..self }
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
