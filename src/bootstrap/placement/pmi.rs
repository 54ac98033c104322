//! Reads the variables of launchers that speak PMI-1: Hydra (MPICH and Intel MPI) and
//! `srun --mpi=pmi2`.

use super::{Found, Lookup, Meeting, Placement, number, required, slurm};
use crate::error::{Error, Result};

const RANK: &str = "PMI_RANK";

pub(super) fn read(set: Lookup<'_>) -> Result<Found> {
    if set(RANK).is_none() {
        if set("PMI_PORT").is_some() && set("PMI_ID").is_some() {
            return Err(Error::configuration(
                "mpiexec was started with -pmi-port, which ringtree does not support; start it \
                 without this option",
            ));
        }
        return Ok(Found::Absent(format!("{RANK} is not set")));
    }
    let rank = required(set, RANK, "a rank")?;
    let mut placement = Placement {
        launcher: "PMI",
        rank,
        world_size: required(set, "PMI_SIZE", "the number of ranks")?,
        local_rank: number(set, "MPI_LOCALRANKID")?,
        local_world_size: number(set, "MPI_LOCALNRANKS")?,
        meeting: match number(set, "PMI_FD")? {
            Some(descriptor) => Meeting::Pmi(descriptor),
            None => Meeting::Unknown("PMI_FD is not set"),
        },
    };
    // If Hydra runs inside an allocation, Slurm's variables describe Hydra's daemon. Hydra sets its
    // own local rank, and `srun --mpi=pmi2` does not.
    if placement.local_rank.is_none()
        && let Found::Rank(step) = slurm::read(set)?
    {
        super::check_same(&placement, &step)?;
        if let Meeting::Unknown(_) = placement.meeting {
            placement.meeting = step.meeting.clone();
        }
        (placement.local_rank, placement.local_world_size) =
            (step.local_rank, step.local_world_size);
    }
    Ok(Found::Rank(placement))
}
