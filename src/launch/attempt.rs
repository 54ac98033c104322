//! Prepares one attempt to run a job: its rendezvous and the environment of each rank.

use super::job::Job;
use super::secret;
use crate::bootstrap::address::resolve;
use crate::bootstrap::tuning::JOB_TUNING;
use crate::control::report::REPORT_FD;
use crate::error::{Error, Result};
use std::env;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::process::Command;
use std::time::Instant;

/// The variable that holds the descriptor of the listening socket that rank 0 inherits.
pub(super) const LISTENER_VARIABLE: &str = "RINGTREE_LISTENER_FD";

/// Maximum number of ports to try in search of one whose next higher port is also free.
const PORTS_TRIED_MAX: usize = 100;

/// A launcher's position in the job, which stays the same in all attempts.
#[derive(Clone, Debug)]
pub(super) struct Placement {
    pub(super) node: usize,
    pub(super) nodes: usize,
    pub(super) host: String,
    pub(super) first_rank: usize,
    pub(super) world_size: usize,
    pub(super) run_id: String,
}

impl Placement {
    pub(super) fn launcher_name(&self) -> String {
        match self.nodes {
            1 => "the launcher".to_owned(),
            _ => format!("the launcher of node {} (host {})", self.node, self.host),
        }
    }

    pub(super) fn rank_name(&self, rank: usize) -> String {
        match self.nodes {
            1 => format!("rank {rank}"),
            _ => format!("rank {rank} (node {}, host {})", self.node, self.host),
        }
    }
}

/// Returns the name by which ranks know the job: the given name, or a random one.
pub(super) fn run_id(job: &Job) -> Result<String> {
    match &job.id {
        Some(id) => Ok(id.clone()),
        None => Ok(secret::random()?[..16].to_owned()),
    }
}

/// One attempt to run all ranks.
#[derive(Debug)]
pub(super) struct Attempt {
    /// Number of restarts before this attempt.
    pub(super) number: u16,
    /// The address at which rank 0 accepts connections from the other ranks.
    pub(super) rendezvous: SocketAddr,
    /// The address that `MASTER_ADDR` and `MASTER_PORT` contain, on rank 0's host. Ranks connect at
    /// the rendezvous instead, so the program can use this port for another service, such as
    /// torch's store.
    pub(super) master: SocketAddr,
    /// The listening socket of the rendezvous, present only on rank 0's host. It is bound before
    /// any process learns its port, so that no other process can take the port.
    pub(super) listener: Option<TcpListener>,
    /// The link speed table that rank 0 measured in an earlier attempt, as text. All ranks receive
    /// it in their environment. A new measurement, taken on a machine that may be busy, could lead
    /// to algorithms that sum in a different order.
    pub(super) tuning: Option<String>,
}

impl Attempt {
    /// Creates an attempt in which rank 0 runs on this host and listens on a free port of
    /// `address`.
    pub(super) fn at(number: u16, address: IpAddr, tuning: Option<String>) -> Result<Self> {
        let refused = |error| Error::io(format!("cannot listen on {address}"), &error);
        for _ in 0..PORTS_TRIED_MAX {
            let listener = TcpListener::bind((address, 0)).map_err(refused)?;
            let rendezvous = listener.local_addr().map_err(refused)?;
            let above = above(rendezvous);
            if above.is_some_and(|above| TcpListener::bind(above).is_ok()) {
                return Ok(Attempt {
                    listener: Some(listener),
                    ..Self::elsewhere(number, rendezvous, tuning)
                });
            }
        }
        Err(Error::system(format!(
            "cannot find two consecutive free ports on {address} after {PORTS_TRIED_MAX} tries; \
             stop programs that hold many ports"
        )))
    }

    /// Creates an attempt in which rank 0 listens at `rendezvous`, on a different host.
    pub(super) fn elsewhere(number: u16, rendezvous: SocketAddr, tuning: Option<String>) -> Self {
        Attempt {
            number,
            rendezvous,
            master: above(rendezvous).unwrap_or(rendezvous),
            listener: None,
            tuning,
        }
    }

    /// Creates an attempt for a job that runs on this host only. If `endpoint` is given,
    /// `MASTER_ADDR` and `MASTER_PORT` are taken from it.
    pub(super) fn alone(
        number: u16,
        endpoint: Option<&str>,
        tuning: Option<String>,
    ) -> Result<Self> {
        let Some(endpoint) = endpoint else {
            return Self::at(number, Ipv4Addr::LOCALHOST.into(), tuning);
        };
        let addresses = resolve("--rdzv-endpoint", endpoint, Instant::now())?;
        let master = TcpListener::bind(&*addresses)
            .and_then(|taken| taken.local_addr())
            .map_err(|error| Error::join(format!("cannot listen on {endpoint}: {error}")))?;
        Ok(Attempt {
            master,
            ..Self::at(number, master.ip(), tuning)?
        })
    }

    /// Returns the command that starts the rank with local rank `local_rank`, with torchrun's and
    /// ringtree's variables. The command's streams are not set yet.
    pub(super) fn command(&self, job: &Job, placement: &Placement, local_rank: usize) -> Command {
        let mut command = Command::new(&job.program);
        command.args(&job.arguments);
        // If the launcher inherited these variables, they belong to a different job.
        for variable in [LISTENER_VARIABLE, REPORT_FD, JOB_TUNING] {
            command.env_remove(variable);
        }
        command.envs([
            ("RANK", (placement.first_rank + local_rank).to_string()),
            ("WORLD_SIZE", placement.world_size.to_string()),
            ("LOCAL_RANK", local_rank.to_string()),
            ("LOCAL_WORLD_SIZE", job.ranks.to_string()),
            ("GROUP_RANK", placement.node.to_string()),
            ("GROUP_WORLD_SIZE", placement.nodes.to_string()),
            ("MASTER_ADDR", self.master.ip().to_string()),
            ("MASTER_PORT", self.master.port().to_string()),
            ("RINGTREE_RENDEZVOUS", self.rendezvous.to_string()),
            ("RINGTREE_ATTEMPT", self.number.to_string()),
            ("TORCHELASTIC_RUN_ID", placement.run_id.clone()),
            ("TORCHELASTIC_RESTART_COUNT", self.number.to_string()),
            ("TORCHELASTIC_MAX_RESTARTS", job.max_restarts.to_string()),
        ]);
        if job.ranks > 1 && env::var_os("OMP_NUM_THREADS").is_none() {
            command.env("OMP_NUM_THREADS", "1");
        }
        if let Some(table) = &self.tuning {
            command.env(JOB_TUNING, table);
        }
        command
    }
}

/// Returns the address whose port is one above that of `rendezvous`. This is the default for
/// `MASTER_PORT`.
fn above(rendezvous: SocketAddr) -> Option<SocketAddr> {
    let port = rendezvous.port().checked_add(1)?;
    Some(SocketAddr::new(rendezvous.ip(), port))
}
