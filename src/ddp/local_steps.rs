//! Training with little communication: many local steps, then one that all ranks take together.

use super::agree::compare;
#[cfg(feature = "checkpoint")]
use super::checkpoint::Parts;
use super::optimizer::{Weights, check_length};
use super::parameter::Parameter;
use crate::comm::Communicator;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::op::ReduceOp;

/// How ranks that train apart come together.
///
/// ```
/// use ringtree::ddp::Outer;
/// let outer = Outer { every: 100, ..Outer::default() };
/// assert_eq!((outer.learning_rate, outer.momentum), (0.7, 0.9));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outer {
    /// Local steps from one outer step to the next.
    pub every: u64,
    /// The learning rate of the outer step; 1 without momentum averages the weights.
    pub learning_rate: f64,
    /// How much of the outer steps before goes into one (Nesterov's momentum).
    pub momentum: f64,
}

impl Default for Outer {
    fn default() -> Self {
        Self {
            every: 50,
            learning_rate: 0.7,
            momentum: 0.9,
        }
    }
}

/// Low-communication training, as DiLoCo does it (Douillard et al. 2023, "DiLoCo: Distributed
/// Low-Communication Training of Language Models", algorithm 1): each rank takes
/// [`Outer::every`] steps of its own optimizer on its own data. Then the ranks average by how much
/// their weights have changed, and take a step of Nesterov's gradient descent along that average,
/// from the weights that they had in common before. Against [`DataParallel`](super::DataParallel),
/// which exchanges a gradient every step, as many bytes travel every [`Outer::every`] steps: for
/// links that are slow beside the training.
///
/// What is one *rank* here may be a group that trains with `DataParallel` inside: make the model on
/// a group of the ranks of one host ([`Communicator::split`]), and `LocalSteps` on a group of one
/// rank of each host. Ranks that train alone make the model on a group of themselves.
///
/// ```
/// use ringtree::ddp::{LocalSteps, Outer, Parameter};
/// use ringtree::Dtype;
/// let ends = ringtree::simulate(4, |comm| {
///     let parameters = [Parameter::new("weight", &[1], Dtype::F32)];
///     let mut weights = vec![vec![8.0f32]];
///     let outer = Outer { every: 10, ..Outer::default() };
///     let mut local = LocalSteps::new(comm, &parameters, &mut weights[..], outer)?;
///     for _step in 0..600 {
///         // Each rank's loss has its minimum elsewhere: at 0, 1, 2 and 3.
///         weights[0][0] -= 0.02 * (weights[0][0] - comm.rank() as f32);
///         local.step(&mut weights[..])?; // every tenth time, the ranks meet
///     }
///     Ok::<_, ringtree::Error>(weights[0][0])
/// });
/// let ends: Vec<f32> = ends.into_iter().collect::<Result<_, _>>()?;
/// assert!(ends.iter().all(|end| *end == ends[0]));
/// assert!((ends[0] - 1.5).abs() < 0.1, "the minimum of all losses together: {ends:?}");
/// # Ok::<_, ringtree::Error>(())
/// ```
pub struct LocalSteps {
    comm: Communicator,
    parameters: Vec<Parameter>,
    outer: Outer,
    /// The weights after the last outer step, parameter after parameter; the same on all ranks.
    common: Vec<f32>,
    /// The momentum of the outer steps, likewise.
    velocity: Vec<f32>,
    /// Local steps since the last outer one.
    since: u64,
}

impl LocalSteps {
    /// Gives all ranks rank 0's `weights`, from which they train apart. All ranks call it, with the
    /// same parameters and numbers.
    ///
    /// # Errors
    /// [`Error::usage`] for numbers or types that it does not work on, or weights of another
    /// length; [`Error::mismatch`] if ranks differ; any of the communicator's.
    pub fn new(
        comm: &Communicator,
        parameters: &[Parameter],
        weights: &mut (impl Weights + ?Sized),
        outer: Outer,
    ) -> Result<Self> {
        let mut lines = vec![format!("{outer:?}")];
        lines.extend(parameters.iter().map(|one| format!("parameter {one}")));
        compare(comm, &lines)?;
        // All ranks have the same, so all of them get the same answer.
        check(parameters, &outer)?;
        let count = parameters.iter().map(Parameter::count).sum();
        let mut this = Self {
            comm: comm.duplicate()?.named("local steps"),
            parameters: parameters.to_vec(),
            outer,
            common: vec![0.0; count],
            velocity: vec![0.0; count],
            since: 0,
        };
        let begun = this.begin(weights);
        begun.inspect_err(|error| this.comm.fail(error))?;
        Ok(this)
    }

    /// Takes over rank 0's weights.
    fn begin(&mut self, weights: &mut (impl Weights + ?Sized)) -> Result<()> {
        self.visit(weights, |_, common, _, weights| {
            common.copy_from_slice(weights)
        })?;
        self.comm.broadcast(&mut self.common, 0)?;
        self.visit(weights, |_, common, _, weights| {
            weights.copy_from_slice(common)
        })
    }

    /// Counts a local step, which the program's optimizer has just taken. If it is the last before
    /// an outer step, all ranks take that, and `weights` are the same on all of them: it returns
    /// whether they are. All ranks call it after each of their steps.
    ///
    /// # Errors
    /// On every rank: [`Error::usage`] for weights of another length on one; any of the
    /// communicator's. The weights are then this rank's own still, or already the common ones.
    pub fn step(&mut self, weights: &mut (impl Weights + ?Sized)) -> Result<bool> {
        self.since += 1;
        if self.since < self.outer.every {
            return Ok(false);
        }
        // The others wait for this rank.
        let met = self.meet(weights);
        met.inspect_err(|error| self.comm.fail(error))?;
        self.since = 0;
        Ok(true)
    }

    /// Takes the outer step, with all ranks.
    fn meet(&mut self, weights: &mut (impl Weights + ?Sized)) -> Result<()> {
        let mut change = vec![0.0; self.common.len()];
        self.visit(weights, |place, common, _, weights| {
            let pairs = common.iter().zip(weights.iter());
            for (change, (common, own)) in change[place].iter_mut().zip(pairs) {
                *change = common - own;
            }
        })?;
        self.comm.all_reduce(&mut change, ReduceOp::Avg)?;
        let (rate, momentum) = (self.outer.learning_rate as f32, self.outer.momentum as f32);
        self.visit(weights, |place, common, velocity, weights| {
            let all = common.iter_mut().zip(velocity).zip(&change[place]);
            for ((common, velocity), change) in all {
                *velocity = momentum * *velocity + change;
                *common -= rate * (change + momentum * *velocity);
            }
            weights.copy_from_slice(common);
        })
    }

    /// Names what goes into a checkpoint beside the weights, between an outer step and the next
    /// local one; see [`Parts`]. What the local optimizers remember
    /// differs from rank to rank ([`Parts::own`]).
    ///
    /// # Errors
    /// [`Error::usage`] after a local step, when the ranks' weights differ; those of
    /// [`Parts::tensor`].
    #[cfg(feature = "checkpoint")]
    pub fn parts(&mut self, parts: &mut Parts<'_>) -> Result<()> {
        if self.since > 0 {
            return Err(Error::usage(format!(
                "the ranks have taken {} of {} local steps, and their weights differ: save when \
                 `LocalSteps::step` has returned true",
                self.since, self.outer.every
            )));
        }
        let count = [self.common.len()];
        parts.tensor("outer/weights", &count, &mut self.common)?;
        parts.tensor("outer/velocity", &count, &mut self.velocity)
    }

    /// Shows each parameter's weights, with its place in `common` and `velocity` and what is there.
    fn visit(
        &mut self,
        weights: &mut (impl Weights + ?Sized),
        mut each: impl FnMut(std::ops::Range<usize>, &mut [f32], &mut [f32], &mut [f32]),
    ) -> Result<()> {
        let mut start = 0;
        for (number, parameter) in self.parameters.iter().enumerate() {
            let place = start..start + parameter.count();
            start = place.end;
            let common = &mut self.common[place.clone()];
            let velocity = &mut self.velocity[place.clone()];
            let mut visited = Err(Error::usage(format!("{parameter} has no weights")));
            weights.visit(number, &mut |weights| {
                visited = check_length(parameter, weights)
                    .map(|()| each(place.clone(), common, velocity, weights));
            })?;
            visited?;
        }
        Ok(())
    }
}

fn check(parameters: &[Parameter], outer: &Outer) -> Result<()> {
    if let Some(parameter) = parameters.iter().find(|one| one.dtype != Dtype::F32) {
        return Err(Error::usage(format!(
            "local steps work on f32, which {parameter} is not"
        )));
    }
    let Outer {
        every,
        learning_rate,
        momentum,
    } = *outer;
    let is_sound =
        learning_rate > 0.0 && learning_rate.is_finite() && (0.0..1.0).contains(&momentum);
    if every > 0 && is_sound {
        return Ok(());
    }
    Err(Error::usage(format!(
        "{outer:?}: `every` must be at least 1, `learning_rate` above 0, `momentum` from 0 to \
         below 1"
    )))
}

impl std::fmt::Debug for LocalSteps {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "LocalSteps({:?}, {} since the last)",
            self.outer, self.since
        )
    }
}
