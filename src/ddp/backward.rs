//! While backward runs: gradients are reported, full buckets are launched.

use super::carrier::Place;
use super::parallel::{Content, DataParallel, Phase};
use crate::comm::values::broadcast_bytes;
use crate::dtype::Element;
use crate::error::{Error, Result};
use crate::op::ReduceOp;
use crate::reduce::Kernel;

/// A gradient that is being made in its bucket.
#[derive(Debug)]
pub struct GradientMut<'a, T> {
    /// The parameter's elements.
    pub elements: &'a mut [T],
    /// Whether this is the step's first gradient of the parameter: the elements are an earlier
    /// step's, to be overwritten. Add to them otherwise.
    pub is_first: bool,
}

/// Backward.
impl DataParallel {
    /// Marks the beginning of backward, for the statistics. Without it backward begins with the
    /// first report.
    pub fn start_backward(&mut self) {
        self.full_at = Some(self.comms[0].clock());
    }

    /// Adds `gradient` to what the parameter has got in this step. Unless in
    /// [`DataParallel::no_sync`] it is complete then, and is sent as soon as its bucket is
    /// full.
    ///
    /// # Errors
    /// [`Error::usage`] for another length or type, or for a parameter that was complete already;
    /// the first error, if an exchange failed.
    pub fn report<T: Element>(&mut self, parameter: usize, gradient: &[T]) -> Result<()> {
        self.begin(parameter)?;
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

    /// The parameter's gradient where it lies in its bucket, for a backward pass that writes it
    /// there, without a copy. Say [`DataParallel::ready`] when it is complete.
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
    /// As [`DataParallel::report`].
    pub fn gradient_mut<T: Element>(&mut self, parameter: usize) -> Result<GradientMut<'_, T>> {
        self.begin(parameter)?;
        self.own::<T>(parameter)?;
        let is_first = !std::mem::replace(&mut self.is_used[parameter], true);
        let elements = self.own::<T>(parameter)?;
        Ok(GradientMut { elements, is_first })
    }

    /// The parameter's gradient is complete; or, if none came in this step, there will be none.
    /// In [`DataParallel::no_sync`] nothing is, and this does nothing.
    ///
    /// # Errors
    /// As [`DataParallel::report`].
    pub fn ready(&mut self, parameter: usize) -> Result<()> {
        self.begin(parameter)?;
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

    /// Runs `body`, in which gradients only accumulate: nothing is complete, nothing is sent. The
    /// last backward pass of a step runs outside.
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
        let before = self.set_synchronising(false);
        let result = body(self);
        self.set_synchronising(before);
        result
    }

    /// Whether reports complete gradients (as at first) or only accumulate, as in
    /// [`DataParallel::no_sync`]; returns what it was. For adapters that cannot pass a closure.
    pub fn set_synchronising(&mut self, is_synchronising: bool) -> bool {
        std::mem::replace(&mut self.is_synchronising, is_synchronising)
    }

    /// The averaged gradient of the step that ended with [`DataParallel::wait`]; none if no rank
    /// had one, so that the parameter is to be left alone.
    ///
    /// # Errors
    /// [`Error::usage`] before `wait`, or for another type; what failed before.
    pub fn gradient<T: Element>(&self, parameter: usize) -> Result<Option<&[T]>> {
        self.check_parameter(parameter)?;
        self.check_averaged()?;
        if self.is_sharded {
            return Err(Error::usage(
                "with `sharded` each rank has the average of its share alone; let a \
                 `ddp::Optimizer` take the step",
            ));
        }
        let place = &self.layout.places[parameter];
        let Content::Here(values) = &self.contents[place.bucket] else {
            return Err(not_here(self.carrier.is_some()));
        };
        let all = values
            .as_slice::<T>()
            .ok_or_else(|| self.other_type::<T>(parameter))?;
        Ok(self.is_used[parameter].then(|| &all[place.range.clone()]))
    }
}

/// Gradients that a [`Carrier`](super::Carrier) keeps.
impl DataParallel {
    /// Where the parameter's gradient is to be put, or added; it counts as used. Say
    /// [`DataParallel::ready`] when it is complete.
    ///
    /// # Errors
    /// As [`DataParallel::report`].
    pub fn place(&mut self, parameter: usize) -> Result<Place<'_>> {
        self.begin(parameter)?;
        if self.readiness.is_ready(parameter) {
            return Err(self.complete_already(parameter));
        }
        let is_first = !std::mem::replace(&mut self.is_used[parameter], true);
        Ok(self.place_of(parameter, is_first))
    }

    /// Where the parameter's averaged gradient lies, after [`DataParallel::wait`]; nowhere if no
    /// rank had one.
    ///
    /// # Errors
    /// As [`DataParallel::gradient`].
    pub fn averaged_place(&self, parameter: usize) -> Result<Option<Place<'_>>> {
        self.check_parameter(parameter)?;
        self.check_averaged()?;
        Ok(self.is_used[parameter].then(|| self.place_of(parameter, false)))
    }

    fn place_of(&self, parameter: usize, is_first: bool) -> Place<'_> {
        let place = &self.layout.places[parameter];
        Place {
            bucket: &self.infos[place.bucket],
            range: place.range.clone(),
            is_first,
        }
    }
}

/// Inside a step.
impl DataParallel {
    pub(super) fn check_averaged(&self) -> Result<()> {
        self.check_alive()?;
        if self.phase == Phase::Averaged {
            return Ok(());
        }
        Err(Error::usage(
            "gradients are averaged when `wait` has returned",
        ))
    }

    /// An optimizer takes its step along the averages.
    pub(super) fn spend(&mut self) -> Result<()> {
        self.check_averaged()?;
        match std::mem::replace(&mut self.is_spent, true) {
            false => Ok(()),
            true => Err(Error::usage(
                "an optimizer takes one step after each `wait`: along the averages that are there \
                 a step was taken, or `wait` was not called yet",
            )),
        }
    }

    /// Begins a step if none has begun.
    fn begin(&mut self, parameter: usize) -> Result<()> {
        self.check_alive()?;
        self.check_parameter(parameter)?;
        let result = self.begin_step();
        self.keep_failure(result)
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

    /// The elements of a parameter whose gradient is not complete.
    fn own<T: Element>(&mut self, parameter: usize) -> Result<&mut [T]> {
        if self.readiness.is_ready(parameter) {
            return Err(self.complete_already(parameter));
        }
        if self.parameters[parameter].dtype != T::DTYPE {
            return Err(self.other_type::<T>(parameter));
        }
        let place = &self.layout.places[parameter];
        let Content::Here(values) = &mut self.contents[place.bucket] else {
            return Err(not_here(self.carrier.is_some()));
        };
        let all = values.as_mut_slice().unwrap_or_default();
        Ok(&mut all[place.range.clone()])
    }

    /// Takes over rank 0's order of the first step, from the next step on.
    pub(super) fn agree_on_order(&mut self) -> Result<()> {
        let mut order = self.readiness.order.clone();
        let late = self
            .order
            .iter()
            .filter(|each| !self.readiness.is_ready(**each));
        order.extend(late);
        let bytes = order.iter().flat_map(|each| (*each as u64).to_le_bytes());
        let bytes = broadcast_bytes(&self.comms[0], bytes.collect(), 0)?;
        let numbers = bytes.chunks_exact(8).map(|each| {
            let number = u64::from_le_bytes(each.try_into().unwrap_or_default());
            usize::try_from(number).unwrap_or(usize::MAX)
        });
        self.take_order(numbers.collect(), self.steps + 1)
    }

    pub(super) fn check_alive(&self) -> Result<()> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    pub(super) fn keep_failure<R>(&mut self, result: Result<R>) -> Result<R> {
        if let Err(error) = &result {
            // What failed may be one of several communicators, or this rank's hook alone.
            self.fail(error);
        }
        result
    }

    fn check_parameter(&self, parameter: usize) -> Result<()> {
        if parameter < self.parameters.len() {
            return Ok(());
        }
        Err(Error::usage(format!(
            "there is no parameter {parameter}; {} are registered, numbered from 0",
            self.parameters.len()
        )))
    }

    fn complete_already(&self, parameter: usize) -> Error {
        Error::usage(format!(
            "the gradient of {} was complete already in this step; accumulate inside `no_sync`, \
             and call `wait` once a step",
            self.parameters[parameter]
        ))
    }

    fn other_type<T: Element>(&self, parameter: usize) -> Error {
        Error::usage(format!(
            "the gradient of {} is not of {}",
            self.parameters[parameter],
            T::DTYPE
        ))
    }
}

fn not_here(is_carried: bool) -> Error {
    Error::usage(match is_carried {
        true => "the gradients are not in host memory: ask the carrier for them",
        false => "the gradients are under way",
    })
}
