//! Updates the weights. Either every rank updates all weights, or each rank updates only its share.
//!
//! With [`Options::sharded`](super::Options::sharded), a bucket's averages are split into *blocks*,
//! one per rank (see [`Communicator::block`](crate::Communicator::block)). A reduce-scatter gives
//! each rank the averages in its own blocks. Each rank keeps the optimizer state only for its own
//! blocks and updates only the weights in these blocks. Then one all-gather per bucket distributes
//! all weights to all ranks. This sends as many bytes as the all-reduce in a replicated run,
//! because the two halves of an all-reduce are a reduce-scatter and an all-gather. The weights are
//! bit-for-bit the same as in a replicated run whose all-reduce consists of these two collectives.

mod adamw;
mod state;

pub use adamw::AdamW;

use super::agree::compare;
use super::flight::Content;
use super::layout::Layout;
use super::parallel::DataParallel;
use super::parameter::Parameter;
use super::values::Values;
use crate::comm::work::Work;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use std::ops::Range;

/// The rule that an optimizer uses to update weights.
///
/// The update of each weight must depend only on that weight's own gradient and state, so that any
/// rank can update any part of a parameter. The gradient has already been clipped if
/// [`Options::clip_norm`](super::Options::clip_norm) is set.
///
/// ```
/// use ringtree::ddp::{Part, UpdateRule};
///
/// /// Stochastic gradient descent with momentum.
/// struct Momentum(f32);
///
/// impl UpdateRule for Momentum {
///     fn name(&self) -> String {
///         format!("momentum {}", self.0)
///     }
///     fn state(&self) -> &'static [&'static str] {
///         &["velocity"]
///     }
///     fn update(&self, mut part: Part<'_>) {
///         let [velocity] = &mut part.state[..] else { return };
///         let rate = part.learning_rate as f32;
///         for ((weight, slope), speed) in
///             part.weights.iter_mut().zip(part.gradient).zip(velocity.iter_mut())
///         {
///             *speed = self.0 * *speed + slope;
///             *weight -= rate * *speed;
///         }
///     }
/// }
/// # let _: Box<dyn UpdateRule> = Box::new(Momentum(0.9));
/// ```
pub trait UpdateRule: Send {
    /// Returns the name of the rule, including all settings that must be the same on all ranks. The
    /// ranks compare their names.
    fn name(&self) -> String;

    /// Returns the names of the values that the rule keeps for each weight. These values start at
    /// zero.
    fn state(&self) -> &'static [&'static str];

    /// Takes one optimizer step on part of a parameter.
    fn update(&self, part: Part<'_>);
}

/// Part of a parameter that an [`UpdateRule`] updates. All slices have the same length.
#[derive(Debug)]
pub struct Part<'a> {
    /// Parameter that the part belongs to.
    pub parameter: &'a Parameter,
    /// Number of this optimizer step, counted from 1.
    pub step: u64,
    /// Learning rate to use in the step.
    pub learning_rate: f64,
    /// Weights to update.
    pub weights: &'a mut [f32],
    /// Averaged gradient of the weights, after any clipping.
    pub gradient: &'a [f32],
    /// Values that the rule keeps for the weights, in the order of [`UpdateRule::state`].
    pub state: Vec<&'a mut [f32]>,
}

/// Access to a model's weights.
///
/// This trait is implemented for slices and vectors whose entries are f32 vectors or mutable f32
/// slices. There must be one entry per parameter, in the order in which the parameters were
/// registered.
pub trait Weights {
    /// Calls `visit` with the weights of the parameter whose index is `number`.
    ///
    /// # Errors
    /// Returns an error if the model cannot provide the weights.
    fn visit(&mut self, number: usize, visit: &mut dyn FnMut(&mut [f32])) -> Result<()>;
}

impl<S: AsMut<[f32]>> Weights for [S] {
    fn visit(&mut self, number: usize, visit: &mut dyn FnMut(&mut [f32])) -> Result<()> {
        let count = self.len();
        let weights = self.get_mut(number).ok_or_else(|| {
            Error::usage(format!(
                "no weights for parameter {number}: found {count} slices; pass one slice per \
                 parameter"
            ))
        })?;
        visit(weights.as_mut());
        Ok(())
    }
}

impl<S: AsMut<[f32]>> Weights for Vec<S> {
    fn visit(&mut self, number: usize, visit: &mut dyn FnMut(&mut [f32])) -> Result<()> {
        self.as_mut_slice().visit(number, visit)
    }
}

/// An optimizer for a [`DataParallel`] model with f32 weights. Every rank keeps the optimizer state
/// for all weights or, with [`Options::sharded`](super::Options::sharded), only for its share of
/// them.
///
/// ```
/// use ringtree::Dtype;
/// use ringtree::ddp::{AdamW, DataParallel, Optimizer, Options, Parameter};
/// let ends = ringtree::simulate(4, |comm| {
///     let parameters = vec![Parameter::new("weight", &[2, 3], Dtype::F32)];
///     let mut model = DataParallel::new(comm, parameters, Options::new().sharded())?;
///     let mut optimizer = Optimizer::new(&model, AdamW::default())?;
///     let mut weights = vec![vec![1.0f32; 6]];
///     for _step in 0..3 {
///         model.report(0, &[comm.rank() as f32; 6])?;
///         model.wait()?;
///         optimizer.step(&mut model, &mut weights[..], 1e-3)?; // all ranks call it
///     }
///     Ok::<_, ringtree::Error>((weights, optimizer.state_bytes()))
/// });
/// let (weights, bytes) = ends[0].clone()?;
/// assert!(ends.iter().all(|end| end.as_ref().is_ok_and(|(each, _)| *each == weights)));
/// assert_eq!(bytes, 2 * 2 * 4); // two means of this rank's two weights
/// # Ok::<_, ringtree::Error>(())
/// ```
pub struct Optimizer<R> {
    rule: R,
    steps: u64,
    parameters: Vec<Parameter>,
    is_sharded: bool,
    shares: Shares,
    /// State values for this rank's share, in bucket order. There is one vector per name that
    /// [`UpdateRule::state`] returns, in the same order.
    state: Vec<Vec<f32>>,
}

/// The elements that this rank updates.
struct Shares {
    layout: Layout,
    /// Range of this rank's elements in each bucket, indexed by bucket.
    own: Vec<Range<usize>>,
}

impl<R: UpdateRule> Optimizer<R> {
    /// Creates an optimizer whose state is initially zero. All ranks must call this function with
    /// the same rule.
    ///
    /// # Errors
    /// In addition to the [errors that all calls share](crate::Communicator#errors), returns
    /// [`ErrorKind::Usage`](crate::ErrorKind::Usage) if a parameter is not f32 or if a carrier
    /// stores the gradients. Returns [`ErrorKind::Mismatch`](crate::ErrorKind::Mismatch) if the
    /// rules differ between ranks.
    pub fn new(model: &DataParallel, rule: R) -> Result<Self> {
        let other = model.parameters.iter().find(|one| one.dtype != Dtype::F32);
        if let Some(parameter) = other {
            return Err(Error::usage(format!(
                "the optimizer requires f32 parameters; found {parameter}"
            )));
        }
        if model.carrier.is_some() {
            return Err(Error::usage(
                "the optimizer requires gradients in host memory; update the weights on the device",
            ));
        }
        compare(&model.comms[0], &[format!("optimizer {}", rule.name())])?;
        let shares = Shares::of_model(model);
        Ok(Self {
            state: vec![vec![0.0; shares.count()]; rule.state().len()],
            rule,
            steps: 0,
            parameters: model.parameters.clone(),
            is_sharded: model.options.is_sharded,
            shares,
        })
    }

    /// Returns the number of steps that the optimizer has taken. Steps that were skipped because of
    /// [`NonFinite::Skip`](super::NonFinite::Skip) do not count.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Returns the size of the state that this rank keeps, in bytes.
    #[must_use]
    pub fn state_bytes(&self) -> usize {
        self.state.iter().map(|one| size_of_val(&one[..])).sum()
    }

    /// Updates `weights`, using the averages of the step that [`DataParallel::wait`] ended.
    ///
    /// If no rank had a gradient for a parameter, the parameter's weights and state do not change.
    /// All ranks must call this method after each `wait`.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Usage`](crate::ErrorKind::Usage) and changes nothing if called before
    /// `wait` or if a step has already been taken since the last `wait`. Also returns
    /// [`ErrorKind::Usage`](crate::ErrorKind::Usage) if the weights have the wrong length. If a
    /// step has failed, returns the first error that occurred.
    ///
    /// With [`Options::sharded`](super::Options::sharded), can also return one of the [errors that
    /// all calls share](crate::Communicator#errors). After such an error, the weights may no longer
    /// be the same on all ranks, so resume from a checkpoint.
    pub fn step(
        &mut self,
        model: &mut DataParallel,
        weights: &mut (impl Weights + ?Sized),
        learning_rate: f64,
    ) -> Result<()> {
        model.mark_averages_used()?;
        let result = self.take_step(model, weights, learning_rate);
        model.keep_failure(result)
    }

    fn take_step(
        &mut self,
        model: &mut DataParallel,
        weights: &mut (impl Weights + ?Sized),
        learning_rate: f64,
    ) -> Result<()> {
        self.follow(model)?;
        if !model.is_used.contains(&true) {
            return Ok(());
        }
        self.steps += 1;
        let mut gathers = Vec::new();
        for index in 0..model.contents.len() {
            let mut values = take(model, index)?;
            self.update(model, (index, &mut values), weights, learning_rate)?;
            match self.is_sharded {
                true => gathers.push(model.comms[0].start_all_gather(values)?),
                false => model.contents[index] = Content::Here(Values::F32(values)),
            }
        }
        for (index, gather) in gathers.into_iter().enumerate() {
            self.spread(model, index, gather, weights)?;
        }
        Ok(())
    }

    /// Updates this rank's share of a bucket's weights. With
    /// [`Options::sharded`](super::Options::sharded), the new weights replace the gradients so that
    /// they can be gathered.
    fn update(
        &mut self,
        model: &DataParallel,
        (index, values): (usize, &mut [f32]),
        weights: &mut (impl Weights + ?Sized),
        learning_rate: f64,
    ) -> Result<()> {
        for number in &self.shares.layout.buckets[index].parameters {
            let (at, part) = self.shares.of(*number);
            if part.is_empty() {
                continue;
            }
            let parameter = &self.parameters[*number];
            let (rule, step, kept) = (&self.rule, self.steps, &mut self.state);
            let start = self.shares.layout.places[*number].range.start;
            let averages = &mut values[start + part.start..start + part.end];
            visit(weights, (*number, parameter), |weights| {
                let weights = &mut weights[part.clone()];
                if model.is_used[*number] {
                    let kept = kept.iter_mut();
                    rule.update(Part {
                        parameter,
                        step,
                        learning_rate,
                        weights,
                        gradient: averages,
                        state: kept.map(|one| &mut one[at..at + part.len()]).collect(),
                    });
                }
                if self.is_sharded {
                    averages.copy_from_slice(weights);
                }
            })?;
        }
        Ok(())
    }

    /// Waits until a bucket's new weights have been gathered from all ranks, and copies them to
    /// `weights`.
    fn spread(
        &self,
        model: &mut DataParallel,
        index: usize,
        gather: Work<Vec<f32>>,
        weights: &mut (impl Weights + ?Sized),
    ) -> Result<()> {
        let values = gather.wait()?;
        let layout = &self.shares.layout;
        for number in &layout.buckets[index].parameters {
            let new = &values[layout.places[*number].range.clone()];
            weights.visit(*number, &mut |weights| weights.copy_from_slice(new))?;
        }
        model.contents[index] = Content::Here(Values::F32(values));
        Ok(())
    }
}

fn both(one: &Range<usize>, other: &Range<usize>) -> Range<usize> {
    let start = one.start.max(other.start);
    start..one.end.min(other.end).max(start)
}

/// Calls `each` with the weights of the parameter whose index is `number`. Returns an error if
/// there are no weights for the parameter, or too few or too many.
pub(super) fn visit(
    weights: &mut (impl Weights + ?Sized),
    (number, parameter): (usize, &Parameter),
    mut each: impl FnMut(&mut [f32]),
) -> Result<()> {
    let mut visited = Err(Error::usage(format!(
        "`Weights::visit` did not call its closure for {parameter}; call it with the parameter's \
         weights"
    )));
    weights.visit(number, &mut |weights| {
        visited = if weights.len() == parameter.count() {
            each(weights);
            Ok(())
        } else {
            Err(Error::usage(format!(
                "parameter {parameter} has {} weights, but {} weights were passed for it",
                parameter.count(),
                weights.len()
            )))
        };
    })?;
    visited
}

/// Moves a bucket's averages out of the model. The caller must put values back in their place.
fn take(model: &mut DataParallel, index: usize) -> Result<Vec<f32>> {
    match std::mem::replace(&mut model.contents[index], Content::Lost) {
        Content::Here(Values::F32(values)) => Ok(values),
        _ => Err(Error::usage(
            "the averages are not f32 values in host memory; pass the model for which the \
             optimizer was created",
        )),
    }
}

impl<R: UpdateRule> std::fmt::Debug for Optimizer<R> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { rule, steps, .. } = self;
        write!(formatter, "Optimizer({}, step {steps})", rule.name())
    }
}
