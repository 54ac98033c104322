//! Collects the gradients that are reported during the backward pass and launches full buckets.

use super::flight::Content;
use super::parallel::{DataParallel, Phase};
use super::parameter::ParameterId;
use crate::comm::values::broadcast_bytes;
use crate::dtype::Element;
use crate::error::{Error, Result};
use crate::op::ReduceOp;
use crate::reduce::Kernel;

/// Mutable access to a parameter's gradient in its bucket.
#[derive(Debug)]
pub struct GradientMut<'a, T> {
    /// The elements of the parameter's gradient.
    pub elements: &'a mut [T],
    /// `true` if this is the parameter's first gradient in the step. In that case, overwrite the
    /// elements because they still hold values from an earlier step. Otherwise, add to them.
    pub is_first: bool,
}

/// Methods for reporting gradients and reading their averages.
impl DataParallel {
    /// Marks the start of the backward pass for [`DataParallel::statistics`].
    ///
    /// Without this call, the backward pass is assumed to start with the first report.
    pub fn start_backward(&mut self) {
        self.full_at = Some(self.comms[0].clock());
    }

    /// Adds `gradient` to the parameter's gradient for this step.
    ///
    /// Outside [`DataParallel::no_sync`], this call also marks the gradient as complete. The
    /// gradient is then sent as soon as its bucket and all earlier buckets are full.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Usage`](crate::ErrorKind::Usage) if `parameter` does not exist, if
    /// `gradient` has the wrong length or type, or if the parameter's gradient is already complete
    /// in this step. If a step has failed, returns the first error that occurred.
    pub fn report<'a, T: Element>(
        &mut self,
        parameter: impl Into<ParameterId<'a>>,
        gradient: &[T],
    ) -> Result<()> {
        let parameter = self.begin(parameter.into())?;
        let is_first = !self.is_used[parameter];
        let own = self.own::<T>(parameter)?;
        if own.len() != gradient.len() {
            return Err(Error::usage(format!(
                "the gradient of {} has {} elements instead of {}",
                self.parameters[parameter],
                gradient.len(),
                self.layout.places[parameter].range.len()
            )));
        }
        if is_first {
            own.copy_from_slice(gradient);
        } else if !own.is_empty() {
            let kernel = Kernel::new(T::DTYPE, ReduceOp::Sum)
                .expect("invariant: sums are defined for every type");
            let sources = [bytemuck::cast_slice(gradient)];
            kernel.fold(bytemuck::cast_slice_mut(own), Some(0), &sources, None);
        }
        self.is_used[parameter] = true;
        self.ready(parameter)
    }

    /// Returns a mutable view of the parameter's gradient in its bucket, so that the backward pass
    /// can write the gradient there without a copy.
    ///
    /// Call [`DataParallel::ready`] once the gradient is complete.
    ///
    /// ```
    /// use ringtree::{Dtype, ddp::{DataParallel, Options, Parameter}};
    /// let sums = ringtree::simulate(2, |comm| {
    ///     let parameters = vec![Parameter::new("weight", &[2], Dtype::F32)];
    ///     let mut model = DataParallel::new(comm, parameters, Options::new())?;
    ///     for micro_batch in 0..2 {
    ///         let gradient = model.gradient_mut::<f32>(0)?;
    ///         if gradient.is_first {
    ///             gradient.elements.fill(0.0);
    ///         }
    ///         gradient.elements.iter_mut().for_each(|one| *one += micro_batch as f32);
    ///     }
    ///     model.ready(0)?;
    ///     model.wait()?;
    ///     Ok::<_, ringtree::Error>(model.gradient::<f32>(0)?.map(<[_]>::to_vec))
    /// });
    /// assert_eq!(sums, vec![Ok(Some(vec![1.0, 1.0])); 2]);
    /// ```
    ///
    /// # Errors
    /// Returns the same errors as [`DataParallel::report`].
    pub fn gradient_mut<'a, T: Element>(
        &mut self,
        parameter: impl Into<ParameterId<'a>>,
    ) -> Result<GradientMut<'_, T>> {
        let parameter = self.begin(parameter.into())?;
        self.own::<T>(parameter)?;
        let is_first = !std::mem::replace(&mut self.is_used[parameter], true);
        let elements = self.own::<T>(parameter)?;
        Ok(GradientMut { elements, is_first })
    }

    /// Marks the parameter's gradient as complete, or as missing if no gradient was reported in
    /// this step.
    ///
    /// Does nothing inside [`DataParallel::no_sync`].
    ///
    /// # Errors
    /// Returns the same errors as [`DataParallel::report`].
    pub fn ready<'a>(&mut self, parameter: impl Into<ParameterId<'a>>) -> Result<()> {
        let parameter = self.begin(parameter.into())?;
        if !self.is_synchronising {
            return Ok(());
        }
        let full = self.readiness.ready(parameter, &self.layout);
        let Some(full) = full else {
            return Err(self.complete_already(parameter));
        };
        let result = self.announce().and_then(|()| self.launch(full));
        self.keep_failure(result)
    }

    /// Runs `body`. While it runs, gradients are only accumulated: no gradient becomes complete,
    /// and nothing is sent.
    ///
    /// Run the last backward pass of a step outside `body`.
    ///
    /// ```
    /// use ringtree::{Dtype, ddp::{DataParallel, Options, Parameter}};
    /// let sums = ringtree::simulate(2, |comm| {
    ///     let parameters = vec![Parameter::new("weight", &[1], Dtype::F32)];
    ///     let mut model = DataParallel::new(comm, parameters, Options::new())?;
    ///     model.no_sync(|model| model.report(0, &[1.0f32]))?;
    ///     model.report(0, &[2.0f32])?;
    ///     model.wait()?;
    ///     Ok::<_, ringtree::Error>(model.gradient::<f32>(0)?.map(<[_]>::to_vec))
    /// });
    /// assert_eq!(sums, vec![Ok(Some(vec![3.0])); 2]);
    /// ```
    pub fn no_sync<R>(&mut self, body: impl FnOnce(&mut Self) -> R) -> R {
        let before = set_gradient_sync(self, false);
        let result = body(self);
        set_gradient_sync(self, before);
        result
    }

    /// Returns the parameter's averaged gradient for the step that [`DataParallel::wait`] ended.
    ///
    /// Returns `None` if no rank reported a gradient for the parameter or if the step was skipped.
    /// In either case, do not update the parameter.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Usage`](crate::ErrorKind::Usage) if called before `wait`, if
    /// `parameter` does not exist, if `T` is not the parameter's type, if
    /// [`Options::sharded`](super::Options::sharded) is set, or if a carrier stores the gradients.
    /// If a step has failed, returns the first error that occurred.
    pub fn gradient<'a, T: Element>(
        &self,
        parameter: impl Into<ParameterId<'a>>,
    ) -> Result<Option<&[T]>> {
        let parameter = self.number(parameter.into())?;
        self.check_averaged()?;
        if self.options.is_sharded {
            return Err(Error::usage(
                "cannot read a gradient when `sharded` is set, because each rank has only its \
                 share of the averages; update the weights with `ddp::Optimizer`",
            ));
        }
        let place = &self.layout.places[parameter];
        let Content::Here(values) = &self.contents[place.bucket] else {
            return Err(not_in_host_memory(self.carrier.is_some()));
        };
        let all = values
            .as_slice::<T>()
            .ok_or_else(|| self.other_type::<T>(parameter))?;
        Ok(self.is_used[parameter].then(|| &all[place.range.clone()]))
    }
}

/// Sets whether reporting a gradient completes it (the default) or only accumulates it, as in
/// [`DataParallel::no_sync`].
///
/// Returns the previous setting. This function is intended for adapters that cannot pass a closure.
pub fn set_gradient_sync(model: &mut DataParallel, is_synchronising: bool) -> bool {
    std::mem::replace(&mut model.is_synchronising, is_synchronising)
}

/// Methods that manage the state of the current step.
impl DataParallel {
    pub(super) fn check_averaged(&self) -> Result<()> {
        self.check_alive()?;
        if self.phase == Phase::Averaged {
            return Ok(());
        }
        Err(Error::usage(
            "cannot use averages in the middle of a step; call `wait` first",
        ))
    }

    /// Marks the averages as used by an optimizer. Returns an error if an optimizer has already
    /// used them.
    pub(super) fn mark_averages_used(&mut self) -> Result<()> {
        self.check_averaged()?;
        match std::mem::replace(&mut self.is_spent, true) {
            false => Ok(()),
            true => Err(Error::usage(
                "no averages are left for an optimizer step: a step was already taken, or `wait` \
                 was never called; take one step after each `wait`",
            )),
        }
    }

    /// Begins a step unless one is already in progress. Returns the parameter's index.
    pub(super) fn begin(&mut self, parameter: ParameterId<'_>) -> Result<usize> {
        self.check_alive()?;
        let number = self.number(parameter)?;
        let result = self.begin_step();
        self.keep_failure(result).map(|()| number)
    }

    pub(super) fn begin_step(&mut self) -> Result<()> {
        if self.phase == Phase::Collecting {
            return Ok(());
        }
        if let Some(order) = self.next_order.take() {
            self.order = order;
            self.lay_out();
        }
        self.phase = Phase::Collecting;
        self.is_used.fill(false);
        self.own_non_finite = None;
        self.readiness.begin(&self.layout);
        if self.full_at.is_none() {
            self.start_backward();
        }
        match &mut self.carrier {
            Some(carrier) => carrier.begin(&self.infos),
            None => Ok(()),
        }
    }

    /// Returns a mutable view of the parameter's gradient, or an error if the gradient is already
    /// complete.
    fn own<T: Element>(&mut self, parameter: usize) -> Result<&mut [T]> {
        if self.readiness.is_ready(parameter) {
            return Err(self.complete_already(parameter));
        }
        if self.parameters[parameter].dtype != T::DTYPE {
            return Err(self.other_type::<T>(parameter));
        }
        let place = &self.layout.places[parameter];
        let Content::Here(values) = &mut self.contents[place.bucket] else {
            return Err(not_in_host_memory(self.carrier.is_some()));
        };
        let all = values.as_mut_slice().unwrap_or_default();
        Ok(&mut all[place.range.clone()])
    }

    /// Makes all ranks adopt the order in which rank 0's gradients became complete in this step.
    /// The order applies from the next step on.
    pub(super) fn agree_on_order(&mut self) -> Result<()> {
        let mut order = self.readiness.order.clone();
        let registered = self.order.iter().copied();
        order.extend(registered.filter(|each| !self.readiness.is_ready(*each)));
        let bytes = order.iter().flat_map(|each| (*each as u64).to_le_bytes());
        let bytes = broadcast_bytes(&self.comms[0], bytes.collect(), 0)?;
        let (numbers, _) = bytes.as_chunks();
        let numbers = numbers
            .iter()
            .map(|each| u64::from_le_bytes(*each) as usize);
        self.take_order(numbers.collect(), self.steps + 1)
    }

    pub(super) fn check_alive(&self) -> Result<()> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    pub(super) fn keep_failure<R>(&mut self, result: Result<R>) -> Result<R> {
        if let Err(error) = &result {
            // The other ranks may not know about this failure, because it may affect only one of
            // several communicators or only this rank's hook.
            self.abort(error);
        }
        result
    }

    pub(super) fn number(&self, parameter: ParameterId<'_>) -> Result<usize> {
        let wrong = match parameter {
            ParameterId::Number(number) if number < self.parameters.len() => return Ok(number),
            ParameterId::Number(number) => format!("parameter {number} is out of range"),
            ParameterId::Name(name) => match self.numbers.get(name) {
                Some(number) => return Ok(*number),
                None => format!("no parameter is named '{name}'"),
            },
        };
        Err(Error::usage(format!(
            "{wrong}: {} parameters are registered, numbered from 0",
            self.parameters.len()
        )))
    }

    pub(super) fn complete_already(&self, parameter: usize) -> Error {
        Error::usage(format!(
            "the gradient of {} is already complete in this step; accumulate inside `no_sync`, and \
             call `wait` once per step",
            self.parameters[parameter]
        ))
    }

    fn other_type<T: Element>(&self, parameter: usize) -> Error {
        Error::usage(format!(
            "the gradient of {} does not have type {}; use the registered type",
            self.parameters[parameter],
            T::DTYPE
        ))
    }
}

fn not_in_host_memory(is_carried: bool) -> Error {
    Error::usage(match is_carried {
        true => "the gradients are not in host memory; get them from the carrier",
        false => "the gradients are in flight; call `wait` first",
    })
}
