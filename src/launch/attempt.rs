//! One attempt of a job: where its ranks meet, and what each finds in its environment.

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

/// Names the descriptor of the listening socket that rank 0 inherits.
pub(super) const LISTENER_VARIABLE: &str = "RINGTREE_LISTENER_FD";

/// Ports whose neighbour is looked at, before the launcher gives up.
const PORTS_TRIED_MAX: usize = 100;

/// What all launchers of a job know once they have met, and what stays the same in all attempts.
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

/// The job's name for its ranks: the one it was given, or a made one that no other job has.
pub(super) fn run_id(job: &Job) -> Result<String> {
    match &job.id {
        Some(id) => Ok(id.clone()),
        None => Ok(secret::random()?[..16].to_owned()),
    }
}

/// One start of all ranks.
#[derive(Debug)]
pub(super) struct Attempt {
    /// From 0.
    pub(super) number: u16,
    /// Where rank 0 answers.
    pub(super) rendezvous: SocketAddr,
    /// On rank 0's host, what `MASTER_PORT` names: the launcher leaves it free for a program's
    /// other library, such as torch's store, while the ranks meet at the rendezvous.
    pub(super) master: SocketAddr,
    /// On the host of rank 0, the socket where it will answer. It is bound before any process is
    /// told its port, so that no other process can take the port.
    pub(super) listener: Option<TcpListener>,
    /// The table of link speeds that rank 0 of an earlier attempt measured, as text: all ranks
    /// find it in their environment. Each attempt would measure again, on a machine that may be
    /// busy, and another table may choose algorithms that sum in another order.
    pub(super) tuning: Option<String>,
}

impl Attempt {
    /// An attempt whose rank 0 runs on this host and answers at a fresh port of `address`.
    pub(super) fn at(number: u16, address: IpAddr, tuning: Option<String>) -> Result<Self> {
        let refused = |error| Error::io(format!("cannot listen on {address}"), &error);
        for _ in 0..PORTS_TRIED_MAX {
            let listener = TcpListener::bind((address, 0)).map_err(refused)?;
            let rendezvous = listener.local_addr().map_err(refused)?;
            let above = above(rendezvous);
            if above.is_some_and(|above| TcpListener::bind(above).is_ok()) {
                return Ok(Self::elsewhere(number, rendezvous, tuning).listening(listener));
            }
        }
        Err(Error::system(format!(
            "{address} has no two free ports in a row among {PORTS_TRIED_MAX} that were tried"
        )))
    }

    /// An attempt whose rank 0 answers at `rendezvous`, on another host.
    pub(super) fn elsewhere(number: u16, rendezvous: SocketAddr, tuning: Option<String>) -> Self {
        Attempt {
            number,
            rendezvous,
            master: above(rendezvous).unwrap_or(rendezvous),
            listener: None,
            tuning,
        }
    }

    /// An attempt of a job of this host alone, whose `MASTER_PORT` is that of `endpoint` if one is
    /// given.
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

    fn listening(self, listener: TcpListener) -> Self {
        Attempt {
            listener: Some(listener),
            ..self
        }
    }

    /// The command that starts the rank `local_rank` of this host, without its streams.
    pub(super) fn command(&self, job: &Job, placement: &Placement, local_rank: usize) -> Command {
        let mut command = Command::new(&job.program);
        command.args(&job.arguments);
        // What the launcher itself inherited belongs to another job.
        for variable in [LISTENER_VARIABLE, REPORT_FD, JOB_TUNING] {
            command.env_remove(variable);
        }
        command.envs(self.environment(job, placement, local_rank));
        command
    }

    /// torchrun's variables for one rank, and the rendezvous, where rank 0 answers.
    fn environment(
        &self,
        job: &Job,
        placement: &Placement,
        local_rank: usize,
    ) -> Vec<(&'static str, String)> {
        let Attempt {
            number,
            rendezvous,
            master,
            ..
        } = self;
        let mut variables = vec![
            ("RANK", (placement.first_rank + local_rank).to_string()),
            ("WORLD_SIZE", placement.world_size.to_string()),
            ("LOCAL_RANK", local_rank.to_string()),
            ("LOCAL_WORLD_SIZE", job.ranks.to_string()),
            ("GROUP_RANK", placement.node.to_string()),
            ("GROUP_WORLD_SIZE", placement.nodes.to_string()),
            ("MASTER_ADDR", master.ip().to_string()),
            ("MASTER_PORT", master.port().to_string()),
            ("RINGTREE_RENDEZVOUS", rendezvous.to_string()),
            ("RINGTREE_ATTEMPT", number.to_string()),
            ("TORCHELASTIC_RUN_ID", placement.run_id.clone()),
            ("TORCHELASTIC_RESTART_COUNT", number.to_string()),
            ("TORCHELASTIC_MAX_RESTARTS", job.max_restarts.to_string()),
        ];
        if job.ranks > 1 && env::var_os("OMP_NUM_THREADS").is_none() {
            variables.push(("OMP_NUM_THREADS", "1".to_owned()));
        }
        if let Some(table) = &self.tuning {
            variables.push((JOB_TUNING, table.clone()));
        }
        variables
    }
}

/// The port above, which `MASTER_PORT` names unless the user does.
fn above(rendezvous: SocketAddr) -> Option<SocketAddr> {
    let port = rendezvous.port().checked_add(1)?;
    Some(SocketAddr::new(rendezvous.ip(), port))
}
