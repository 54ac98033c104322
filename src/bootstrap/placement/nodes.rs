//! Recognizes systems that start one process per node. Such a process is not a rank.

use super::Lookup;
use crate::error::{Error, Result};

/// Variables in which a node-level system passes the number of nodes or pods.
const NODE_COUNTS: [(&str, &str); 2] = [
    ("Kubeflow Trainer", "PET_NNODES"),
    ("LeaderWorkerSet", "LWS_GROUP_SIZE"),
];

/// Variable in which Kubeflow passes the number of processes per pod: a number, or `auto`, `cpu` or
/// `gpu`.
pub(super) const PROCESSES: &str = "PET_NPROC_PER_NODE";

/// Returns an error if a system that starts one process per node started this process, and the job
/// has several processes.
///
/// # Errors
/// Returns `ErrorKind::Configuration` in that case, with the command to use instead.
pub(super) fn refuse_pods(set: Lookup<'_>) -> Result<()> {
    for (system, name) in NODE_COUNTS {
        // Kubeflow also passes ranges such as `1:4`.
        let Some(nodes) = set(name) else {
            continue;
        };
        let processes = set(PROCESSES).unwrap_or_else(|| "1".to_owned());
        if nodes.trim() != "1" || processes.trim() != "1" {
            return Err(Error::configuration(format!(
                "{system} started this container ({name}={nodes}), but not its ranks; start the \
                 program with `ringtree run`"
            )));
        }
    }
    Ok(())
}

/// Checks that `RANK` counts ranks. The first version of Kubeflow's PyTorchJob counts pods.
///
/// # Errors
/// Returns `ErrorKind::Configuration` if a pod has several ranks.
pub(super) fn check_counts_ranks(set: Lookup<'_>) -> Result<()> {
    match set(PROCESSES) {
        Some(count) if count.trim() != "1" => Err(Error::configuration(format!(
            "RANK counts pods, because Kubeflow started this container ({PROCESSES}={count}); \
             start the program with `ringtree run`"
        ))),
        _ => Ok(()),
    }
}
