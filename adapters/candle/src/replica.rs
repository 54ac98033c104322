//! One rank's replica of a model.

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
use std::time::Instant;

/// Names that a message lists before it only counts.
const NAMES_SHOWN: usize = 5;

/// This rank's replica of a model: equal to all others', as long as every rank takes the
/// optimizer's step that the averaged gradients ask for.
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
    /// Away during a backward pass.
    parallel: Option<DataParallel>,
    /// Where the gradients stay, if that is not host memory.
    buckets: Option<Buckets>,
    /// Of the last backward pass.
    reports: Vec<(usize, Instant)>,
    allows_unused: bool,
}

/// Setting up.
impl Replica {
    /// Registers the parameters of a model that is built, with `options` of
    /// [`ringtree::ddp`], and gives every rank rank 0's weights. All ranks call it alike.
    ///
    /// # Errors
    /// [`Error::Usage`] if the `VarMap` has variables that the model did not get from
    /// [`var_builder`](crate::var_builder), if the model lies on several devices, or for a hook in
    /// `options` where gradients are averaged on their device; [`Error::Ringtree`] if the ranks
    /// have different models, with the first parameter that differs, or if a rank is gone.
    pub fn new(comm: &Communicator, hooks: Hooks, options: Options) -> Result<Self> {
        let lane = lane_of_model(&hooks.parameters())?;
        Self::on_lane(comm, hooks, options, lane)
    }

    /// As [`Replica::new`], with gradients that are averaged on this device.
    pub(crate) fn on_lane(
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
        // `check_used` names them on the rank, with candle's reasons.
        let options = options.allow_unused();
        let parallel = match &buckets {
            Some(buckets) => {
                DataParallel::with_carrier(comm, registered, options, buckets.clone())?
            }
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

    /// Accepts that gradients reach only some of the parameters in a step. Where a parameter was
    /// used on some ranks, the others count as zero; where on none, it has no gradient.
    #[must_use]
    pub fn allow_unused(mut self) -> Self {
        self.allows_unused = true;
        self
    }

    /// Gives all ranks rank 0's weights. All ranks call it.
    ///
    /// # Errors
    /// [`Error::Ringtree`] if a rank is gone.
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

/// Training.
impl Replica {
    /// Runs backward from `loss`, averages the gradients over all ranks while it runs, lets
    /// `optimizer` take its step and renews the model's copies of the weights. It replaces
    /// `optimizer.backward_step(&loss)`.
    ///
    /// # Errors
    /// As [`Replica::backward`]; what the optimizer returns.
    pub fn backward_step<O: Optimizer>(&mut self, optimizer: &mut O, loss: &Tensor) -> Result<()> {
        let gradients = self.backward(loss)?;
        optimizer.step(&gradients)?;
        self.refresh()
    }

    /// Runs backward from `loss` and returns the gradients averaged over all ranks, those of
    /// [`Replica::backward_no_sync`] before it included. It replaces `loss.backward()`; call
    /// [`Replica::refresh`] once the variables are updated.
    ///
    /// # Errors
    /// [`Error::Usage`] if `refresh` was forgotten, or if a parameter got no gradient;
    /// [`Error::Ringtree`] if a rank is gone: no gradients are returned then, on no rank.
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

    /// As [`Replica::backward`], but leaves the averages where they are, for
    /// [`Replica::step`]: nothing is copied, and with [`Options::sharded`] this rank has its share
    /// of them alone.
    ///
    /// # Errors
    /// As [`Replica::backward`].
    pub fn backward_in_place(&mut self, loss: &Tensor) -> Result<()> {
        self.pass(loss, true)?;
        Ok(self.parallel.as_mut().ok_or_else(broken)?.wait()?)
    }

    /// Takes the step of one of ringtree's optimizers, after [`Replica::backward_in_place`], and
    /// renews the model's copies of the weights. All ranks call it. The variables are f32 in host
    /// memory.
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
    /// [`Error::Ringtree`] with what [`ddp::Optimizer::step`] returned; [`Error::Candle`].
    pub fn step<R: UpdateRule>(
        &mut self,
        optimizer: &mut ddp::Optimizer<R>,
        learning_rate: f64,
    ) -> Result<()> {
        let parallel = self.parallel.as_mut().ok_or_else(broken)?;
        optimizer.step(parallel, &mut Weights(&self.parameters), learning_rate)?;
        self.refresh()
    }

    /// The variables, for [`ddp::LocalSteps`]. Call [`Replica::refresh`] once they have changed.
    #[must_use]
    pub fn weights(&self) -> Weights<'_> {
        Weights(&self.parameters)
    }

    /// Runs backward from `loss` and keeps the gradients on this rank, added to those that are
    /// there, until the next [`Replica::backward`]: accumulation over several small batches costs
    /// one communication. The caller divides the losses by the number of batches.
    ///
    /// # Errors
    /// As [`Replica::backward`].
    pub fn backward_no_sync(&mut self, loss: &Tensor) -> Result<()> {
        self.pass(loss, false).map(drop)
    }

    /// Renews the model's copies of the weights after the variables have changed.
    ///
    /// # Errors
    /// [`Error::Candle`].
    pub fn refresh(&self) -> Result<()> {
        for parameter in &self.parameters {
            parameter.refresh()?;
        }
        Ok(())
    }

    /// The reducer: its buckets, statistics, and what a checkpoint keeps of it.
    ///
    /// # Errors
    /// [`Error::Usage`] if a backward pass was broken off by a panic.
    pub fn parallel(&self) -> Result<&DataParallel> {
        self.parallel.as_ref().ok_or_else(broken)
    }

    /// The same, to restore a checkpoint.
    ///
    /// # Errors
    /// As [`Replica::parallel`].
    pub fn parallel_mut(&mut self) -> Result<&mut DataParallel> {
        self.parallel.as_mut().ok_or_else(broken)
    }

    /// The names of the parameters that no gradient reached in the last backward pass on this rank.
    #[must_use]
    pub fn unused(&self) -> Vec<&str> {
        let is_used = |number| self.reports.iter().any(|report| report.0 == number);
        let parameters = self.parameters.iter().enumerate();
        let unused = parameters.filter(|(number, _)| !is_used(*number));
        unused
            .map(|(_, parameter)| parameter.name.as_str())
            .collect()
    }

    /// The parameters by name, in the order in which the last backward pass on this rank had
    /// their gradients, and when that was.
    pub fn reports(&self) -> impl Iterator<Item = (&str, Instant)> {
        let name = |number: usize| self.parameters[number].name.as_str();
        self.reports
            .iter()
            .map(move |(number, at)| (name(*number), *at))
    }
}

/// Inside a pass.
impl Replica {
    /// The averaged gradient of a parameter, if any rank had one.
    fn average(&self, number: usize, var: &Var) -> Result<Option<Tensor>> {
        let parallel = self.parallel()?;
        if let Some(buckets) = &self.buckets {
            let place = parallel.averaged_place(number)?;
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

    /// Backward from `loss`, with reports.
    fn pass(&mut self, loss: &Tensor, is_last: bool) -> Result<GradStore> {
        self.check_fresh()?;
        let result = self.reported_pass(loss, is_last);
        if let (true, Err(error), Some(parallel)) = (is_last, &result, &mut self.parallel) {
            // The others wait for this rank's gradients, which will not come.
            let why = format!("a rank could not make all its gradients: {error}");
            parallel.fail(&ringtree::Error::usage(why));
        }
        result
    }

    fn reported_pass(&mut self, loss: &Tensor, is_last: bool) -> Result<GradStore> {
        let mut parallel = self.parallel.take().ok_or_else(broken)?;
        let was_synchronising = parallel.set_synchronising(is_last);
        parallel.start_backward();
        self.hooks
            .channel
            .open(Pass::new(parallel, self.buckets.clone()));
        let result = loss.backward();
        let mut pass = self.hooks.channel.close().ok_or_else(broken)?;
        pass.parallel.set_synchronising(was_synchronising);
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
                    "the model computed with an old copy of {}: call `Replica::refresh` each time \
                     the variables have changed, before the next forward",
                    parameter.name
                )));
            }
        }
        Ok(())
    }

    fn check_used(&self, gradients: &GradStore) -> Result<()> {
        // Hooked variables have no entry of their own yet.
        let is_direct = |each: &&Hooked| gradients.get(&each.var).is_some();
        if let Some(direct) = self.parameters.iter().find(is_direct) {
            return Err(Error::Usage(format!(
                "the loss depends on the variable {} directly; use the tensors of \
                 `ringtree_candle::var_builder`",
                direct.name
            )));
        }
        let unused = self.unused();
        if unused.is_empty() || self.allows_unused {
            return Ok(());
        }
        Err(Error::Usage(format!(
            "no gradient reached {} of {} parameters: {}. candle's LayerNorm, RmsNorm and \
             softmax_last_dim stop gradients silently: use layer_norm_slow, rms_norm_slow, \
             softmax. If the model does not use these parameters in every step, say \
             `Replica::allow_unused`",
            unused.len(),
            self.parameters.len(),
            listed(&unused)
        )))
    }
}

fn broken() -> Error {
    Error::Usage("an earlier backward pass of this replica was broken off by a panic".into())
}

/// All variables that an optimizer would update must be averaged.
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
        "the model did not get {} from `ringtree_candle::var_builder`, so that their gradients \
         would not be averaged: build the whole model with it, before `Replica::new`",
        listed(&others)
    )))
}

/// The first of `names`, and how many more there are.
fn listed(names: &[&str]) -> String {
    let shown = names[..names.len().min(NAMES_SHOWN)].join(", ");
    match names.len().saturating_sub(NAMES_SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// The one device of all `parameters`, and its lane if collectives are done on it: gradients on
/// other devices go through host memory.
///
/// # Errors
/// [`Error::Usage`] if they do not lie on one device; what the device has against it.
fn lane_of_model(parameters: &[Hooked]) -> Result<Option<(Device, Box<dyn Lane>)>> {
    let Some(first) = parameters.first() else {
        return Ok(None);
    };
    let device = first.var.device();
    let is_elsewhere = |each: &&Hooked| !each.var.device().same_device(device);
    if let Some(other) = parameters.iter().find(is_elsewhere) {
        return Err(Error::Usage(format!(
            "{} lies on {:?}, but {} on {:?}: build the whole model with one `Device`, and clones \
             of it",
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
