//! Defines the messages between launchers.

use super::cause::Cause;
use crate::limits::RANKS_PER_HOST_MAX;
use serde::{Deserialize, Serialize};

/// The settings from a launcher's command line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Join {
    /// The job's name, if it was given one.
    pub(crate) id: Option<String>,
    /// The number of launchers in the job.
    pub(crate) nodes: usize,
    /// The number of ranks on the launcher's host.
    pub(crate) ranks: usize,
    /// The maximum number of restarts.
    pub(crate) max_restarts: u16,
    /// The launcher's node rank, if it was given one.
    pub(crate) node_rank: Option<usize>,
    /// The host's name.
    pub(crate) host: String,
    /// The launcher's process ID.
    pub(crate) process: u32,
}

impl Join {
    /// Returns a human-readable name for the launcher.
    pub(crate) fn who(&self) -> String {
        format!("the launcher on {} (process {})", self.host, self.process)
    }

    /// Returns the command-line option that sets the job's name, for use in messages.
    pub(crate) fn name(&self) -> String {
        match &self.id {
            Some(id) => format!("--rdzv-id '{id}'"),
            None => "no --rdzv-id".to_owned(),
        }
    }

    /// Returns a message if two launchers cannot belong to the same job.
    pub(crate) fn contradiction(first: &Join, second: &Join) -> Option<String> {
        let both = [first, second];
        let is_placed = first.node_rank.is_some();
        let is_one_placed = is_placed != second.node_rank.is_some();
        let have_one_place = is_placed && first.node_rank == second.node_rank;
        let nodes = both.map(|join| join.nodes.to_string());
        let restarts = both.map(|join| join.max_restarts.to_string());
        let places = both.map(|join| match join.node_rank {
            Some(node_rank) => node_rank.to_string(),
            None => "none".to_owned(),
        });
        for (what, is_contradiction, [one, other]) in [
            ("--nnodes", nodes[0] != nodes[1], nodes),
            ("--max-restarts", restarts[0] != restarts[1], restarts),
            ("--node-rank", is_one_placed || have_one_place, places),
        ] {
            if is_contradiction {
                let (first, second) = (first.who(), second.who());
                return Some(format!(
                    "{first} has {what} {one}, but {second} has {other}; correct one of them"
                ));
            }
        }
        let beyond = second
            .node_rank
            .is_some_and(|node_rank| node_rank >= second.nodes);
        if beyond || second.ranks == 0 || second.ranks > RANKS_PER_HOST_MAX {
            return Some(format!(
                "{} has a node rank or a number of ranks that is out of range",
                second.who()
            ));
        }
        None
    }
}

/// A launcher's position in the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Start {
    /// The node rank of the launcher.
    pub(crate) node: usize,
    /// The lowest rank on the launcher's host.
    pub(crate) first_rank: usize,
    /// The total number of ranks on all hosts.
    pub(crate) world_size: usize,
    /// The job's name for the ranks.
    pub(crate) run_id: String,
    /// The port on which rank 0 listens, at the coordinator's address.
    pub(crate) master_port: u16,
}

/// A message between launchers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Message {
    /// Sent to the coordinator: this launcher asks to join the job.
    Join(Join),
    /// Sent by the coordinator: the launcher is rejected for this reason.
    Refused(String),
    /// Sent by the coordinator: all launchers have joined.
    Start(Start),
    /// Sent to the coordinator: a rank on this host failed, or the launcher received a signal.
    Failed(Cause),
    /// Sent to the coordinator: all ranks on this host succeeded.
    Finished,
    /// Sent by the coordinator: the job failed, and every launcher reports this cause.
    End(Cause),
    /// Sent by the coordinator: all ranks on all hosts succeeded.
    Done,
    /// Sent by the coordinator: the attempt failed. Every launcher reports the cause and stops its
    /// ranks.
    Restart(Cause),
    /// Sent to the coordinator: no rank from the failed attempt is left on this host.
    Stopped,
    /// Sent by the coordinator: no rank from the failed attempt is left on any host, and the next
    /// attempt begins.
    Again {
        /// The number of the attempt.
        attempt: u16,
        /// The port on which rank 0 listens in this attempt.
        master_port: u16,
        /// The link speed table that rank 0 measured in an earlier attempt, as text.
        tuning: Option<String>,
    },
}
