//! Reads the variables of systems that start one process per node, which can be a launcher.

use super::nodes::PROCESSES;
use super::{Found, Meeting, number, slurm};
use crate::bootstrap::environment::host_and_port;
use crate::error::Result;

/// The port at which launchers meet if the system names only the host.
const LAUNCHER_PORT: u16 = 29_500;

/// The node on which this process starts ranks. `None` stands for values that the environment does
/// not contain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Name of the system that started this process.
    pub system: &'static str,
    /// The number of nodes.
    pub nodes: Option<usize>,
    /// The number of this node.
    pub node_rank: Option<usize>,
    /// The number of ranks per node, or `auto`, `cpu` or `gpu`.
    pub ranks: Option<String>,
    /// The address at which the launchers meet, in the form `HOST:PORT`.
    pub endpoint: Option<String>,
}

/// Returns the node that the environment describes, or `None` if there is none.
///
/// # Errors
/// Returns `ErrorKind::Configuration` if a variable is malformed.
///
/// ```
/// use ringtree::internal::launch::{Node, node};
/// let pod = |name: &str| match name {
///     "LWS_LEADER_ADDRESS" => Some("train-0.train".to_owned()),
///     "LWS_GROUP_SIZE" => Some("2".to_owned()),
///     "LWS_WORKER_INDEX" => Some("1".to_owned()),
///     _ => None,
/// };
/// let found = node(pod)?.unwrap();
/// assert_eq!((found.nodes, found.node_rank), (Some(2), Some(1)));
/// assert_eq!(found.endpoint.as_deref(), Some("train-0.train:29500"));
/// # Ok::<(), ringtree::Error>(())
/// ```
pub fn node(lookup: impl Fn(&str) -> Option<String>) -> Result<Option<Node>> {
    let set = |name: &str| lookup(name).filter(|value| !value.trim().is_empty());
    let at = |host: Option<String>, port: Option<u16>| {
        let port = port.unwrap_or(LAUNCHER_PORT);
        host.map(|host| host_and_port(&host, port))
    };
    if set("PET_NNODES").is_some() || set(PROCESSES).is_some() {
        return Ok(Some(Node {
            system: "Kubeflow Trainer",
            nodes: number(&set, "PET_NNODES")?,
            node_rank: number(&set, "PET_NODE_RANK")?,
            ranks: set(PROCESSES),
            endpoint: at(set("PET_MASTER_ADDR"), number(&set, "PET_MASTER_PORT")?),
        }));
    }
    if set("LWS_GROUP_SIZE").is_some() {
        return Ok(Some(Node {
            system: "LeaderWorkerSet",
            nodes: number(&set, "LWS_GROUP_SIZE")?,
            node_rank: number(&set, "LWS_WORKER_INDEX")?,
            ranks: None,
            endpoint: at(set("LWS_LEADER_ADDRESS"), None),
        }));
    }
    if let Some(index) = number(&set, "JOB_COMPLETION_INDEX")? {
        return Ok(Some(Node {
            system: "a Kubernetes Job",
            node_rank: Some(index),
            ..Node::default()
        }));
    }
    match slurm::read(&set)? {
        Found::Rank(task) if task.local_world_size == Some(1) && task.world_size > 1 => {
            Ok(Some(Node {
                system: "Slurm",
                nodes: Some(task.world_size),
                node_rank: Some(task.rank),
                ranks: None,
                endpoint: match task.meeting {
                    Meeting::Address { address, .. } => Some(address),
                    _ => None,
                },
            }))
        }
        _ => Ok(None),
    }
}
