//! Options of [`DataParallel`](super::DataParallel).

use super::hooks::{Hook, Plain};
use super::size::BucketSize;

/// Treatment of steps in which a rank's gradient is infinite or NaN.
///
/// Each rank checks the gradients that it reports before they are averaged. An overflow in the sum
/// of the gradients is not detected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NonFinite {
    /// Gradients are not checked. If a gradient is not finite on one rank, its average is not
    /// finite on any rank.
    #[default]
    Ignore,
    /// The step is skipped, so no parameter has a gradient on any rank.
    /// [`DataParallel::skipped`](super::DataParallel::skipped) returns the number of such steps.
    Skip,
    /// [`DataParallel::wait`](super::DataParallel::wait) returns an error of kind
    /// [`ErrorKind::Usage`](crate::ErrorKind::Usage) on all ranks. If the job were restarted from a
    /// checkpoint, it would compute the same gradient again, so exit with code 2 to prevent
    /// `ringtree run` from restarting it.
    Fail,
}

/// Options for averaging gradients. Pass the same options on all ranks.
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
    /// Creates the default options, which have an automatic bucket size and no hook.
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

    /// Returns the options as human-readable lines, which the ranks compare.
    pub(super) fn lines(&self, is_carried: bool) -> impl Iterator<Item = String> {
        let hook = &self.hook;
        [
            format!("bucket size {:?}", self.size),
            format!("hook {} with {} stages", hook.name(), hook.stages()),
            format!("uneven data: {}", self.has_uneven_data),
            format!("unused parameters allowed: {}", self.allows_unused),
            format!("treatment of non-finite gradients: {:?}", self.non_finite),
            format!("maximum norm: {:?}", self.clip),
            format!("sharded averages: {}", self.is_sharded),
            format!("gradients in host memory: {}", !is_carried),
        ]
        .into_iter()
    }

    /// Sets the bucket size.
    #[must_use]
    pub fn buckets(self, size: BucketSize) -> Self {
        Self { size, ..self }
    }

    /// Sets the hook that processes the f32 gradients.
    #[must_use]
    pub fn hook(mut self, hook: impl Hook + 'static) -> Self {
        self.hook = Box::new(hook);
        self
    }

    /// Allows steps in which some or all ranks report no gradient for a parameter. Without this
    /// option, such a step fails with an error.
    ///
    /// If no rank reports a gradient for a parameter, the parameter has no gradient, and
    /// [`DataParallel::unused`](super::DataParallel::unused) lists it. If only some ranks report a
    /// gradient for a parameter, the gradient counts as zero on the other ranks. Ranks that have
    /// called [`DataParallel::join`](super::DataParallel::join) never report gradients, with or
    /// without this option.
    #[must_use]
    pub fn allow_unused(mut self) -> Self {
        self.allows_unused = true;
        self
    }

    /// Sets how to treat steps in which a rank's gradient is infinite or NaN.
    ///
    /// [`NonFinite::Skip`] and [`NonFinite::Fail`] require an additional pass over the gradients,
    /// which must be in host memory.
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

    /// Limits the Euclidean norm of the averaged gradient, computed over all parameters, to
    /// `longest`.
    ///
    /// If the gradient has a larger norm, it is scaled down to this norm before it can be read.
    /// [`DataParallel::gradient_norm`](super::DataParallel::gradient_norm) returns the norm before
    /// scaling. With n ranks, each rank sums the squares of 1/n of the averages, and one small
    /// all-gather per step exchanges these sums. A second pass over the averages is needed only if
    /// the gradient must be scaled. If the norm is infinite or NaN, the gradient is not scaled, and
    /// [`Options::non_finite`] applies. The gradients must be in host memory.
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
    pub fn clip_norm(mut self, longest: f64) -> Self {
        self.clip = Some(longest);
        self
    }

    /// Gives each rank only its share of the averages, which it uses to update its share of the
    /// weights.
    ///
    /// A reduce-scatter is used instead of the all-reduce. An [`Optimizer`](super::Optimizer)
    /// updates each rank's share and then distributes all weights to all ranks. With n ranks, the
    /// optimizer state takes 1/n of the memory on each rank (ZeRO stage 1: Rajbhandari et al.
    /// 2020). This option cannot be combined with hooks and requires that the gradients are in host
    /// memory.
    #[must_use]
    pub fn sharded(mut self) -> Self {
        self.is_sharded = true;
        self
    }

    /// Allows some ranks to run out of data before others.
    ///
    /// With this option, every step starts with a small additional all-reduce. A rank that has no
    /// data left calls [`DataParallel::join`](super::DataParallel::join).
    #[must_use]
    pub fn uneven_data(mut self) -> Self {
        self.has_uneven_data = true;
        self
    }
}
