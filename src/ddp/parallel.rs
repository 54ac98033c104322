//! Averages a model's gradients across all ranks while the backward pass is running.

use super::agree::{broadcast_entries, compare};
use super::carrier::Carrier;
use super::flight::Content;
use super::hooks::{BucketInfo, Hook, Plain};
use super::layout::{Bucket, Layout, Limits};
use super::options::{NonFinite, Options};
use super::parameter::Parameter;
use super::readiness::Readiness;
use super::statistics::BucketStatistics;
use super::values::Values;
use crate::comm::Communicator;
use crate::comm::many::packed;
use crate::comm::work::Work;
use crate::dtype::{Dtype, Element};
use crate::error::{Error, Result};
use crate::plan::{Algorithm, Collective};
use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

/// Phase of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The averages can be read. The next report begins a new step.
    Averaged,
    /// Gradients are being reported.
    Collecting,
}

/// The gradients of a model's parameters, averaged across all ranks.
///
/// Register the parameters once. In every step, report gradients in any order while the backward
/// pass is running. Full buckets are sent while the backward pass continues. [`DataParallel::wait`]
/// ends the step. After that, every rank can read the same averages.
///
/// ```
/// use ringtree::ddp::{DataParallel, Options};
///
/// let ends = ringtree::simulate(4, |comm| {
///     let parameters = [("weight", 6), ("bias", 2)]; // f32 values
///     let mut model = DataParallel::new(comm, parameters, Options::new())?;
///     let mut weights = vec![comm.rank() as f32; 6];
///     model.broadcast(&mut [&mut weights])?; // every rank starts with rank 0's
///     for _step in 0..3 {
///         model.report("bias", &[comm.rank() as f32; 2])?; // in the order of backward
///         model.report("weight", &[1.0f32; 6])?;
///         model.wait()?;
///         let gradient = model.gradient::<f32>("weight")?.expect("it was reported");
///         weights.iter_mut().zip(gradient).for_each(|(weight, slope)| *weight -= 0.1 * slope);
///     }
///     assert_eq!(model.gradient::<f32>("bias")?, Some(&[1.5, 1.5][..]));
///     Ok::<_, ringtree::Error>(weights)
/// });
/// assert!(ends.iter().all(|weights| *weights == ends[0]));
/// # assert!(ends[0].is_ok());
/// ```
pub struct DataParallel {
    /// One communicator for each stage of the hook. The first one is also used for everything else.
    pub(super) comms: Vec<Communicator>,
    pub(super) parameters: Vec<Parameter>,
    /// Index of each parameter, by name.
    pub(super) numbers: HashMap<String, usize>,
    limits: Limits,
    pub(super) layout: Layout,
    pub(super) infos: Vec<BucketInfo>,
    /// Best algorithm for each bucket's all-reduce when all buckets are in flight, indexed by
    /// bucket. `None` lets the call choose an algorithm.
    pub(super) algorithms: Vec<Option<Algorithm>>,
    pub(super) options: Options,
    pub(super) carrier: Option<Box<dyn Carrier>>,
    pub(super) contents: Vec<Content>,
    pub(super) readiness: Readiness,
    pub(super) phase: Phase,
    /// `true` if an optimizer has used the last averages, or if there are no averages yet.
    pub(super) is_spent: bool,
    /// `true` if all ranks had the averages of the last step but rejected the step for the same
    /// reason.
    pub(super) is_refused: bool,
    pub(super) is_synchronising: bool,
    /// For each parameter, `true` if this rank reported a gradient for it in this step. After the
    /// commit, `true` if any rank did.
    pub(super) is_used: Vec<bool>,
    /// Index of the first parameter, in launch order, whose gradient is not finite on this rank in
    /// this step.
    pub(super) own_non_finite: Option<usize>,
    /// Rank and parameter index of a non-finite gradient in the last step.
    pub(super) found_non_finite: Option<(usize, usize)>,
    pub(super) skipped: u64,
    /// Norm of the last step's averages before clipping.
    pub(super) norm: Option<f64>,
    /// All-reduce in flight that counts the ranks that still have data. Used only with
    /// [`Options::uneven_data`].
    pub(super) active: Option<Work<Vec<u32>>>,
    pub(super) steps: u64,
    /// Number of commits since this model was created. Loading a checkpoint sets `steps` but not
    /// this field.
    pub(super) commits: u64,
    pub(super) exposed: Duration,
    pub(super) order: Vec<usize>,
    /// Parameter order to adopt when the next step begins.
    pub(super) next_order: Option<Vec<usize>>,
    pub(super) order_since: Option<u64>,
    pub(super) statistics: Vec<BucketStatistics>,
    /// Time at which the previous bucket became full or, before the first one is full, the time at
    /// which the backward pass began.
    pub(super) full_at: Option<Duration>,
    pub(super) failure: Option<Error>,
}

/// Methods for registering parameters and accessing the state.
impl DataParallel {
    /// Registers `parameters`, which should be listed in the order in which the forward pass uses
    /// them.
    ///
    /// All ranks must call this function with the same parameters and options, and in the same
    /// order relative to their other calls on `comm`.
    ///
    /// # Errors
    /// In addition to the [errors that all calls share](crate::Communicator#errors), returns
    /// [`ErrorKind::Usage`](crate::ErrorKind::Usage) if a parameter is not floating-point, if two
    /// parameters have the same name, or if an option is invalid. Returns
    /// [`ErrorKind::Mismatch`](crate::ErrorKind::Mismatch) if ranks pass different parameters or
    /// options. The message names the first difference.
    pub fn new<P: Into<Parameter>>(
        comm: &Communicator,
        parameters: impl IntoIterator<Item = P>,
        options: Options,
    ) -> Result<Self> {
        let parameters = parameters.into_iter().map(Into::into).collect();
        Self::register(comm, parameters, options, None)
    }

    pub(super) fn register(
        comm: &Communicator,
        parameters: Vec<Parameter>,
        options: Options,
        carrier: Option<Box<dyn Carrier>>,
    ) -> Result<Self> {
        check_options(&options, carrier.is_some())?;
        let numbers = numbers_of(&parameters)?;
        let lines = options.lines(carrier.is_some());
        let named = parameters.iter().map(|one| format!("parameter {one}"));
        compare(comm, &lines.chain(named).collect::<Vec<_>>())?;
        let stages = 0..options.hook.stages().max(1);
        let comms = stages.map(|stage| stage_comm(comm, stage));
        let comms = comms.collect::<Result<_>>()?;
        let total_bytes = parameters.iter().map(Parameter::bytes).sum();
        let limits = options.size.limits(total_bytes, |bytes| {
            let choice = comm.plan_for(Collective::AllReduce, bytes / 4, Dtype::F32, 0);
            choice.map_or(f64::INFINITY, |choice| choice.predicted_s)
        });
        let order: Vec<_> = (0..parameters.len()).rev().collect();
        let mut this = Self {
            comms,
            layout: Layout::new(&parameters, &order, limits),
            is_used: vec![false; parameters.len()],
            parameters,
            numbers,
            limits,
            infos: Vec::new(),
            algorithms: Vec::new(),
            options,
            carrier,
            own_non_finite: None,
            found_non_finite: None,
            skipped: 0,
            norm: None,
            contents: Vec::new(),
            readiness: Readiness::default(),
            phase: Phase::Averaged,
            is_spent: true,
            is_refused: false,
            is_synchronising: true,
            active: None,
            steps: 0,
            commits: 0,
            exposed: Duration::ZERO,
            order,
            next_order: None,
            order_since: None,
            statistics: Vec::new(),
            full_at: None,
            failure: None,
        };
        this.lay_out();
        Ok(this)
    }

    /// Lays out the buckets for the parameter order `self.order`, and resets everything that is
    /// stored per bucket.
    pub(super) fn lay_out(&mut self) {
        self.layout = Layout::new(&self.parameters, &self.order, self.limits);
        let comm = &self.comms[0];
        let part = |number: &usize| {
            let range = self.layout.places[*number].range.clone();
            (range, self.parameters[*number].clone())
        };
        let info = |(index, bucket): (usize, &Bucket)| BucketInfo {
            index,
            rank: comm.rank(),
            world_size: comm.world_size(),
            count: bucket.count,
            parameters: bucket.parameters.iter().map(part).collect(),
        };
        self.infos = self.layout.buckets.iter().enumerate().map(info).collect();
        let buckets = self.layout.buckets.iter();
        let among = |one: &Bucket| comm.algorithm_among(one.count, one.dtype, buckets.len());
        self.algorithms = buckets.clone().map(among).collect();
        let content = |bucket: &Bucket| match self.carrier {
            Some(_) => Content::Carried,
            None => Content::Here(Values::zeros(bucket.dtype, bucket.count)),
        };
        self.contents = self.layout.buckets.iter().map(content).collect();
        let statistics = |bucket: &Bucket| BucketStatistics {
            bytes: bucket.bytes,
            parameters: bucket.parameters.len(),
            ..BucketStatistics::default()
        };
        self.statistics = self.layout.buckets.iter().map(statistics).collect();
    }

    /// Returns the parameters in the order in which they were registered.
    #[must_use]
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// Returns the buckets in launch order.
    #[must_use]
    pub fn buckets(&self) -> &[Bucket] {
        &self.layout.buckets
    }

    /// Returns the range of elements in `bucket` whose averages this rank receives.
    pub(super) fn own_range(&self, bucket: &Bucket) -> Range<usize> {
        match self.options.is_sharded {
            true => self.comms[0].block(bucket.count),
            false => 0..bucket.count,
        }
    }

    /// Replaces `weights` on all ranks with the weights of rank 0.
    ///
    /// All ranks must pass the same number of slices, with the same lengths. You can also use this
    /// method for model buffers, such as running means.
    ///
    /// # Errors
    /// In addition to the [errors that all calls share](crate::Communicator#errors), returns
    /// [`ErrorKind::Mismatch`](crate::ErrorKind::Mismatch) if the number of slices or their lengths
    /// differ between ranks. The message names the first difference.
    pub fn broadcast<T: Element>(&self, weights: &mut [&mut [T]]) -> Result<()> {
        // `packed` can send several slices in one buffer. `broadcast` then checks only their total
        // length, so compare the individual lengths here.
        let length =
            |(at, one): (usize, &&mut [T])| format!("slice {at} of {} elements", one.len());
        let mut lengths = vec![format!("{} slices", weights.len())];
        lengths.extend(weights.iter().enumerate().map(length));
        compare(&self.comms[0], &lengths)?;
        packed(weights, |flat| self.comms[0].broadcast(flat, 0))
    }

    /// Sets the parameter order that determines the buckets from the next step on. `since` is the
    /// first step that uses this order.
    pub(super) fn take_order(&mut self, order: Vec<usize>, since: u64) -> Result<()> {
        let mut sorted = order.clone();
        sorted.sort_unstable();
        if !sorted.iter().copied().eq(0..self.parameters.len()) {
            return Err(Error::usage(format!(
                "the bucket order must name each of the {} parameters exactly once; check that the \
                 checkpoint belongs to this model",
                self.parameters.len()
            )));
        }
        self.next_order = Some(order);
        self.order_since = Some(since);
        Ok(())
    }

    /// Like [`restore_hook`](super::state::restore_hook), but if the hook rejects its state, only
    /// this rank returns an error.
    pub(super) fn take_hook_state(&mut self, state: Vec<(String, Vec<f32>)>) -> Result<()> {
        let is_shared = |entry: &(String, Vec<f32>)| self.options.hook.is_shared(&entry.0);
        let (shared, mut own): (Vec<_>, Vec<_>) = state.into_iter().partition(is_shared);
        own.extend(broadcast_entries(&self.comms[0], shared)?);
        let name = self.options.hook.name();
        let restored = self.options.hook.restore(own);
        let wrong = |what| format!("cannot restore the state of the hook {name}: {what}");
        restored.map_err(|what| Error::usage(wrong(what)))
    }

    /// Returns `true` if no gradient has been reported since the last step ended.
    pub(super) fn is_between_steps(&self) -> bool {
        self.phase == Phase::Averaged
    }

    /// Returns the number of completed steps, including skipped steps.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Returns the indices of the parameters for which no rank reported a gradient in the last
    /// step.
    ///
    /// ```
    /// use ringtree::{Dtype, ddp::{DataParallel, Options, Parameter}};
    /// let ends = ringtree::simulate(2, |comm| {
    ///     let names = ["used", "left out"];
    ///     let parameters = names.map(|name| Parameter::new(name, &[1], Dtype::F32));
    ///     let options = Options::new().allow_unused();
    ///     let mut model = DataParallel::new(comm, parameters, options)?;
    ///     model.report(0, &[1.0f32])?;
    ///     model.wait()?;
    ///     Ok::<_, ringtree::Error>(model.unused())
    /// });
    /// assert_eq!(ends, [Ok(vec![1]), Ok(vec![1])]);
    /// ```
    #[must_use]
    pub fn unused(&self) -> Vec<usize> {
        let numbers = 0..self.is_used.len();
        numbers.filter(|number| !self.is_used[*number]).collect()
    }

    /// Returns the number of steps that were skipped because of [`NonFinite::Skip`].
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Returns the lowest rank that had a non-finite gradient in the last step, together with the
    /// index of the first parameter, in bucket order, that had such a gradient on that rank.
    ///
    /// This method requires [`NonFinite::Skip`] or [`NonFinite::Fail`].
    #[must_use]
    pub fn non_finite(&self) -> Option<(usize, usize)> {
        self.found_non_finite
    }

    /// Returns how long the call to `wait` took in the last step. This includes all communication
    /// that the backward pass did not hide, and the commit.
    #[must_use]
    pub fn exposed(&self) -> Duration {
        self.exposed
    }

    /// Aborts training on all ranks because of a failure that only this rank knows about.
    ///
    /// Every call in flight and every subsequent call then returns `cause`, or an earlier error if
    /// there was one. If you do not call this method, the other ranks wait for this rank until they
    /// time out.
    pub fn abort(&mut self, cause: &Error) {
        self.failure.get_or_insert_with(|| cause.clone());
        self.comms.iter().for_each(|comm| comm.abort(cause));
    }

    /// Returns the timing of each bucket in the last step.
    #[must_use]
    pub fn statistics(&self) -> &[BucketStatistics] {
        &self.statistics
    }
}

/// Creates the communicator for a stage of the hook.
fn stage_comm(comm: &Communicator, stage: usize) -> Result<Communicator> {
    let name = match stage {
        0 => "gradients".to_owned(),
        later => format!("gradients, stage {later}"),
    };
    Ok(comm.duplicate()?.with_name(&name))
}

fn check_options(options: &Options, is_carried: bool) -> Result<()> {
    let looks = options.non_finite != NonFinite::Ignore;
    if is_carried && (looks || options.clip.is_some() || options.is_sharded) {
        return Err(Error::usage(
            "`non_finite`, `clip_norm` and `sharded` require gradients in host memory; remove \
             these options",
        ));
    }
    if options.is_sharded && options.hook.name() != Plain.name() {
        return Err(Error::usage(format!(
            "the hook {} needs complete averages, but `sharded` gives each rank only its share; \
             remove one of the two",
            options.hook.name()
        )));
    }
    match options.clip {
        Some(longest) if !(longest > 0.0 && longest.is_finite()) => Err(Error::usage(format!(
            "`clip_norm` is {longest}, but it must be positive and finite; pass a valid norm"
        ))),
        _ => Ok(()),
    }
}

/// Checks the parameters, and returns a map from parameter names to indices.
fn numbers_of(parameters: &[Parameter]) -> Result<HashMap<String, usize>> {
    let mut numbers = HashMap::new();
    for (number, parameter) in parameters.iter().enumerate() {
        if !parameter.dtype.is_float() {
            return Err(Error::usage(format!(
                "parameter {parameter} is not floating-point; register only floating-point \
                 parameters"
            )));
        }
        if numbers.insert(parameter.name.clone(), number).is_some() {
            return Err(Error::usage(format!(
                "two parameters are named {}; give each parameter a unique name",
                parameter.name
            )));
        }
    }
    Ok(numbers)
}

impl std::fmt::Debug for DataParallel {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "DataParallel({} parameters in {} buckets, step {})",
            self.parameters.len(),
            self.layout.buckets.len(),
            self.steps
        )
    }
}
