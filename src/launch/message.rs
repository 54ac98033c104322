//! What launchers say to each other.

use super::cause::Cause;
use crate::limits::RANKS_PER_HOST_MAX;
use serde::{Deserialize, Serialize};

/// What a launcher's command line says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Join {
    /// The job's name, if it was given one.
    pub(crate) id: Option<String>,
    /// Launchers of the job.
    pub(crate) nodes: usize,
    /// Ranks on the launcher's host.
    pub(crate) ranks: usize,
    /// How often the job may be restarted.
    pub(crate) max_restarts: u16,
    /// The launcher's place, if it was given one.
    pub(crate) node_rank: Option<usize>,
    /// The host's name.
    pub(crate) host: String,
    /// The launcher's process id.
    pub(crate) process: u32,
}

impl Join {
    /// The launcher in words.
    pub(crate) fn who(&self) -> String {
        format!("the launcher on {} (process {})", self.host, self.process)
    }

    /// The job's name in words.
    pub(crate) fn name(&self) -> String {
        match &self.id {
            Some(id) => format!("--rdzv-id '{id}'"),
            None => "no --rdzv-id".to_owned(),
        }
    }

    /// What about two launchers cannot be true of one job.
    pub(crate) fn contradiction(first: &Join, second: &Join) -> Option<String> {
        let both = [first, second];
        let place = |join: &Join| match join.node_rank {
            Some(node_rank) => node_rank.to_string(),
            None => "none".to_owned(),
        };
        let is_placed = first.node_rank.is_some();
        let is_one_placed = is_placed != second.node_rank.is_some();
        let have_one_place = is_placed && first.node_rank == second.node_rank;
        let settings = [
            (
                "--nnodes",
                first.nodes != second.nodes,
                both.map(|join| join.nodes.to_string()),
            ),
            (
                "--max-restarts",
                first.max_restarts != second.max_restarts,
                both.map(|join| join.max_restarts.to_string()),
            ),
            (
                "--node-rank",
                is_one_placed || have_one_place,
                both.map(place),
            ),
        ];
        for (what, is_contradiction, [one, other]) in settings {
            if is_contradiction {
                let (first, second) = (first.who(), second.who());
                return Some(format!(
                    "{first} has {what} {one}, {second} has {other}; correct one of them"
                ));
            }
        }
        let beyond = second
            .node_rank
            .is_some_and(|node_rank| node_rank >= second.nodes);
        if beyond || second.ranks == 0 || second.ranks > RANKS_PER_HOST_MAX {
            return Some(format!("{} has impossible settings", second.who()));
        }
        None
    }
}

/// A launcher's place among the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Start {
    /// Its node rank.
    pub(crate) node: usize,
    /// The rank of its first process.
    pub(crate) first_rank: usize,
    /// Ranks of all hosts.
    pub(crate) world_size: usize,
    /// The job's name for the ranks.
    pub(crate) run_id: String,
    /// The port at which rank 0 answers, on the coordinator's address.
    pub(crate) master_port: u16,
}

/// A message between launchers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Message {
    /// To the coordinator: I am here.
    Join(Join),
    /// From the coordinator: not you, and why.
    Refused(String),
    /// From the coordinator: all are here.
    Start(Start),
    /// To the coordinator: a rank of this host failed, or its launcher received a signal.
    Failed(Cause),
    /// To the coordinator: all ranks of this host ended well.
    Finished,
    /// From the coordinator: the job failed, and every launcher tells this cause.
    End(Cause),
    /// From the coordinator: all ranks of all hosts ended well.
    Done,
    /// From the coordinator: the attempt failed; every launcher tells why and stops its ranks.
    Restart(Cause),
    /// To the coordinator: no rank of the failed attempt is left here.
    Stopped,
    /// From the coordinator: no rank of it is left anywhere; the next attempt begins.
    Again {
        /// The number of the attempt.
        attempt: u16,
        /// The port at which its rank 0 answers.
        master_port: u16,
        /// The table of link speeds that rank 0 of an earlier attempt measured, as text.
        tuning: Option<String>,
    },
}
