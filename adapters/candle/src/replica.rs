//! Trains one rank's replica of a model.

use crate::buckets::Buckets;
use crate::builder::{Hooked, Hooks};
use crate::elements::{dtype, for_element, with_slice};
use crate::error::{Error, Result};
use crate::lane::Lane;
use crate::report::Pass;
use crate::weights::Weights;
use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::Optimizer;
use ringtree::Communicator;
use ringtree::ddp::{self, DataParallel, Options, Parameter, UpdateRule};
use ringtree::internal::ddp::{averaged_place, set_gradient_sync, with_carrier};
use std::time::Instant;

/// Maximum number of names that a message lists. The message only counts the remaining names.
const NAMES_SHOWN: usize = 5;

/// This rank's replica of a model.
///
/// All replicas remain identical if every rank applies the same optimizer step to the averaged
/// gradients.
///
/// ```
/// use candle_core::{DType, Device, Tensor, Var};
/// use candle_nn::{Module, Optimizer, SGD, VarMap, linear, loss::mse};
///
/// let weights = ringtree::simulate(2, |comm| {
///     let device = Device::Cpu;
///     let varmap = VarMap::new();
///     let (builder, hooks) = ringtree_candle::var_builder(&varmap, DType::F32, &device);
///     let model = linear(2, 1, builder)?;
///     let mut replica = ringtree_candle::Replica::new(comm, hooks, Default::default())?;
///     let mut optimizer = SGD::new(varmap.all_vars(), 0.1)?;
///     for _step in 0..3 {
///         let inputs = Tensor::new(&[[comm.rank() as f32, 1.0]], &device)?;
///         let loss = mse(&model.forward(&inputs)?, &Tensor::new(&[[3f32]], &device)?)?;
///         replica.backward_step(&mut optimizer, &loss)?;
///     }
///     model.weight().to_vec2::<f32>()
/// });
/// let weights: Vec<_> = weights.into_iter().collect::<Result<_, _>>()?;
/// assert_eq!(weights[0], weights[1]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub struct Replica {
    hooks: Hooks,
    parameters: Vec<Hooked>,
    /// `None` during a backward pass, and after a panic in one.
    parallel: Option<DataParallel>,
    /// The buckets of the gradients on the device, or `None` if they are in host memory.
    buckets: Option<Buckets>,
    /// The reports of the last backward pass.
    reports: Vec<(usize, Instant)>,
    allows_unused: bool,
}

/// Methods for setup.
impl Replica {
    /// Registers the parameters of a complete model and broadcasts the weights of rank 0. For a
    /// description of `options`, see [`ringtree::ddp`]. All ranks must call this function with the
    /// same options.
    ///
    /// # Errors
    /// Returns:
    ///
    /// - [`Error::Usage`] if the `VarMap` has variables that the model did not get from
    ///   [`var_builder`](crate::var_builder), if the model is on several devices, or if `options`
    ///   includes a hook and the gradients are averaged on their device;
    /// - [`Error::Ringtree`] if the ranks have different models or if a rank is lost. If models
    ///   differ, the error names the first parameter that differs.
    pub fn new(comm: &Communicator, hooks: Hooks, options: Options) -> Result<Self> {
        let lane = find_lane(&hooks.parameters())?;
        Self::with_lane(comm, hooks, options, lane)
    }

    /// Like [`Replica::new`], but averages the gradients on the device of `lane`, or in host memory
    /// if that is `None`.
    pub(crate) fn with_lane(
        comm: &Communicator,
        hooks: Hooks,
        options: Options,
        lane: Option<(Device, Box<dyn Lane>)>,
    ) -> Result<Self> {
        let parameters = hooks.parameters();
        check_all_hooked(&hooks, &parameters)?;
        let registered = parameters.iter().map(|each| {
            Ok(Parameter::new(
                &each.name,
                each.var.dims(),
                dtype(each.var.dtype())?,
            ))
        });
        let registered = registered.collect::<Result<_>>()?;
        let buckets = lane.map(|(device, lane)| Buckets::new(&device, lane));
        // Do not let the reducer report unused parameters. `check_used` reports them, with the
        // reasons that are specific to candle.
        let options = options.allow_unused();
        let parallel = match &buckets {
            Some(buckets) => with_carrier(comm, registered, options, buckets.clone())?,
            None => DataParallel::new(comm, registered, options)?,
        };
        let replica = Self {
            parallel: Some(parallel),
            buckets,
            hooks,
            parameters,
            reports: Vec::new(),
            allows_unused: false,
        };
        replica.broadcast_weights()?;
        Ok(replica)
    }

    /// Allows steps in which gradients reach only some parameters.
    ///
    /// If only some ranks used a parameter, the gradients of the other ranks count as zero. If no
    /// rank used the parameter, it has no gradient.
    #[must_use]
    pub fn allow_unused(mut self) -> Self {
        self.allows_unused = true;
        self
    }

    /// Replaces the weights on all ranks with the weights of rank 0. All ranks must call this
    /// method.
    ///
    /// # Errors
    /// Returns [`Error::Ringtree`] if a rank is lost, and [`Error::Candle`] if candle returns an
    /// error.
    pub fn broadcast_weights(&self) -> Result<()> {
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            for_element!(dtype, T => Ok(self.broadcast_of_type::<T>(dtype)))??;
        }
        self.refresh()
    }

    fn broadcast_of_type<T>(&self, dtype: DType) -> Result<()>
    where
        T: candle_core::WithDType + ringtree::Element,
    {
        let parameters = self.parameters.iter();
        let parameters: Vec<_> = parameters
            .filter(|each| each.var.dtype() == dtype)
            .collect();
        let values = parameters
            .iter()
            .map(|each| with_slice(&each.var, <[T]>::to_vec));
        let mut values = values.collect::<candle_core::Result<Vec<_>>>()?;
        let mut slices: Vec<_> = values.iter_mut().map(Vec::as_mut_slice).collect();
        self.parallel()?.broadcast(&mut slices)?;
        for (parameter, values) in parameters.into_iter().zip(values) {
            let var = &parameter.var;
            var.set(
                &Tensor::from_vec(values, var.shape(), &Device::Cpu)?.to_device(var.device())?,
            )?;
        }
        Ok(())
    }
}

/// Methods for training.
impl Replica {
    /// Runs the backward pass from `loss` and averages the gradients across all ranks while it
    /// runs. Then takes a step with `optimizer` and refreshes the model's copies of the weights.
    ///
    /// Call this method instead of `optimizer.backward_step(&loss)`.
    ///
    /// # Errors
    /// Returns the same errors as [`Replica::backward`], and any error from the optimizer.
    pub fn backward_step<O: Optimizer>(&mut self, optimizer: &mut O, loss: &Tensor) -> Result<()> {
        let gradients = self.backward(loss)?;
        optimizer.step(&gradients)?;
        self.refresh()
    }

    /// Runs the backward pass from `loss` and returns the gradients, averaged across all ranks.
    /// They include the gradients from earlier calls to [`Replica::backward_no_sync`].
    ///
    /// Call this method instead of `loss.backward()`. After you have updated the variables, call
    /// [`Replica::refresh`].
    ///
    /// # Errors
    /// Returns:
    ///
    /// - [`Error::Usage`] if a variable has changed since the last call to [`Replica::refresh`], or
    ///   if a parameter got no gradient;
    /// - [`Error::Ringtree`] if a rank is lost. In that case, no rank gets any gradients.
    pub fn backward(&mut self, loss: &Tensor) -> Result<GradStore> {
        let mut gradients = self.pass(loss, true)?;
        self.parallel.as_mut().ok_or_else(broken)?.wait()?;
        for (number, parameter) in self.parameters.iter().enumerate() {
            if let Some(average) = self.average(number, &parameter.var)? {
                gradients.insert(&parameter.var, average);
            }
        }
        Ok(gradients)
    }

    /// Like [`Replica::backward`], but leaves the averages in their buckets for [`Replica::step`]
    /// instead of copying them. With [`Options::sharded`], this rank gets only its share of the
    /// averages.
    ///
    /// # Errors
    /// Returns the same errors as [`Replica::backward`].
    pub fn backward_in_place(&mut self, loss: &Tensor) -> Result<()> {
        self.pass(loss, true)?;
        Ok(self.parallel.as_mut().ok_or_else(broken)?.wait()?)
    }

    /// Takes a step with one of ringtree's optimizers after [`Replica::backward_in_place`], and
    /// refreshes the model's copies of the weights.
    ///
    /// All ranks must call this method. The variables must be f32 variables in host memory.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_nn::{Module, VarMap, linear, loss::mse};
    /// use ringtree::ddp::{AdamW, Optimizer, Options};
    ///
    /// let weights = ringtree::simulate(2, |comm| {
    ///     let device = Device::Cpu;
    ///     let (builder, hooks) =
    ///         ringtree_candle::var_builder(&VarMap::new(), DType::F32, &device);
    ///     let model = linear(2, 1, builder)?;
    ///     // Each rank keeps half of the optimizer's state.
    ///     let options = Options::new().sharded().clip_norm(1.0);
    ///     let mut replica = ringtree_candle::Replica::new(comm, hooks, options)?;
    ///     let mut optimizer = Optimizer::new(replica.parallel()?, AdamW::default())
    ///         .map_err(candle_core::Error::wrap)?;
    ///     for _step in 0..3 {
    ///         let inputs = Tensor::new(&[[comm.rank() as f32, 1.0]], &device)?;
    ///         let loss = mse(&model.forward(&inputs)?, &Tensor::new(&[[3f32]], &device)?)?;
    ///         replica.backward_in_place(&loss)?;
    ///         replica.step(&mut optimizer, 1e-3)?;
    ///     }
    ///     model.weight().to_vec2::<f32>()
    /// });
    /// let weights: Vec<_> = weights.into_iter().collect::<Result<_, _>>()?;
    /// assert_eq!(weights[0], weights[1]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`Error::Ringtree`] with the error from [`ddp::Optimizer::step`] if that call fails,
    /// and [`Error::Candle`] if candle returns an error.
    pub fn step<R: UpdateRule>(
        &mut self,
        optimizer: &mut ddp::Optimizer<R>,
        learning_rate: f64,
    ) -> Result<()> {
        let parallel = self.parallel.as_mut().ok_or_else(broken)?;
        optimizer.step(parallel, &mut Weights(&self.parameters), learning_rate)?;
        self.refresh()
    }

    /// Returns the variables for use with [`ddp::LocalSteps`]. After the variables have changed,
    /// call [`Replica::refresh`].
    #[must_use]
    pub fn weights(&self) -> Weights<'_> {
        Weights(&self.parameters)
    }

    /// Runs the backward pass from `loss` and adds the gradients to the gradients already on this
    /// rank, without communication.
    ///
    /// The next [`Replica::backward`] averages the sum across all ranks, so that several small
    /// batches require communication only once. The caller must divide each loss by the number of
    /// batches.
    ///
    /// # Errors
    /// Returns the same errors as [`Replica::backward`].
    pub fn backward_no_sync(&mut self, loss: &Tensor) -> Result<()> {
        self.pass(loss, false).map(drop)
    }

    /// Refreshes the model's copies of the weights. Call this method after the variables have
    /// changed.
    ///
    /// # Errors
    /// Returns [`Error::Candle`] if candle cannot copy a variable.
    pub fn refresh(&self) -> Result<()> {
        for parameter in &self.parameters {
            parameter.refresh()?;
        }
        Ok(())
    }

    /// Returns the reducer, which provides the buckets, the statistics and the state for
    /// checkpoints.
    ///
    /// # Errors
    /// Returns [`Error::Usage`] if a panic interrupted a backward pass.
    pub fn parallel(&self) -> Result<&DataParallel> {
        self.parallel.as_ref().ok_or_else(broken)
    }

    /// Like [`Replica::parallel`], but returns a mutable reference that you can use to restore a
    /// checkpoint.
    ///
    /// # Errors
    /// Returns the same errors as [`Replica::parallel`].
    pub fn parallel_mut(&mut self) -> Result<&mut DataParallel> {
        self.parallel.as_mut().ok_or_else(broken)
    }

    /// Returns the names of the parameters that no gradient reached in the last backward pass on
    /// this rank.
    #[must_use]
    pub fn unused(&self) -> Vec<&str> {
        let is_used = |number| self.reports.iter().any(|report| report.0 == number);
        let parameters = self.parameters.iter().enumerate();
        let unused = parameters.filter(|(number, _)| !is_used(*number));
        unused
            .map(|(_, parameter)| parameter.name.as_str())
            .collect()
    }

    /// Returns the name of each parameter that got a gradient in the last backward pass on this
    /// rank, and the time at which the gradient was reported, in the order of the reports.
    pub fn reports(&self) -> impl Iterator<Item = (&str, Instant)> {
        let name = |number: usize| self.parameters[number].name.as_str();
        self.reports
            .iter()
            .map(move |(number, at)| (name(*number), *at))
    }
}

/// Methods for backward passes.
impl Replica {
    /// Returns the averaged gradient of a parameter, or `None` if no rank had a gradient for it.
    fn average(&self, number: usize, var: &Var) -> Result<Option<Tensor>> {
        let parallel = self.parallel()?;
        if let Some(buckets) = &self.buckets {
            let place = averaged_place(parallel, number)?;
            let average = place.map(|place| buckets.averaged(&place, var.shape()));
            return Ok(average.transpose()?);
        }
        let average = for_element!(var.dtype(), T => {
            Ok(parallel.gradient::<T>(number)?.map(|average| {
                Tensor::from_slice(average, var.shape(), var.device())
            }))
        });
        Ok(average.map_err(Error::from)?.transpose()?)
    }

    /// Runs the backward pass from `loss`. If the last pass of a step fails, training fails on all
    /// ranks.
    fn pass(&mut self, loss: &Tensor, is_last: bool) -> Result<GradStore> {
        self.check_fresh()?;
        let result = self.run_hooked_backward(loss, is_last);
        if let (true, Err(error), Some(parallel)) = (is_last, &result, &mut self.parallel) {
            // The other ranks must not wait for gradients that this rank will never send.
            let why = format!("a rank could not compute all of its gradients: {error}");
            parallel.abort(&ringtree::Error::new(ringtree::ErrorKind::Usage, why));
        }
        result
    }

    fn run_hooked_backward(&mut self, loss: &Tensor, is_last: bool) -> Result<GradStore> {
        let mut parallel = self.parallel.take().ok_or_else(broken)?;
        let was_synchronizing = set_gradient_sync(&mut parallel, is_last);
        parallel.start_backward();
        self.hooks
            .channel
            .open(Pass::new(parallel, self.buckets.clone()));
        let result = loss.backward();
        let mut pass = self.hooks.channel.close().ok_or_else(broken)?;
        set_gradient_sync(&mut pass.parallel, was_synchronizing);
        self.parallel = Some(pass.parallel);
        self.reports = pass.reports;
        if let Some(failure) = pass.failure {
            return Err(failure.into());
        }
        let gradients = result?;
        self.check_used(&gradients)?;
        Ok(gradients)
    }

    fn check_fresh(&self) -> Result<()> {
        for parameter in &self.parameters {
            if !parameter.is_fresh()? {
                return Err(Error::Usage(format!(
                    "the model used an old copy of {}: call `Replica::refresh` after each change \
                     to the variables, before the next forward pass",
                    parameter.name
                )));
            }
        }
        Ok(())
    }

    fn check_used(&self, gradients: &GradStore) -> Result<()> {
        // The gradient store has no entries of hooked variables yet, unless the loss used them
        // directly.
        let is_direct = |each: &&Hooked| gradients.get(&each.var).is_some();
        if let Some(direct) = self.parameters.iter().find(is_direct) {
            return Err(Error::Usage(format!(
                "the loss depends on the variable {} directly; use the tensor that the builder \
                 from `ringtree_candle::var_builder` returns",
                direct.name
            )));
        }
        let unused = self.unused();
        if unused.is_empty() || self.allows_unused {
            return Ok(());
        }
        Err(Error::Usage(format!(
            "no gradient reached {} of {} parameters: {}. candle's LayerNorm, RmsNorm and \
             softmax_last_dim silently stop gradients: use layer_norm_slow, rms_norm_slow or \
             softmax instead. If the model does not use these parameters in every step, call \
             `Replica::allow_unused`",
            unused.len(),
            self.parameters.len(),
            list_names(&unused)
        )))
    }
}

fn broken() -> Error {
    Error::Usage("this replica is unusable because a panic interrupted a backward pass".into())
}

/// Checks that the gradients of all variables in the `VarMap` are averaged, because an optimizer
/// updates all of them.
fn check_all_hooked(hooks: &Hooks, parameters: &[Hooked]) -> Result<()> {
    let variables = hooks.varmap.data().lock();
    let variables = variables.unwrap_or_else(std::sync::PoisonError::into_inner);
    let is_hooked = |name: &String| parameters.iter().any(|each| each.name == *name);
    let mut others: Vec<_> = variables
        .keys()
        .filter(|name| !is_hooked(name))
        .map(String::as_str)
        .collect();
    if others.is_empty() {
        return Ok(());
    }
    others.sort_unstable();
    Err(Error::Usage(format!(
        "the gradients of {} would not be averaged: build the complete model with the builder from \
         `ringtree_candle::var_builder` before you call `Replica::new`",
        list_names(&others)
    )))
}

/// Lists the first of `names` and the number of the others.
fn list_names(names: &[&str]) -> String {
    let shown = names[..names.len().min(NAMES_SHOWN)].join(", ");
    match names.len().saturating_sub(NAMES_SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Returns the device of all `parameters` and its lane, or `None` if their gradients are averaged
/// in host memory.
///
/// # Errors
/// Returns [`Error::Usage`] if the parameters are on several devices, and [`Error::Ringtree`] if
/// the device cannot be opened.
fn find_lane(parameters: &[Hooked]) -> Result<Option<(Device, Box<dyn Lane>)>> {
    let Some(first) = parameters.first() else {
        return Ok(None);
    };
    let device = first.var.device();
    let is_elsewhere = |each: &&Hooked| !each.var.device().same_device(device);
    if let Some(other) = parameters.iter().find(is_elsewhere) {
        return Err(Error::Usage(format!(
            "{} is on {:?}, but {} is on {:?}: build the complete model with one `Device` and its \
             clones",
            first.name,
            device.location(),
            other.name,
            other.var.device().location()
        )));
    }
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(cuda) => {
            let lane = crate::cuda::CudaLane::new(cuda)?;
            Ok(Some((device.clone(), Box::new(lane))))
        }
        _ => Ok(None),
    }
}
