//! What launchers say to each other.

use crate::launch::cause::Cause;
use serde::{Deserialize, Serialize};

/// What a launcher's command line says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::launch) struct Join {
    /// The job's name.
    pub(super) id: String,
    /// Launchers of the job.
    pub(super) nodes: usize,
    /// Ranks on the launcher's host.
    pub(super) ranks: usize,
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
    /// To the coordinator: a rank of this host failed.
    Failed {
        /// One line.
        text: String,
        /// See [`Cause::original`].
        original: bool,
    },
    /// To the coordinator: all ranks of this host ended well.
    Finished,
    /// From the coordinator: the job failed, and everybody tells this cause.
    End {
        /// One line.
        text: String,
    },
    /// From the coordinator: all ranks of all hosts ended well.
    Done,
}

impl Message {
    /// The message that reports `cause`.
    pub(super) fn failed(cause: &Cause) -> Self {
        Message::Failed {
            text: cause.text.clone(),
            original: cause.original,
        }
    }

    /// The message as bytes.
    pub(super) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("invariant: these types have no map keys and no floats")
    }

    /// The message in `bytes`, if it is one.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}
