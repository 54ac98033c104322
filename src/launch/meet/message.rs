//! What launchers say to each other.

use crate::launch::cause::Cause;
use serde::{Deserialize, Serialize};

/// What a launcher's command line says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::launch) struct Join {
    /// The job's name, if it was given one.
    pub(super) id: Option<String>,
    /// Launchers of the job.
    pub(super) nodes: usize,
    /// Ranks on the launcher's host.
    pub(super) ranks: usize,
    /// How often the job may be restarted.
    pub(super) max_restarts: u16,
    /// The launcher's place, if it was given one.
    pub(super) node_rank: Option<usize>,
    /// The host's name.
    pub(super) host: String,
    /// The launcher's process id.
    pub(super) process: u32,
}

impl Join {
    /// The launcher in words.
    pub(super) fn who(&self) -> String {
        format!("the launcher on {} (process {})", self.host, self.process)
    }

    /// The job's name in words.
    pub(super) fn name(&self) -> String {
        match &self.id {
            Some(id) => format!("--rdzv-id '{id}'"),
            None => "no --rdzv-id".to_owned(),
        }
    }
}

/// A launcher's place among the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::launch) struct Start {
    /// Its node rank.
    pub(super) node: usize,
    /// The rank of its first process.
    pub(super) first_rank: usize,
    /// Ranks of all hosts.
    pub(super) world_size: usize,
    /// The job's name for the ranks.
    pub(super) run_id: String,
    /// The port at which rank 0 answers, on the coordinator's address.
    pub(super) master_port: u16,
}

/// A message between launchers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::launch) enum Message {
    /// To the coordinator: I am here.
    Join(Join),
    /// From the coordinator: not you, and why.
    Refused(String),
    /// From the coordinator: all are here.
    Start(Start),
    /// To the coordinator: a rank of this host failed, or its launcher was told to end.
    Failed(Cause),
    /// To the coordinator: all ranks of this host ended well.
    Finished,
    /// From the coordinator: the job failed, and everybody tells this cause.
    End {
        /// One line.
        text: String,
    },
    /// From the coordinator: all ranks of all hosts ended well.
    Done,
    /// From the coordinator: the attempt failed; everybody tells why, and stops its ranks.
    Restart {
        /// One line.
        text: String,
    },
    /// To the coordinator: no rank of the failed attempt is left here.
    Stopped,
    /// From the coordinator: no rank of it is left anywhere; the next attempt begins.
    Again {
        /// The number of the attempt.
        attempt: u16,
        /// The port at which its rank 0 answers.
        master_port: u16,
    },
}

impl Message {
    /// The message as bytes.
    pub(super) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("invariant: these types have no map keys and no floats")
    }

    /// The message in `bytes`, if it is one.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}
