//! A job: what to run, how often, and what each rank finds in its environment.

use super::cause::Cause;
use super::meet::{Met, host_name, meet};
use super::peers::Alone;
use super::secret;
use super::supervise::{Event, Supervisor};
use crate::bootstrap::settings;
use crate::error::{Error, Result};
use crate::limits::RANKS_PER_HOST_MAX;
use crate::sys::process::bind_to_parent;
use crossbeam::channel::{self, Receiver, Sender};
use std::env;
use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, Stdio};

/// Names the descriptor of the listening socket that rank 0 inherits.
const LISTENER_VARIABLE: &str = "RINGTREE_LISTENER_FD";

/// How the ranks' output reaches the launcher's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Line by line, each line opened by its rank: `[3]: hello`.
    Prefixed,
    /// Standard output is the launcher's own; standard error is passed on unchanged.
    Plain,
}

/// Where the launchers of a job find each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meeting {
    /// How many launchers, one a host.
    pub nodes: usize,
    /// `host:port`; the launcher that owns the host's address answers there.
    pub endpoint: String,
    /// This launcher's place, if it is not to be given out.
    pub node_rank: Option<usize>,
}

/// What to run on this host, and with whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The program; found in `PATH` if it has no slash.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Ranks on this host.
    pub ranks: usize,
    /// The job's name: the same on every host, and `TORCHELASTIC_RUN_ID` of the ranks.
    pub id: String,
    /// How the ranks' output is passed on.
    pub output: Output,
    /// The other hosts; nothing for a job of this host alone.
    pub meeting: Option<Meeting>,
}

/// What all launchers of a job know once they have met.
#[derive(Clone, Debug)]
pub(super) struct Placement {
    pub(super) node: usize,
    pub(super) nodes: usize,
    pub(super) host: String,
    pub(super) first_rank: usize,
    pub(super) world_size: usize,
    /// Where rank 0 answers.
    pub(super) master: SocketAddr,
}

impl Placement {
    fn launcher_name(&self) -> String {
        match self.nodes {
            1 => "the launcher".to_owned(),
            _ => format!("the launcher of node {} (host {})", self.node, self.host),
        }
    }

    fn rank_name(&self, rank: usize) -> String {
        match self.nodes {
            1 => format!("rank {rank}"),
            _ => format!("rank {rank} (node {}, host {})", self.node, self.host),
        }
    }
}

/// Both ends of the channel of events.
pub(super) type Events = (Sender<Event>, Receiver<Event>);

/// Runs a job to its end and returns its exit code: 0, or 1 when it failed, after one line on
/// standard error has said why.
///
/// Call it from a thread that does nothing else: the ranks die with the thread. While it runs, the
/// signals SIGINT, SIGTERM and SIGHUP are passed on to the ranks; afterwards they do nothing.
///
/// ```no_run
/// use ringtree::launch::{Job, Output, run};
/// let job = Job {
///     program: "python3".into(),
///     arguments: vec!["train.py".into()],
///     ranks: 4,
///     id: "night-run".into(),
///     output: Output::Prefixed,
///     meeting: None,
/// };
/// std::process::exit(run(&job)?);
/// # Ok::<(), ringtree::Error>(())
/// ```
///
/// # Errors
/// [`Error::Configuration`] when the program cannot be started or a setting is wrong;
/// [`Error::Join`] when the launchers did not come together; [`Error::System`] when the operating
/// system refuses something. No rank is running then.
pub fn run(job: &Job) -> Result<i32> {
    if job.ranks == 0 || job.ranks > RANKS_PER_HOST_MAX {
        return Err(Error::Usage(format!(
            "a host runs 1 to {RANKS_PER_HOST_MAX} ranks, not {}",
            job.ranks
        )));
    }
    settings::refuse_what_is_not_built(&setting)?;
    let secret = settings::secret(&setting)?;
    let events = channel::unbounded();
    match &job.meeting {
        Some(meeting) if meeting.nodes > 1 => {
            let secret = secret.ok_or_else(secret::missing)?;
            let met = meet(job, meeting, &secret, &events)?;
            supervise(job, met, None, events)
        }
        _ => {
            let made = match secret {
                Some(_) => None,
                None => Some(secret::random()?),
            };
            supervise(job, alone(job)?, made, events)
        }
    }
}

/// A job of one host needs to meet nobody.
fn alone(job: &Job) -> Result<Met> {
    let listener = listen(job)?;
    let master = listener
        .local_addr()
        .map_err(|error| Error::system("cannot read rank 0's address", &error))?;
    Ok(Met {
        placement: Placement {
            node: 0,
            nodes: 1,
            host: host_name(),
            first_rank: 0,
            world_size: job.ranks,
            master,
        },
        listener: Some(listener),
        peers: Box::new(Alone),
    })
}

/// Runs this program again, with its own arguments, as `ranks` ranks on this host, and returns the
/// job's exit code. The ranks find `RANK` in their environment; that is how a program knows that
/// it is one.
///
/// Standard output is shared; standard error is passed on.
///
/// # Errors
/// As [`run`].
///
/// # Examples
/// ```no_run
/// if std::env::var_os("RANK").is_none() {
///     std::process::exit(ringtree::launch::spawn_self(4)?);
/// }
/// println!("one of four");
/// # Ok::<(), ringtree::Error>(())
/// ```
pub fn spawn_self(ranks: usize) -> Result<i32> {
    let program = env::current_exe()
        .map_err(|error| Error::system("cannot find this program's own file", &error))?;
    run(&Job {
        program: program.into_os_string(),
        arguments: env::args_os().skip(1).collect(),
        ranks,
        id: "none".to_owned(),
        output: Output::Plain,
        meeting: None,
    })
}

/// The socket on which rank 0 of a job of one host will answer, bound before anybody is told its
/// port, so that nobody else can take it.
fn listen(job: &Job) -> Result<TcpListener> {
    let Some(meeting) = &job.meeting else {
        return TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .map_err(|error| Error::system("cannot listen on 127.0.0.1", &error));
    };
    let endpoint = &meeting.endpoint;
    let addresses = endpoint
        .to_socket_addrs()
        .map_err(|error| Error::Configuration(format!("{endpoint} is no HOST:PORT: {error}")))?;
    TcpListener::bind(&*addresses.collect::<Vec<_>>())
        .map_err(|error| Error::Join(format!("cannot listen on {endpoint}: {error}")))
}

/// A setting of the environment, unless it is empty.
fn setting(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.trim().is_empty())
}

/// Starts the ranks of this host and stands by them to the end.
fn supervise(job: &Job, met: Met, made: Option<String>, events: Events) -> Result<i32> {
    let Met {
        placement,
        mut listener,
        peers,
    } = met;
    let mut supervisor = Supervisor::new(placement.launcher_name(), peers, events)?;
    for local_rank in 0..job.ranks {
        let rank = placement.first_rank + local_rank;
        let mut command = command(job, &placement, local_rank);
        if let Some(secret) = &made {
            command.env(secret::VARIABLE, secret);
        }
        let inherited = listener.take();
        if let Some(listener) = &inherited {
            command.env(LISTENER_VARIABLE, listener.as_raw_fd().to_string());
        }
        bind_to_parent(&mut command, inherited.as_ref().map(AsFd::as_fd));
        let prefix = (job.output == Output::Prefixed).then(|| format!("[{rank}]: "));
        let spawned = supervisor.spawn(placement.rank_name(rank), &mut command, prefix);
        if let Err(error) = spawned {
            supervisor.abandon(&error);
            return Err(error);
        }
    }
    Ok(tell(supervisor.run()))
}

/// The command that starts one rank.
fn command(job: &Job, placement: &Placement, local_rank: usize) -> Command {
    let mut command = Command::new(&job.program);
    command
        .args(&job.arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::piped());
    command
        .envs(environment(job, placement, local_rank))
        .env_remove(LISTENER_VARIABLE);
    if job.output == Output::Prefixed {
        command.stdout(Stdio::piped());
    }
    command
}

fn tell(cause: Option<Cause>) -> i32 {
    match cause {
        None => 0,
        Some(cause) => {
            eprintln!("ringtree: {}", cause.text);
            1
        }
    }
}

/// torchrun's variables for one rank, and the rendezvous spelled out, so that a rank need not
/// guess whether something else answers at `MASTER_PORT`.
fn environment(job: &Job, placement: &Placement, local_rank: usize) -> Vec<(&'static str, String)> {
    let master = placement.master;
    let mut variables = vec![
        ("RANK", (placement.first_rank + local_rank).to_string()),
        ("WORLD_SIZE", placement.world_size.to_string()),
        ("LOCAL_RANK", local_rank.to_string()),
        ("LOCAL_WORLD_SIZE", job.ranks.to_string()),
        ("GROUP_RANK", placement.node.to_string()),
        ("GROUP_WORLD_SIZE", placement.nodes.to_string()),
        ("MASTER_ADDR", master.ip().to_string()),
        ("MASTER_PORT", master.port().to_string()),
        ("RINGTREE_RENDEZVOUS", master.to_string()),
        ("TORCHELASTIC_RUN_ID", job.id.clone()),
        ("TORCHELASTIC_RESTART_COUNT", "0".to_owned()),
        ("TORCHELASTIC_MAX_RESTARTS", "0".to_owned()),
    ];
    if job.ranks > 1 && env::var_os("OMP_NUM_THREADS").is_none() {
        variables.push(("OMP_NUM_THREADS", "1".to_owned()));
    }
    variables
}
