//! What scripted ranks do: calls, computation and waiting, as data.

use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::op::ReduceOp;
use crate::plan::spec::{Algorithm, Collective};
use std::sync::Arc;
use std::time::Duration;

/// A collective to be called. Its input is made up, and its result checked, by the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// What is called.
    pub collective: Collective,
    /// Elements of the whole buffer.
    pub count: usize,
    /// Their type.
    pub dtype: Dtype,
    /// The operator, where the collective reduces.
    pub op: ReduceOp,
    /// The root, where the collective has one.
    pub root: usize,
    /// The algorithm; none to let the world's settings choose.
    pub algorithm: Option<Algorithm>,
}

impl Call {
    /// A call on `count` elements of f32, to sum, with root 0. (A barrier has no data: it ignores
    /// all that.)
    #[must_use]
    pub fn new(collective: Collective, count: usize) -> Self {
        Self {
            collective,
            count,
            dtype: Dtype::F32,
            op: ReduceOp::Sum,
            root: 0,
            algorithm: None,
        }
    }

    /// The same, from or to `root`.
    #[must_use]
    pub fn root(self, root: usize) -> Self {
        Self { root, ..self }
    }

    /// The same, by `algorithm`.
    #[must_use]
    pub fn by(self, algorithm: Algorithm) -> Self {
        Self {
            algorithm: Some(algorithm),
            ..self
        }
    }

    fn check(&self, world_size: usize) -> Result<()> {
        if self.root >= world_size {
            return Err(Error::Usage(format!(
                "root {} is no rank of {world_size}",
                self.root
            )));
        }
        if !self.op.supports(self.dtype) {
            return Err(Error::Usage(format!(
                "{} is not defined for {}",
                self.op, self.dtype
            )));
        }
        Ok(())
    }
}

/// One thing a scripted rank does. A rank whose call fails leaves, as a program would.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Makes the call and waits for it.
    Call(Call),
    /// Is busy for this long in virtual time.
    Compute(Duration),
    /// Starts the call under an identity of the script's choice, and goes on.
    Start(u32, Call),
    /// Waits for every started call of this identity.
    Wait(u32),
    /// Makes a barrier, by the world's settings.
    Barrier,
    /// Says that this rank has completed everything up to this number. If a call of a rank with
    /// this step fails, the rank stays until it knows the agreed mark.
    Mark(u64),
    /// Waits for everything started, says goodbye and ends the process. A rank without this step
    /// stays, idle, until all have ended.
    Leave,
}

impl Step {
    fn call(&self) -> Option<&Call> {
        match self {
            Step::Call(call) | Step::Start(_, call) => Some(call),
            Step::Compute(_) | Step::Wait(_) | Step::Barrier | Step::Mark(_) | Step::Leave => None,
        }
    }
}

/// What every rank does.
///
/// ```
/// use ringtree::plan::Collective;
/// use ringtree::sim::{cluster::Cluster, simulate::World};
/// use ringtree::sim::script::{Call, Script, Step};
/// use std::time::Duration;
///
/// // A late rank holds up the others.
/// let late = Duration::from_millis(10);
/// let script = Script::each(16, |rank| {
///     let busy = if rank == 3 { late } else { Duration::ZERO };
///     vec![Step::Compute(busy), Step::Call(Call::new(Collective::AllReduce, 1000))]
/// });
/// let outcome = Cluster::new(World::new(16)).run(&script)?;
/// assert!(outcome.ends.iter().all(|end| end.is_some_and(|end| end >= late)));
/// # Ok::<(), ringtree::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Script(Vec<Arc<[Step]>>);

impl Script {
    /// The same steps on every one of `world_size` ranks.
    #[must_use]
    pub fn same(world_size: usize, steps: Vec<Step>) -> Self {
        Self(vec![Arc::from(steps); world_size])
    }

    /// The steps of each rank, as `steps` gives them.
    #[must_use]
    pub fn each(world_size: usize, steps: impl Fn(usize) -> Vec<Step>) -> Self {
        Self((0..world_size).map(|rank| steps(rank).into()).collect())
    }

    /// How many ranks it is for.
    #[must_use]
    pub fn world_size(&self) -> usize {
        self.0.len()
    }

    pub(super) fn steps(&self, rank: usize) -> Arc<[Step]> {
        Arc::clone(&self.0[rank])
    }

    /// Whether the script can be run on `world_size` ranks.
    pub(super) fn check(&self, world_size: usize) -> Result<()> {
        if self.world_size() != world_size {
            return Err(Error::Usage(format!(
                "the script is for {} ranks, the world has {world_size}",
                self.world_size()
            )));
        }
        let mut checked: Option<&Arc<[Step]>> = None;
        for steps in &self.0 {
            if checked.is_some_and(|before| Arc::ptr_eq(before, steps)) {
                continue;
            }
            for call in steps.iter().filter_map(Step::call) {
                call.check(world_size)?;
            }
            checked = Some(steps);
        }
        Ok(())
    }
}
