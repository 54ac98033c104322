//! A job: what to run, on how many hosts, and how often to try.

use super::attempt::{Attempt, LISTENER_VARIABLE, Placement, run_id};
use super::meet::{Met, host_name, meet};
use super::peers::Alone;
use super::secret;
use super::supervise::{End, Event, Supervisor};
use crate::bootstrap::settings;
use crate::error::{Error, Result};
use crate::limits::RANKS_PER_HOST_MAX;
use crate::sys::process::bind_to_parent;
use crossbeam::channel::{self, Receiver, Sender};
use std::env;
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd};

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
    /// The job's name: the same on every host, and `TORCHELASTIC_RUN_ID` of the ranks, which
    /// without one find a made one there.
    pub id: Option<String>,
    /// How often all ranks are started again after one has failed.
    pub max_restarts: u16,
    /// How the ranks' output is passed on.
    pub output: Output,
    /// The other hosts; nothing for a job of this host alone.
    pub meeting: Option<Meeting>,
}

/// Both ends of the channel of events.
pub(super) type Events = (Sender<Event>, Receiver<Event>);

/// Runs a job to its end and returns its exit code: 0, or 1 when it failed, after one line on
/// standard error has said why.
///
/// When a rank fails, all ranks of all hosts are stopped. While restarts are left they are then
/// started again, as a new attempt with a fresh rendezvous; whatever is left of an earlier attempt
/// is refused there. Nothing is restarted after a signal to a launcher, when a launcher is gone, or
/// when the first to fail ended with exit code 2, by which programs say that they were called
/// wrongly: it would do so again. What a rank had in memory is lost; it must find its checkpoint.
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
///     id: Some("night-run".into()),
///     max_restarts: 3,
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
    settings::check_environment(setting)?;
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
            supervise(job, alone(job)?, made.as_deref(), events)
        }
    }
}

/// A job of one host needs to meet nobody.
fn alone(job: &Job) -> Result<Met> {
    let endpoint = job.meeting.as_ref().map(|meeting| &*meeting.endpoint);
    Ok(Met {
        placement: Placement {
            node: 0,
            nodes: 1,
            host: host_name(),
            first_rank: 0,
            world_size: job.ranks,
            run_id: run_id(job)?,
        },
        attempt: Attempt::alone(0, endpoint)?,
        peers: Box::new(Alone::new(job)),
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
        id: None,
        max_restarts: 0,
        output: Output::Plain,
        meeting: None,
    })
}

/// A setting of the environment, unless it is empty.
fn setting(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.trim().is_empty())
}

/// Stands by the ranks of this host through all attempts of the job.
fn supervise(job: &Job, met: Met, made: Option<&str>, events: Events) -> Result<i32> {
    let Met {
        placement,
        mut attempt,
        peers,
    } = met;
    let mut supervisor = Supervisor::new(placement.launcher_name(), peers, events)?;
    loop {
        let end =
            start(job, &placement, attempt, made, &mut supervisor).and_then(|()| supervisor.run());
        match end {
            Ok(End::Succeeded) => return Ok(0),
            Ok(End::Failed(cause)) => {
                eprintln!("ringtree: {}", cause.text);
                return Ok(1);
            }
            Ok(End::Again(next)) => attempt = next,
            Err(error) => {
                supervisor.abandon(&error);
                return Err(error);
            }
        }
    }
}

/// Starts the ranks of this host.
fn start(
    job: &Job,
    placement: &Placement,
    mut attempt: Attempt,
    made: Option<&str>,
    supervisor: &mut Supervisor,
) -> Result<()> {
    for local_rank in 0..job.ranks {
        let rank = placement.first_rank + local_rank;
        let mut command = attempt.command(job, placement, local_rank);
        if let Some(secret) = made {
            command.env(secret::VARIABLE, secret);
        }
        let inherited = attempt.listener.take();
        if let Some(listener) = &inherited {
            command.env(LISTENER_VARIABLE, listener.as_raw_fd().to_string());
        }
        bind_to_parent(&mut command, inherited.as_ref().map(AsFd::as_fd));
        let prefix = (job.output == Output::Prefixed).then(|| format!("[{rank}]: "));
        supervisor.spawn(placement.rank_name(rank), &mut command, prefix)?;
    }
    Ok(())
}
