//! The gradients of a model, averaged over ranks while backward runs.

use super::agree::{agree, broadcast_entries, compare};
use super::carrier::Carrier;
use super::flight::Flight;
use super::hooks::{BucketInfo, Hook, Plain};
use super::layout::{Bucket, Layout, Limits};
use super::options::{NonFinite, Options};
use super::parameter::Parameter;
use super::readiness::Readiness;
use super::statistics::BucketStatistics;
use super::values::Values;
use crate::comm::Communicator;
use crate::comm::work::Work;
use crate::dtype::{Dtype, Element};
use crate::error::{Error, Result};
use crate::plan::{Algorithm, Collective};
use std::time::Duration;

/// Where a bucket's gradients are.
pub(super) enum Content {
    Here(Values),
    Flying(Flight),
    /// The carrier knows.
    Carried,
    /// Lost to an error.
    Lost,
}

/// What may be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The averaged gradients of a step can be read; the next report begins another.
    Averaged,
    /// Gradients come in.
    Collecting,
}

/// The gradients of a model's parameters, averaged over all ranks.
///
/// The trainer registers its parameters once. In every step it reports gradients, in any order,
/// while backward runs; full buckets start their way at once. [`DataParallel::wait`] ends the
/// step, and every rank reads the same averages.
///
/// ```
/// use ringtree::Dtype;
/// use ringtree::ddp::{DataParallel, Options, Parameter};
///
/// let ends = ringtree::simulate(4, |comm| {
///     let parameters = vec![
///         Parameter::new("weight", &[2, 3], Dtype::F32),
///         Parameter::new("bias", &[2], Dtype::F32),
///     ];
///     let mut model = DataParallel::new(comm, parameters, Options::new())?;
///     let mut weights = vec![comm.rank() as f32; 6];
///     model.broadcast(&mut [&mut weights])?; // every rank starts from rank 0's
///     for _step in 0..3 {
///         model.report(1, &[comm.rank() as f32; 2])?; // as backward makes them
///         model.report(0, &[1.0f32; 6])?;
///         model.wait()?;
///         let gradient = model.gradient::<f32>(0)?.expect("it was reported");
///         weights.iter_mut().zip(gradient).for_each(|(weight, slope)| *weight -= 0.1 * slope);
///     }
///     assert_eq!(model.gradient::<f32>(1)?, Some(&[1.5, 1.5][..]));
///     Ok::<_, ringtree::Error>(weights)
/// });
/// assert!(ends.iter().all(|weights| *weights == ends[0]));
/// # assert!(ends[0].is_ok());
/// ```
pub struct DataParallel {
    /// One for each stage of the hook; the first for everything else, too.
    pub(super) comms: Vec<Communicator>,
    pub(super) parameters: Vec<Parameter>,
    limits: Limits,
    pub(super) layout: Layout,
    pub(super) infos: Vec<BucketInfo>,
    /// By bucket: what its all-reduce is best carried out by beside the others'.
    pub(super) algorithms: Vec<Option<Algorithm>>,
    pub(super) hook: Box<dyn Hook>,
    pub(super) carrier: Option<Box<dyn Carrier>>,
    pub(super) has_uneven_data: bool,
    pub(super) allows_unused: bool,
    pub(super) on_non_finite: NonFinite,
    pub(super) contents: Vec<Content>,
    pub(super) readiness: Readiness,
    pub(super) phase: Phase,
    /// Whether an optimizer has taken its step along the last averages, or there are none yet.
    pub(super) is_spent: bool,
    /// Whether all ranks had the gradients of the last step, and a reason not to use them.
    pub(super) is_refused: bool,
    pub(super) is_synchronising: bool,
    /// By parameter: whether a gradient came in this step; once averaged, whether on any rank.
    pub(super) is_used: Vec<bool>,
    /// The first parameter whose gradient of this step is not finite on this rank.
    pub(super) own_non_finite: Option<usize>,
    /// A rank and a parameter whose gradient of the last step was not finite.
    pub(super) found_non_finite: Option<(usize, usize)>,
    pub(super) skipped: u64,
    /// The norm that longer gradients are shortened to.
    pub(super) clip: Option<f64>,
    /// The norm of the last step's averages, before they were shortened.
    pub(super) norm: Option<f64>,
    /// Each rank gets its block of each bucket alone.
    pub(super) is_sharded: bool,
    /// The sum over ranks that have data, in a step that asks for it.
    pub(super) active: Option<Work<Vec<u32>>>,
    pub(super) steps: u64,
    /// Commits that this value has passed; not the steps, which a checkpoint may set.
    pub(super) commits: u64,
    pub(super) exposed: Duration,
    pub(super) order: Vec<usize>,
    /// The order from the next step on.
    pub(super) next_order: Option<Vec<usize>>,
    pub(super) order_since: Option<u64>,
    pub(super) statistics: Vec<BucketStatistics>,
    /// When the bucket before was full, or backward began.
    pub(super) full_at: Option<Duration>,
    pub(super) failure: Option<Error>,
}

/// Registering.
impl DataParallel {
    /// Registers `parameters`, the same on all ranks, in the order in which forward uses them. All
    /// ranks call it, in the order of their calls on `comm`.
    ///
    /// # Errors
    /// [`Error::usage`] for parameters that are not floating-point or share a name;
    /// [`Error::mismatch`] if ranks register different ones: it names the first; any other of
    /// `comm`'s.
    pub fn new(comm: &Communicator, parameters: Vec<Parameter>, options: Options) -> Result<Self> {
        Self::register(comm, parameters, options, None)
    }

    /// As [`DataParallel::new`], for gradients that `carrier` keeps and averages. They are averaged
    /// as they are, without a hook. All ranks have a carrier, or none has.
    ///
    /// # Errors
    /// Those of [`DataParallel::new`]; [`Error::usage`] for a hook; the carrier's.
    pub fn with_carrier(
        comm: &Communicator,
        parameters: Vec<Parameter>,
        options: Options,
        carrier: impl Carrier + 'static,
    ) -> Result<Self> {
        if options.hook.name() != Plain.name() {
            return Err(Error::usage(format!(
                "the hook {} is for gradients in host memory, but these lie elsewhere: choose none",
                options.hook.name()
            )));
        }
        let mut this = Self::register(comm, parameters, options, Some(Box::new(carrier)))?;
        if let Some(carrier) = &mut this.carrier {
            carrier.attach(&this.comms[0])?;
        }
        Ok(this)
    }

    fn register(
        comm: &Communicator,
        parameters: Vec<Parameter>,
        options: Options,
        carrier: Option<Box<dyn Carrier>>,
    ) -> Result<Self> {
        check_options(&options, carrier.is_some())?;
        check(&parameters)?;
        let mut lines = options.lines();
        lines.push(format!("gradients in host memory: {}", carrier.is_none()));
        lines.extend(parameters.iter().map(|one| format!("parameter {one}")));
        compare(comm, &lines)?;
        let Options {
            size,
            hook,
            has_uneven_data,
            allows_unused,
            non_finite,
            clip,
            is_sharded,
        } = options;
        let comms = (0..hook.stages().max(1))
            .map(|stage| own_comm(comm, stage))
            .collect::<Result<Vec<_>>>()?;
        let total_bytes = parameters.iter().map(Parameter::bytes).sum();
        let limits = size.limits(total_bytes, |bytes| {
            let elements = bytes / Dtype::F32.size();
            let preview = comm.preview(Collective::AllReduce, elements, Dtype::F32, 0);
            preview.map_or(f64::INFINITY, |(_, seconds)| seconds)
        });
        let order: Vec<_> = (0..parameters.len()).rev().collect();
        let mut this = Self {
            comms,
            layout: Layout::new(&parameters, &order, limits),
            is_used: vec![false; parameters.len()],
            parameters,
            limits,
            infos: Vec::new(),
            algorithms: Vec::new(),
            hook,
            carrier,
            has_uneven_data,
            allows_unused,
            on_non_finite: non_finite,
            own_non_finite: None,
            found_non_finite: None,
            skipped: 0,
            clip,
            norm: None,
            is_sharded,
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

    /// Makes the buckets of `self.order`.
    pub(super) fn lay_out(&mut self) {
        self.layout = Layout::new(&self.parameters, &self.order, self.limits);
        let comm = &self.comms[0];
        let info = |(index, bucket): (usize, &Bucket)| BucketInfo {
            index,
            rank: comm.rank(),
            world_size: comm.world_size(),
            count: bucket.count,
            parameters: bucket
                .parameters
                .iter()
                .map(|number| {
                    let range = self.layout.places[*number].range.clone();
                    (range, self.parameters[*number].clone())
                })
                .collect(),
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
            bytes: bucket.bytes(),
            parameters: bucket.parameters.len(),
            ..BucketStatistics::default()
        };
        self.statistics = self.layout.buckets.iter().map(statistics).collect();
    }

    /// The parameters, by number.
    #[must_use]
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// The buckets, in the order in which they are launched.
    #[must_use]
    pub fn buckets(&self) -> &[Bucket] {
        &self.layout.buckets
    }

    /// Replaces weights (or buffers, such as running means) by rank 0's. All ranks call it with as
    /// many, as long ones.
    ///
    /// # Errors
    /// Any of [`Error`]; [`Error::mismatch`] names lengths that differ.
    pub fn broadcast<T: Element>(&self, weights: &mut [&mut [T]]) -> Result<()> {
        // Slices travel together, so an equal sum of lengths would hide that they differ.
        let length =
            |(at, one): (usize, &&mut [T])| format!("slice {at} of {} elements", one.len());
        let mut lengths = vec![format!("{} slices", weights.len())];
        lengths.extend(weights.iter().enumerate().map(length));
        compare(&self.comms[0], &lengths)?;
        let flat_elements = crate::limits::BUCKET_BYTES_MAX / size_of::<T>();
        let mut rest = weights;
        while !rest.is_empty() {
            // As many as fit together, or one.
            let mut elements = 0;
            let fitting = rest.iter().take_while(|one| {
                elements += one.len();
                elements <= flat_elements
            });
            let together = fitting.count().max(1);
            let (now, later) = rest.split_at_mut(together);
            rest = later;
            let mut flat: Vec<T> = now.iter().flat_map(|one| one.iter().copied()).collect();
            self.comms[0].broadcast(&mut flat, 0)?;
            let mut from = flat.as_slice();
            for one in now {
                let (own, others) = from.split_at(one.len());
                one.copy_from_slice(own);
                from = others;
            }
        }
        Ok(())
    }

    /// Parameters in the order in which they lie in the buckets, and the step (from 0) since which
    /// that holds; none while the order is the one of the registration. A checkpoint carries both:
    /// another order may sum in other buckets, by other algorithms.
    #[must_use]
    pub fn order(&self) -> Option<(&[usize], u64)> {
        let since = self.order_since?;
        Some((self.next_order.as_deref().unwrap_or(&self.order), since))
    }

    /// Goes on as after `steps` steps, with the order that a checkpoint carried. All ranks do the
    /// same, between steps. [`Run::resume`](super::checkpoint::Run::resume) does this and
    /// [`DataParallel::restore_hook`]; a program calls them only where it keeps its state itself.
    ///
    /// # Errors
    /// [`Error::usage`] if `order` does not name every parameter once.
    pub fn restore(&mut self, steps: u64, order: Option<(Vec<usize>, u64)>) -> Result<()> {
        self.check_alive()?;
        if let Some((order, since)) = order {
            self.take_order(order, since)?;
        }
        self.steps = steps;
        Ok(())
    }

    /// Lays the buckets out in this order from the next step on.
    pub(super) fn take_order(&mut self, order: Vec<usize>, since: u64) -> Result<()> {
        let mut sorted = order.clone();
        sorted.sort_unstable();
        if !sorted.iter().copied().eq(0..self.parameters.len()) {
            return Err(Error::usage(format!(
                "the order of the buckets does not name each of the {} parameters once; is the \
                 checkpoint of another model?",
                self.parameters.len()
            )));
        }
        self.next_order = Some(order);
        self.order_since = Some(since);
        Ok(())
    }

    /// The hook's state of this rank, for a checkpoint; [`Run::save`](super::checkpoint::Run::save)
    /// takes it by itself.
    #[must_use]
    pub fn hook_state(&self) -> Vec<(String, Vec<f32>)> {
        self.hook.state()
    }

    /// Gives the hook what [`DataParallel::hook_state`] returned in an earlier run; what is equal
    /// on all ranks comes from rank 0, for there may be more ranks than there were. All ranks call
    /// it, between steps.
    ///
    /// # Errors
    /// [`Error::usage`] on every rank if the hook of one does not take it up; any of the
    /// communicator's.
    pub fn restore_hook(&mut self, state: Vec<(String, Vec<f32>)>) -> Result<()> {
        self.check_alive()?;
        let taken = self.take_hook_state(state);
        agree(&self.comms[0], taken)
    }

    /// Does what [`DataParallel::restore_hook`] does, but may fail on this rank only.
    pub(super) fn take_hook_state(&mut self, state: Vec<(String, Vec<f32>)>) -> Result<()> {
        let is_shared = |entry: &(String, Vec<f32>)| self.hook.is_shared(&entry.0);
        let (shared, mut own): (Vec<_>, Vec<_>) = state.into_iter().partition(is_shared);
        own.extend(broadcast_entries(&self.comms[0], shared)?);
        let name = self.hook.name();
        let restored = self.hook.restore(own);
        let wrong = |what| format!("the state is not one of the hook {name}: {what}");
        restored.map_err(|what| Error::usage(wrong(what)))
    }

    /// Whether no gradient has come since the last step ended.
    pub(super) fn is_between_steps(&self) -> bool {
        self.phase == Phase::Averaged
    }

    /// How many steps have ended.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The numbers of the parameters that no rank reported a gradient for in the last step.
    ///
    /// ```
    /// use ringtree::{Dtype, ddp::{DataParallel, Options, Parameter}};
    /// let ends = ringtree::simulate(2, |comm| {
    ///     let names = ["used", "left out"];
    ///     let parameters = names.map(|name| Parameter::new(name, &[1], Dtype::F32));
    ///     let options = Options::new().allow_unused();
    ///     let mut model = DataParallel::new(comm, parameters.into(), options)?;
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

    /// How many steps were left out because of [`NonFinite::Skip`].
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Where a gradient of the last step was not finite: the lowest rank that had one, and its
    /// first such parameter; only with [`NonFinite::Skip`] or [`NonFinite::Fail`].
    #[must_use]
    pub fn non_finite(&self) -> Option<(usize, usize)> {
        self.found_non_finite
    }

    /// How long the last step's `wait` took: all communication that backward did not hide, the
    /// commit included.
    #[must_use]
    pub fn exposed(&self) -> Duration {
        self.exposed
    }

    /// This rank gives up for a reason of its own: every call of the step under way, and every
    /// later one, ends on all ranks, with `cause` unless something else was before. Without it the
    /// others would wait for this rank until their deadline.
    pub fn fail(&mut self, cause: &Error) {
        self.failure.get_or_insert_with(|| cause.clone());
        self.comms.iter().for_each(|comm| comm.fail(cause));
    }

    /// Where the time of the last step went, by bucket.
    #[must_use]
    pub fn statistics(&self) -> &[BucketStatistics] {
        &self.statistics
    }
}

/// The communicator of a hook's stage.
fn own_comm(comm: &Communicator, stage: usize) -> Result<Communicator> {
    let name = match stage {
        0 => "gradients".to_owned(),
        later => format!("gradients, stage {later}"),
    };
    Ok(comm.duplicate()?.named(&name))
}

fn check_options(options: &Options, is_carried: bool) -> Result<()> {
    let looks = options.non_finite != NonFinite::Ignore;
    if is_carried && (looks || options.clip.is_some() || options.is_sharded) {
        return Err(Error::usage(
            "gradients that lie on a device are not looked at: leave out `non_finite`, `clip_norm` \
             and `sharded`",
        ));
    }
    if options.is_sharded && options.hook.name() != Plain.name() {
        return Err(Error::usage(format!(
            "the hook {} makes whole averages, but `sharded` gives each rank its share alone: \
             choose one of them",
            options.hook.name()
        )));
    }
    match options.clip {
        Some(longest) if !(longest > 0.0 && longest.is_finite()) => Err(Error::usage(format!(
            "gradients cannot be shortened to a norm of {longest}: give `clip_norm` a positive \
             number"
        ))),
        _ => Ok(()),
    }
}

fn check(parameters: &[Parameter]) -> Result<()> {
    let mut names = std::collections::HashSet::new();
    for parameter in parameters {
        if !parameter.dtype.is_float() {
            return Err(Error::usage(format!(
                "{parameter} has no floating-point gradient"
            )));
        }
        if !names.insert(&parameter.name) {
            return Err(Error::usage(format!(
                "two parameters are called {}; give each a name of its own",
                parameter.name
            )));
        }
    }
    Ok(())
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
