//! Finds out which launcher started this process, which rank the process is, and how it meets the
//! others.
//!
//! *Purpose.* Each source is a pure function of the environment in its own file: [`torchrun`] (also
//! `ringtree run`), [`open_mpi`], [`pmi`] (MPICH, Intel MPI and others that use Hydra) and
//! [`slurm`]. [`nodes`] recognizes environments that describe a node instead of a rank. [`find`]
//! asks the sources in order and returns the first placement.
//!
//! *Invariants.* Two launchers whose variables contradict each other are an error, unless one's
//! variables are known to describe the other's daemon. Nothing here performs I/O.
//!
//! *May import* the base files.

#[cfg(feature = "launch")]
pub(crate) mod node;
mod nodes;
mod open_mpi;
mod pmi;
mod slurm;
#[cfg(test)]
mod tests;
mod torchrun;

use super::environment::{malformed, not_set, optional, required};
use crate::error::{Error, Result};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Returns the value of an environment variable, or `None` if it is not set or is blank.
pub(crate) type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// How the ranks of a job find rank 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Meeting {
    /// `MASTER_ADDR` and `MASTER_PORT` contain rank 0's address.
    Master,
    /// Rank 0 listens at this address, in the form `HOST:PORT`, or on the next port.
    Address {
        address: String,
        /// Slurm's name for the step, which differs from that of every other step.
        step: String,
    },
    /// The launcher speaks PMI-1 on this descriptor.
    Pmi(i32),
    /// The launcher speaks PMIx.
    Pmix,
    /// The launcher speaks PMIx, and all ranks are on this host. They can also use this directory,
    /// which all jobs of the launcher share.
    Directory {
        /// The path.
        path: PathBuf,
        /// The launcher's name for the job.
        job: String,
    },
    /// The environment does not say. The text states why.
    Unknown(&'static str),
}

/// The information from a launcher about this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    /// Name of the launcher, for messages.
    pub launcher: &'static str,
    pub rank: usize,
    pub world_size: usize,
    /// The rank of this process on its host.
    pub local_rank: Option<usize>,
    /// The number of ranks on this host.
    pub local_world_size: Option<usize>,
    pub meeting: Meeting,
}

impl Placement {
    /// Returns `true` if all ranks are known to be on this host.
    pub(crate) fn is_on_one_host(&self) -> bool {
        self.local_world_size == Some(self.world_size)
    }

    /// Returns `true` if `srun` started a single task.
    pub(crate) fn is_single_task(&self) -> bool {
        self.launcher == SLURM && self.world_size == 1
    }
}

/// The result of a source.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Found {
    /// The launcher did not start this process. The text states how this is known.
    Absent(String),
    /// The launcher started this process.
    Rank(Placement),
}

/// Returns the number in a variable, or `None` if it is not set.
fn number<T: FromStr>(set: Lookup<'_>, name: &str) -> Result<Option<T>> {
    optional(set, name, "a number that is at least 0")
}

type Read = fn(Lookup<'_>) -> Result<Found>;

const TORCHRUN: &str = "torchrun or `ringtree run`";
pub(super) const SLURM: &str = "Slurm";
/// All sources with their names, in order of precedence.
const SOURCES: [(&str, Read); 4] = [
    (TORCHRUN, torchrun::read),
    ("Open MPI", open_mpi::read),
    ("PMI (MPICH, Intel MPI, Hydra, srun --mpi=pmi2)", pmi::read),
    (SLURM, slurm::read),
];

/// Prefixes of the variables that the sources read. A program that sets its rank itself hides them.
const PREFIXES: [&str; 7] = [
    "OMPI_COMM_WORLD_",
    "PMI_",
    "PMIX_",
    "MPI_LOCAL",
    "SLURM_",
    "PET_",
    "LWS_",
];

/// Returns `true` if a launcher other than torchrun and `ringtree run` sets this variable.
pub(crate) fn is_of_other_launcher(name: &str) -> bool {
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Returns the placement of the first source that has one, or `None` if no launcher started this
/// process.
///
/// # Errors
/// Returns `ErrorKind::Configuration` if a variable is malformed, if two launchers contradict each
/// other, or if Kubernetes started this process on one of several pods.
pub(crate) fn find(set: Lookup<'_>) -> Result<Option<Placement>> {
    for (_, read) in SOURCES {
        if let Found::Rank(placement) = read(set)? {
            check(set, &placement)?;
            return Ok(Some(placement));
        }
    }
    nodes::refuse_pods(set).map(|()| None)
}

/// Returns the error for a process that has no placement.
pub(crate) fn not_started(set: Lookup<'_>) -> Error {
    match slurm::is_outside_step(set) {
        true => Error::configuration(
            "this process runs in a Slurm job, but srun did not start it; start the program with \
             `srun`",
        ),
        false => not_set("RANK", "the rank of this process (numbered from 0)"),
    }
}

/// Describes which launcher started this process: one line for the result, and one line for each
/// source that was not used.
///
/// ```
/// use ringtree::internal::bootstrap::launchers;
/// let step = |name: &str| match name {
///     "SLURM_PROCID" | "SLURM_STEP_ID" | "SLURM_LOCALID" => Some("0".to_owned()),
///     "SLURM_STEP_NUM_TASKS" => Some("4".to_owned()),
///     "SLURM_STEP_NODELIST" => Some("n[1-2]".to_owned()),
///     "SLURM_STEP_RESV_PORTS" => Some("21000".to_owned()),
///     _ => None,
/// };
/// let (used, unused) = launchers(step);
/// assert_eq!(used, "Slurm: rank 0 of 4, local rank 0; rank 0 listens at n1:21000");
/// assert_eq!(unused[0], "torchrun or `ringtree run`: RANK is not set");
/// ```
pub fn launchers(lookup: impl Fn(&str) -> Option<String>) -> (String, Vec<String>) {
    let set = |name: &str| lookup(name).filter(|value| !value.trim().is_empty());
    let used = match find(&set) {
        Ok(Some(placement)) => placement.to_string(),
        Ok(None) => "none; a program that may run alone is a single rank".to_owned(),
        Err(error) => error.to_string(),
    };
    let unused = SOURCES.iter().filter_map(|(name, read)| match read(&set) {
        Ok(Found::Absent(why)) => Some(format!("{name}: {why}")),
        Ok(Found::Rank(placement)) => {
            let is_used = used == placement.to_string();
            (!is_used).then(|| format!("{name}: a source with precedence was found"))
        }
        Err(error) => Some(format!("{name}: {error}")),
    });
    let unused = unused.collect();
    (used, unused)
}

impl fmt::Display for Placement {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            launcher,
            rank,
            world_size,
            ..
        } = self;
        write!(formatter, "{launcher}: rank {rank} of {world_size}")?;
        match (self.local_rank, self.local_world_size) {
            (Some(local_rank), Some(count)) => {
                write!(formatter, ", local rank {local_rank} of {count}")?;
            }
            (Some(local_rank), None) => write!(formatter, ", local rank {local_rank}")?,
            (None, _) => {}
        }
        match &self.meeting {
            _ if *world_size == 1 => Ok(()),
            Meeting::Master => write!(formatter, "; MASTER_ADDR contains rank 0's address"),
            Meeting::Address { address, .. } => {
                write!(formatter, "; rank 0 listens at {address}")
            }
            Meeting::Pmi(_) => write!(formatter, "; rank 0's address comes over PMI"),
            Meeting::Pmix => write!(formatter, "; rank 0's address comes over PMIx"),
            Meeting::Directory { path, .. } => write!(
                formatter,
                "; rank 0's address is passed in {}",
                path.display()
            ),
            Meeting::Unknown(why) => write!(formatter, "; rank 0's address is unknown: {why}"),
        }
    }
}

/// Checks that the sources after that of `placement` do not contradict it.
fn check(set: Lookup<'_>, placement: &Placement) -> Result<()> {
    // Under torchrun, the variables of other launchers belong to torchrun itself. Under an MPI
    // launcher, those of Slurm belong to the launcher's daemon.
    // But if there is only one rank, it may have started a launcher, whose rank this process is.
    let is_single = placement.world_size == 1;
    let others: &[Read] = match placement.launcher {
        TORCHRUN if torchrun::is_certain(set) && is_single => &[open_mpi::read, pmi::read],
        TORCHRUN if torchrun::is_certain(set) => &[],
        launcher if launcher == TORCHRUN || is_single => &[open_mpi::read, pmi::read, slurm::read],
        open_mpi::LAUNCHER => &[pmi::read],
        _ => &[],
    };
    if placement.launcher == TORCHRUN && !torchrun::is_certain(set) {
        nodes::check_counts_ranks(set)?;
    }
    for read in others {
        if let Ok(Found::Rank(other)) = read(set) {
            check_same(placement, &other)?;
        }
    }
    Ok(())
}

/// Checks that two launchers say the same about this process. A launcher that started a single
/// process says nothing.
fn check_same(one: &Placement, other: &Placement) -> Result<()> {
    let is_same = (one.rank, one.world_size) == (other.rank, other.world_size);
    if is_same || other.world_size == 1 {
        return Ok(());
    }
    let place = |placement: &Placement| {
        let Placement {
            launcher,
            rank,
            world_size,
            ..
        } = placement;
        format!("rank {rank} of {world_size} for {launcher}")
    };
    Err(Error::configuration(format!(
        "the variables of two launchers contradict each other: this process is {}, but {}; start \
         the program with one launcher, or unset the variables of the other",
        place(one),
        place(other)
    )))
}
