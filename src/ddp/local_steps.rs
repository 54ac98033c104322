//! Implements low-communication training: each rank takes many local steps, and then all ranks take
//! an outer step together.

use super::agree::compare;
#[cfg(feature = "checkpoint")]
use super::checkpoint::Parts;
use super::optimizer::{Weights, visit};
use super::parameter::Parameter;
use crate::comm::Communicator;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::op::ReduceOp;

/// Settings for the outer step, in which ranks that train independently combine their weights.
///
/// ```
/// use ringtree::ddp::Outer;
/// let outer = Outer { every: 100, ..Outer::default() };
/// assert_eq!((outer.learning_rate, outer.momentum), (0.7, 0.9));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outer {
    /// Number of local steps per outer step.
    pub every: u64,
    /// Learning rate of the outer step. With a learning rate of 1 and no momentum, the outer step
    /// averages the weights.
    pub learning_rate: f64,
    /// Fraction of the accumulated previous outer steps that is added to each outer step (Nesterov
    /// momentum).
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

/// Low-communication training with DiLoCo (Douillard et al. 2023, "DiLoCo: Distributed
/// Low-Communication Training of Language Models", algorithm 1).
///
/// Each rank takes [`Outer::every`] steps with its own optimizer on its own data. Then the ranks
/// average the changes to their weights. Starting from the weights that they last had in common,
/// they take one step in the direction of that average with Nesterov momentum. In [`Outer::every`]
/// steps, the ranks therefore exchange only as many bytes as they would exchange in each step with
/// [`DataParallel`](super::DataParallel). Use `LocalSteps` if your links are slow compared with the
/// computation.
///
/// If every rank trains independently, create each rank's model on a group that contains only that
/// rank, and create `LocalSteps` on a communicator of all ranks.
///
/// Alternatively, the ranks on each host can use `DataParallel` to train one model together, on a
/// group of that host's ranks (see [`Communicator::split`]). In this case, you can create
/// `LocalSteps` on a group that contains only rank 0 of each model, which is one rank per host.
/// `LocalSteps` then changes only the weights on these ranks. To copy the new weights to the other
/// ranks on a host, call [`DataParallel::broadcast`](super::DataParallel::broadcast) on all ranks
/// on that host after [`LocalSteps::new`] and then after every [`Outer::every`] steps. The tests of
/// `LocalSteps` cover only the case where each model has a single rank.
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
///         // The ranks' losses have their minimums at 0, 1, 2 and 3.
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
    /// Weights of all parameters after the last outer step, in the order of `parameters`. They are
    /// the same on all ranks.
    common: Vec<f32>,
    /// Momentum of the outer steps, in the same order. It is the same on all ranks.
    velocity: Vec<f32>,
    /// Number of local steps since the last outer step.
    since: u64,
}

impl LocalSteps {
    /// Replaces `weights` on all ranks with the weights of rank 0. Each rank then trains
    /// independently, starting from these weights.
    ///
    /// All ranks must call this function with the same `parameters` and `outer`.
    ///
    /// # Errors
    /// In addition to the [errors that all calls share](crate::Communicator#errors), returns
    /// [`ErrorKind::Usage`](crate::ErrorKind::Usage) if a value in `outer` is out of range, if a
    /// parameter is not f32, or if the weights of a rank have the wrong length. Returns
    /// [`ErrorKind::Mismatch`](crate::ErrorKind::Mismatch) if `parameters` or `outer` differ
    /// between ranks.
    pub fn new(
        comm: &Communicator,
        parameters: &[Parameter],
        weights: &mut (impl Weights + ?Sized),
        outer: Outer,
    ) -> Result<Self> {
        let mut lines = vec![format!("{outer:?}")];
        lines.extend(parameters.iter().map(|one| format!("parameter {one}")));
        compare(comm, &lines)?;
        // `compare` has ensured that all ranks have the same values, so this check has the same
        // result on all ranks.
        check(parameters, &outer)?;
        let count = parameters.iter().map(Parameter::count).sum();
        let mut this = Self {
            comm: comm.duplicate()?.with_name("local steps"),
            parameters: parameters.to_vec(),
            outer,
            common: vec![0.0; count],
            velocity: vec![0.0; count],
            since: 0,
        };
        let begun = this.begin(weights);
        begun.inspect_err(|error| this.comm.abort(error))?;
        Ok(this)
    }

    /// Replaces `weights` and `common` with rank 0's weights.
    fn begin(&mut self, weights: &mut (impl Weights + ?Sized)) -> Result<()> {
        self.visit(weights, |_, common, _, weights| {
            common.copy_from_slice(weights)
        })?;
        self.comm.broadcast(&mut self.common, 0)?;
        self.visit(weights, |_, common, _, weights| {
            weights.copy_from_slice(common)
        })
    }

    /// Counts the local step that your optimizer has just taken.
    ///
    /// After every [`Outer::every`] local steps, this method takes an outer step together with the
    /// other ranks and returns `true`. The `weights` are then the same on all ranks. All ranks must
    /// call this method after each of their local steps.
    ///
    /// # Errors
    /// In addition to the [errors that all calls share](crate::Communicator#errors), returns
    /// [`ErrorKind::Usage`](crate::ErrorKind::Usage) on every rank if the weights of a rank have
    /// the wrong length. In that case, `weights` contains either this rank's own weights or the new
    /// common weights.
    pub fn step(&mut self, weights: &mut (impl Weights + ?Sized)) -> Result<bool> {
        self.since += 1;
        if self.since < self.outer.every {
            return Ok(false);
        }
        // After an error, abort the communicator, because the other ranks are waiting for this
        // rank.
        let met = self.outer_step(weights);
        met.inspect_err(|error| self.comm.abort(error))?;
        self.since = 0;
        Ok(true)
    }

    /// Takes the outer step together with the other ranks.
    fn outer_step(&mut self, weights: &mut (impl Weights + ?Sized)) -> Result<()> {
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

    /// Names the state that must be saved in a checkpoint in addition to the weights. See [`Parts`]
    /// for details.
    ///
    /// Call this method between an outer step and the next local step. The state of the local
    /// optimizers differs between ranks, so use [`Parts::own`] to name that state.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Usage`](crate::ErrorKind::Usage) if a local step has been taken since
    /// the last outer step, because the weights then differ between ranks. Also returns the same
    /// errors as [`Parts::tensor`].
    #[cfg(feature = "checkpoint")]
    pub fn parts(&mut self, parts: &mut Parts<'_>) -> Result<()> {
        if self.since > 0 {
            return Err(Error::usage(format!(
                "cannot save after {} of {} local steps, because the weights differ between ranks; \
                 save when `LocalSteps::step` returns true",
                self.since, self.outer.every
            )));
        }
        let count = [self.common.len()];
        parts.tensor("outer/weights", &count, &mut self.common)?;
        parts.tensor("outer/velocity", &count, &mut self.velocity)
    }

    /// Calls `each` for every parameter, passing the parameter's range in `common` and `velocity`,
    /// its elements in both of them, and its weights.
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
            visit(weights, (number, parameter), |weights| {
                each(place.clone(), common, velocity, weights);
            })?;
        }
        Ok(())
    }
}

fn check(parameters: &[Parameter], outer: &Outer) -> Result<()> {
    if let Some(parameter) = parameters.iter().find(|one| one.dtype != Dtype::F32) {
        return Err(Error::usage(format!(
            "local steps require f32 parameters; found {parameter}"
        )));
    }
    let rate = outer.learning_rate;
    let is_sound = rate > 0.0 && rate.is_finite() && (0.0..1.0).contains(&outer.momentum);
    if outer.every > 0 && is_sound {
        return Ok(());
    }
    Err(Error::usage(format!(
        "{outer:?} is out of range: `every` must be at least 1, `learning_rate` positive and \
         finite, and `momentum` at least 0 and below 1"
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
