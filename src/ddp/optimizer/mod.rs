//! The optimizer's step: on every rank for all weights, or on each rank for its share of them.
//!
//! With [`Options::sharded`](super::Options::sharded) a bucket's averages end in *blocks*, one a
//! rank ([`Communicator::block`](crate::Communicator::block)). A rank keeps the optimizer's state
//! of its blocks alone, updates the weights there, and an all-gather for each bucket gives all
//! ranks all weights. That moves as many bytes as the all-reduce of the replicated form, and its
//! two halves are the same, so the weights are the same to the bit as those of a replicated run
//! whose all-reduce is this reduce-scatter and this all-gather.

mod adamw;
mod state;

pub use adamw::AdamW;

use super::agree::compare;
use super::layout::Layout;
use super::parallel::{Content, DataParallel};
use super::parameter::Parameter;
use super::values::Values;
use crate::comm::work::Work;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use std::ops::Range;

/// How an optimizer changes weights. Each weight's update depends on its own gradient and state
/// alone (and on the norm that [`Options::clip_norm`](super::Options::clip_norm) took care of), so
/// any part of a parameter can be updated anywhere.
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
    /// Its name with all that ranks must agree on: they compare it.
    fn name(&self) -> String;

    /// What it keeps for each weight, by name; zero at first.
    fn state(&self) -> &'static [&'static str];

    /// Takes one step on part of a parameter.
    fn update(&self, part: Part<'_>);
}

/// Part of a parameter, for an [`UpdateRule`]. All slices are of the same length.
#[derive(Debug)]
pub struct Part<'a> {
    /// The parameter.
    pub parameter: &'a Parameter,
    /// Which step it is, from 1.
    pub step: u64,
    /// The step's learning rate.
    pub learning_rate: f64,
    /// What to update.
    pub weights: &'a mut [f32],
    /// Their averaged gradient, clipped if that was asked for.
    pub gradient: &'a [f32],
    /// What is kept for them, in the order of [`UpdateRule::state`].
    pub state: Vec<&'a mut [f32]>,
}

/// Where the model keeps its weights. Vectors and mutable slices of f32, one for each parameter by
/// number, do.
pub trait Weights {
    /// Calls `visit` with the weights of parameter `number`.
    ///
    /// # Errors
    /// The model's, as an [`Error`] with a text.
    fn visit(&mut self, number: usize, visit: &mut dyn FnMut(&mut [f32])) -> Result<()>;
}

impl<S: AsMut<[f32]>> Weights for [S] {
    fn visit(&mut self, number: usize, visit: &mut dyn FnMut(&mut [f32])) -> Result<()> {
        let count = self.len();
        let weights = self.get_mut(number).ok_or_else(|| {
            Error::usage(format!(
                "there are weights for {count} parameters, none for parameter {number}"
            ))
        })?;
        visit(weights.as_mut());
        Ok(())
    }
}

/// An optimizer for a [`DataParallel`] model of f32 weights. Every rank keeps the state of all
/// weights, or, with [`Options::sharded`](super::Options::sharded), of its share alone.
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
/// assert_eq!(bytes, 2 * 2 * 4); // two means of two weights, of six
/// # Ok::<_, ringtree::Error>(())
/// ```
pub struct Optimizer<R> {
    rule: R,
    steps: u64,
    parameters: Vec<Parameter>,
    is_sharded: bool,
    shares: Shares,
    /// By name of [`UpdateRule::state`]: the values of this rank's share, bucket after bucket.
    state: Vec<Vec<f32>>,
}

/// What a rank updates.
struct Shares {
    layout: Layout,
    /// By bucket, this rank's elements.
    own: Vec<Range<usize>>,
}

impl<R: UpdateRule> Optimizer<R> {
    /// An optimizer without memories. All ranks call it, with the same rule.
    ///
    /// # Errors
    /// [`Error::usage`] if a gradient is not f32 or does not lie in host memory;
    /// [`Error::mismatch`] if ranks have different rules; any of the communicator's.
    pub fn new(model: &DataParallel, rule: R) -> Result<Self> {
        let other = model.parameters.iter().find(|one| one.dtype != Dtype::F32);
        if let Some(parameter) = other {
            return Err(Error::usage(format!(
                "the optimizer works on f32, which {parameter} is not"
            )));
        }
        if model.carrier.is_some() {
            return Err(Error::usage(
                "the optimizer works on gradients in host memory: take the steps on the device",
            ));
        }
        compare(&model.comms[0], &[format!("the optimizer {}", rule.name())])?;
        let shares = Shares::of_model(model);
        Ok(Self {
            state: vec![vec![0.0; shares.count()]; rule.state().len()],
            rule,
            steps: 0,
            parameters: model.parameters.clone(),
            is_sharded: model.is_sharded,
            shares,
        })
    }

    /// How many steps it has taken. A step that [`NonFinite::Skip`](super::NonFinite::Skip) left
    /// out is none.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Bytes of the state that this rank keeps.
    #[must_use]
    pub fn state_bytes(&self) -> usize {
        self.state.iter().map(|one| size_of_val(&one[..])).sum()
    }

    /// Takes a step along the averages of the step that [`DataParallel::wait`] ended. Where no rank
    /// had a gradient, weights and state stay as they are. All ranks call it after each `wait`.
    ///
    /// # Errors
    /// [`Error::usage`] before `wait` and after another step since, which change nothing, or for
    /// weights of another length; what failed before; with
    /// [`Options::sharded`](super::Options::sharded) any of the communicator's, and the weights are
    /// not equal on all ranks then: go on from a checkpoint.
    pub fn step(
        &mut self,
        model: &mut DataParallel,
        weights: &mut (impl Weights + ?Sized),
        learning_rate: f64,
    ) -> Result<()> {
        model.spend()?;
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
                true => gathers.push(model.comms[0].all_gather_async(values)?),
                false => model.contents[index] = Content::Here(Values::F32(values)),
            }
        }
        for (index, gather) in gathers.into_iter().enumerate() {
            self.spread(model, index, gather, weights)?;
        }
        Ok(())
    }

    /// Updates this rank's share of a bucket's weights. They replace the gradients if they are to
    /// be sent.
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
            let mut visited = Err(Error::usage(format!("{parameter} has no weights")));
            weights.visit(*number, &mut |weights| {
                visited = check_length(parameter, weights).map(|()| {
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
                });
            })?;
            visited?;
        }
        Ok(())
    }

    /// Puts a bucket of all ranks' weights where the model keeps them.
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

pub(super) fn check_length(parameter: &Parameter, weights: &[f32]) -> Result<()> {
    if weights.len() == parameter.count() {
        return Ok(());
    }
    Err(Error::usage(format!(
        "{parameter} has {} weights, but the model's vector for it has {}",
        parameter.count(),
        weights.len()
    )))
}

/// The averages of a bucket, away from the model until they are put back.
fn take(model: &mut DataParallel, index: usize) -> Result<Vec<f32>> {
    match std::mem::replace(&mut model.contents[index], Content::Lost) {
        Content::Here(Values::F32(values)) => Ok(values),
        _ => Err(Error::usage(
            "the averages are not f32 in host memory: an optimizer takes the steps of the model \
             that it was made for",
        )),
    }
}

impl<R: UpdateRule> std::fmt::Debug for Optimizer<R> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { rule, steps, .. } = self;
        write!(formatter, "Optimizer({}, step {steps})", rule.name())
    }
}
