//! Describes the steps of scripted ranks as data: calls, computation and waiting.

pub use ringtree::internal::protocol::call::Call;
use ringtree::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::time::Duration;

/// One step of a scripted rank. A rank leaves when one of its calls fails, as a program would.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Starts the call and waits for it.
    Call(Call),
    /// Computes for this duration of virtual time.
    Compute(Duration),
    /// Starts the call under the given identity, and continues without waiting.
    Start(u32, Call),
    /// Waits for all started calls with this identity.
    Wait(u32),
    /// Starts a barrier with the world's settings and waits for it.
    Barrier,
    /// Sets this rank's mark, which states that the rank has completed everything up to this
    /// number. If a call fails on a rank whose script has this step, the rank stays until it
    /// knows the agreed mark.
    Mark(u64),
    /// Waits for all started calls, says goodbye and ends the process. A rank without this step
    /// stays idle until all ranks have ended.
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

/// The steps of every rank.
///
/// ```
/// use ringtree::plan::Collective;
/// use ringtree::sim::World;
/// use ringtree_kit::cluster::Cluster;
/// use ringtree_kit::script::{Call, Script, Step};
/// use std::time::Duration;
///
/// // A late rank delays the others.
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
    /// Creates a script with the same steps on all `world_size` ranks.
    #[must_use]
    pub fn same(world_size: usize, steps: Vec<Step>) -> Self {
        Self(vec![Arc::from(steps); world_size])
    }

    /// Creates a script with the steps that `steps` returns for each rank.
    #[must_use]
    pub fn each(world_size: usize, steps: impl Fn(usize) -> Vec<Step>) -> Self {
        Self((0..world_size).map(|rank| steps(rank).into()).collect())
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn world_size(&self) -> usize {
        self.0.len()
    }

    pub(super) fn steps(&self, rank: usize) -> Arc<[Step]> {
        Arc::clone(&self.0[rank])
    }

    /// Checks whether the script can run on `world_size` ranks.
    pub(super) fn check(&self, world_size: usize) -> Result<()> {
        if self.world_size() != world_size {
            return Err(Error::new(
                ErrorKind::Usage,
                format!(
                    "the script is for {} ranks, but the world has {world_size}",
                    self.world_size()
                ),
            ));
        }
        let mut checked: Option<&Arc<[Step]>> = None;
        for steps in &self.0 {
            if checked.is_some_and(|before| Arc::ptr_eq(before, steps)) {
                continue;
            }
            for call in steps.iter().filter_map(Step::call) {
                check(call, world_size)?;
            }
            checked = Some(steps);
        }
        Ok(())
    }
}

/// Checks that the root of a scripted call exists and that its operator is defined for its dtype.
/// Nothing else in a call can be wrong, because the cluster generates the input and checks the
/// result.
fn check(call: &Call, world_size: usize) -> Result<()> {
    if call.root >= world_size {
        return Err(Error::new(
            ErrorKind::Usage,
            format!("root {} is out of range for {world_size} ranks", call.root),
        ));
    }
    if let Some(op) = call.op.filter(|op| !op.supports(call.dtype)) {
        return Err(Error::new(
            ErrorKind::Usage,
            format!("{op} is not defined for {}", call.dtype),
        ));
    }
    Ok(())
}
