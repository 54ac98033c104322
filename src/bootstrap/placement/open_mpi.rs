//! Reads the variables of Open MPI's `mpirun`, versions 4 and 5.

use super::{Found, Lookup, Meeting, Placement, number, required};
use crate::error::Result;
use std::path::PathBuf;

pub(super) const LAUNCHER: &str = "Open MPI";
const RANK: &str = "OMPI_COMM_WORLD_RANK";

/// No variable contains the address of rank 0's host: the addresses in the environment are those of
/// `mpirun` or of the daemon on this host.
pub(super) fn read(set: Lookup<'_>) -> Result<Found> {
    if set(RANK).is_none() {
        return Ok(Found::Absent(format!("{RANK} is not set")));
    }
    let placement = Placement {
        launcher: LAUNCHER,
        rank: required(set, RANK, "a rank")?,
        world_size: required(set, "OMPI_COMM_WORLD_SIZE", "the number of ranks")?,
        local_rank: number(set, "OMPI_COMM_WORLD_LOCAL_RANK")?,
        local_world_size: number(set, "OMPI_COMM_WORLD_LOCAL_SIZE")?,
        meeting: Meeting::Pmix,
    };
    let directory = set("PMIX_SERVER_TMPDIR").zip(set("PMIX_NAMESPACE"));
    let meeting = match directory.filter(|_| placement.is_on_one_host()) {
        Some((path, job)) => Meeting::Directory {
            path: PathBuf::from(path),
            job,
        },
        None => Meeting::Pmix,
    };
    Ok(Found::Rank(Placement {
        meeting,
        ..placement
    }))
}
