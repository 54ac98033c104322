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
    /// [`DataParallel::wait`](super::DataParallel::wait) fails on all ranks, with an error of the
    /// kind [`Usage`](crate::ErrorKind::Usage). From a checkpoint the same numbers would come
    /// again: a program that then ends with exit code 2 is not restarted by `ringtree run`.
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
    pub(super) clip: Option<f64>,
    pub(super) is_sharded: bool,
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
            clip: None,
            is_sharded: false,
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
            clip,
            is_sharded,
        } = self;
        vec![
            format!("the bucket size {size:?}"),
            format!("the hook {} of {} stages", hook.name(), hook.stages()),
            format!("uneven data: {has_uneven_data}"),
            format!("unused parameters allowed: {allows_unused}"),
            format!("gradients that are not finite: {non_finite:?}"),
            format!("clipping by the norm: {clip:?}"),
            format!("a share of the averages on each rank: {is_sharded}"),
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

    /// A step may leave parameters without a gradient, on all ranks or on some, which is an error
    /// otherwise. Where all ranks leave a parameter out, it has no gradient:
    /// [`DataParallel::unused`](super::DataParallel::unused) lists such ones. Where some do, it
    /// counts as zero on these. Ranks in [`DataParallel::join`](super::DataParallel::join) leave
    /// all out, with or without this.
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

    /// Averaged gradients that are longer than `longest`, over all parameters together, are
    /// shortened to that Euclidean norm before anyone reads them;
    /// [`DataParallel::gradient_norm`](super::DataParallel::gradient_norm) says what it was. Every
    /// rank sums the squares of 1/n of the averages, and one small all-gather a step agrees on the
    /// norm; another pass is taken only where there is something to shorten. A norm that is
    /// infinite or not a number shortens nothing, and is treated as
    /// [`Options::non_finite`] says. The gradients must lie in host memory.
    ///
    /// ```
    /// use ringtree::{Dtype, ddp::{DataParallel, Options, Parameter}};
    /// let ends = ringtree::simulate(2, |comm| {
    ///     let parameters = vec![Parameter::new("weight", &[2], Dtype::F32)];
    ///     let mut model = DataParallel::new(comm, parameters, Options::new().clip_norm(1.0))?;
    ///     model.report(0, &[3.0f32, 4.0])?;
    ///     model.wait()?;
    ///     let gradient = model.gradient::<f32>(0)?.map(<[_]>::to_vec);
    ///     Ok::<_, ringtree::Error>((model.gradient_norm(), gradient))
    /// });
    /// assert_eq!(ends, vec![Ok((Some(5.0), Some(vec![0.6, 0.8]))); 2]);
    /// ```
    #[must_use]
    pub fn clip_norm(self, longest: f64) -> Self {
        Self {
            clip: Some(longest),
            ..self
        }
    }

    /// Each rank gets its share of the averages alone, by a reduce-scatter instead of an
    /// all-reduce, and updates that share of the weights: an [`Optimizer`](super::Optimizer) does
    /// so, and gives all ranks all weights again. Its state then takes 1/n of the memory (the
    /// first stage of ZeRO: Rajbhandari et al. 2020). Not with a hook, and for gradients in host
    /// memory.
    #[must_use]
    pub fn sharded(self) -> Self {
        Self {
            is_sharded: true,
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
