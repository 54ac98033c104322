//! Reads the variables of torchrun, which `ringtree run` and many other launchers set, too.

use super::{Found, Lookup, Meeting, Placement, number, required};
use crate::error::Result;

pub(super) fn read(set: Lookup<'_>) -> Result<Found> {
    if set("RANK").is_none() && set("WORLD_SIZE").is_none() {
        return Ok(Found::Absent("RANK is not set".to_owned()));
    }
    Ok(Found::Rank(Placement {
        launcher: super::TORCHRUN,
        rank: required(set, "RANK", "the rank of this process (numbered from 0)")?,
        world_size: required(set, "WORLD_SIZE", "the number of ranks")?,
        local_rank: number(set, "LOCAL_RANK")?,
        local_world_size: number(set, "LOCAL_WORLD_SIZE")?,
        meeting: Meeting::Master,
    }))
}

/// Returns `true` if the variables certainly come from a launcher that started this rank. Without
/// the local variables, they may also describe a pod, or come from a user's own script.
pub(super) fn is_certain(set: Lookup<'_>) -> bool {
    let all = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"];
    all.iter().all(|name| set(name).is_some())
}
