//! Runs a job and determines the launcher's exit code.

use super::affinity::Binding;
use super::alone::Alone;
use super::attempt::{Attempt, LISTENER_VARIABLE, Placement, run_id};
use super::event::{Events, Met};
use super::job::{Job, Output};
use super::log::{self, Log};
use super::rendezvous::meet;
use super::route::Route;
use super::secret;
use super::streams;
use super::supervise::{End, Supervisor};
use crate::bootstrap::{address::host_name, environment::Environment, settings};
use crate::control::descriptors;
use crate::error::{Error, Result};
use crate::limits::RANKS_PER_HOST_MAX;
use crossbeam_channel as channel;
use std::env;
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::sync::Arc;

/// Runs a job and returns its exit code.
///
/// The exit code is 0 on success, 2 if a rank failed with exit code 2 (which programs use to report
/// usage errors), and 1 otherwise. On failure, this function prints one line to standard error. The
/// line states which rank failed first, how it failed and, if there are several hosts, on which
/// host. The line quotes the rank's last output unless standard error already shows it.
///
/// When a rank fails, the launchers stop all ranks on all hosts. If any restarts are left, they
/// then start all ranks again in a new attempt, which rejects processes from earlier attempts.
/// Nothing in memory survives a restart, so each rank must load its checkpoint. The job is not
/// restarted if a rank exits with code 2, if a launcher receives a signal, or if a launcher is
/// lost.
///
/// Call this function from a thread that does nothing else, because the ranks die when that thread
/// exits. While the function is running, it forwards SIGINT, SIGTERM and SIGHUP to the ranks, and
/// SIGTSTP suspends this process and the ranks on this host until SIGCONT arrives. After the
/// function has returned, the process ignores these signals. A signal that was already ignored
/// remains ignored throughout.
///
/// If nothing reads standard output or standard error, only the ranks that write to it block, as
/// with any pipe.
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
///     log_folder: Some("logs".into()),
///     rendezvous: None,
///     cpus: Vec::new(),
///     sessions: false,
/// };
/// std::process::exit(run(&job)?);
/// # Ok::<(), ringtree::Error>(())
/// ```
///
/// # Errors
/// Returns an [`Error`] of one of the following kinds:
/// - [`ErrorKind::Usage`](crate::ErrorKind::Usage) if the number of ranks is out of range, or if
///   `log_folder` is set but `output` does not support it
/// - [`ErrorKind::Configuration`](crate::ErrorKind::Configuration) if the program cannot be
///   started, or if a setting, the endpoint or the log directory is invalid
/// - [`ErrorKind::Join`](crate::ErrorKind::Join) if the launchers cannot connect to each other
/// - [`ErrorKind::System`](crate::ErrorKind::System) if the operating system refuses to provide a
///   resource
///
/// If this function returns an error, no rank is running.
pub fn run(job: &Job) -> Result<i32> {
    if job.ranks == 0 || job.ranks > RANKS_PER_HOST_MAX {
        return Err(Error::usage(format!(
            "{} ranks on one host is out of range: expected 1 to {RANKS_PER_HOST_MAX}",
            job.ranks
        )));
    }
    if let Some(folder) = &job.log_folder {
        if matches!(job.output, Output::Inherit | Output::Plain) {
            return Err(Error::usage(
                "cannot keep logs if ranks write directly to the launcher's streams; set the \
                 output to prefixed or rank0, or omit the log directory",
            ));
        }
        log::make(folder)?;
    }
    settings::check_environment(setting)?;
    // The launcher needs descriptors for every rank on this host. The ranks inherit the limit and
    // need descriptors for every other rank.
    descriptors::raise_limit();
    let secret = settings::secret(&setting)?;
    let events = channel::unbounded();
    match &job.rendezvous {
        Some(rendezvous) if rendezvous.nodes > 1 => {
            let secret = secret.ok_or_else(secret::missing)?;
            let timeout = settings::timeout(&setting)?;
            let met = meet(job, rendezvous, &secret, timeout, &events)?;
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

/// Returns the launcher's state for a job on one host, which has no other launchers.
fn alone(job: &Job) -> Result<Met> {
    let endpoint = job
        .rendezvous
        .as_ref()
        .map(|rendezvous| &*rendezvous.endpoint);
    Ok(Met {
        placement: Placement {
            node: 0,
            nodes: 1,
            host: host_name(),
            first_rank: 0,
            world_size: job.ranks,
            run_id: run_id(job)?,
        },
        attempt: Attempt::alone(0, endpoint, None)?,
        peers: Box::new(Alone::new(endpoint, job.max_restarts)),
    })
}

/// Runs this program again, with the same arguments, as `ranks` ranks on this host. Returns the
/// job's exit code.
///
/// In the ranks, [`is_rank`] returns `true`. The ranks write directly to this process's standard
/// output, and their standard error is forwarded.
///
/// # Errors
/// Returns the same errors as [`run`]. Also returns an [`Error`] of kind
/// [`ErrorKind::System`](crate::ErrorKind::System) if the path of this program is unknown.
///
/// # Examples
/// ```no_run
/// use ringtree::launch::{is_rank, spawn_self};
/// if !is_rank() {
///     std::process::exit(spawn_self(4)?);
/// }
/// println!("one of four");
/// # Ok::<(), ringtree::Error>(())
/// ```
pub fn spawn_self(ranks: usize) -> Result<i32> {
    let program = env::current_exe()
        .map_err(|error| Error::io("cannot find this program's executable", &error))?;
    let arguments = env::args_os().skip(1).collect();
    run(&local_job(program, arguments, ranks))
}

/// Returns `true` if a launcher started this process as a rank, in which case
/// [`Communicator::from_env`](crate::Communicator::from_env) joins its world. Launchers are
/// [`run`], [`spawn_self`], torchrun, `mpirun` and `srun`. A single task of `srun` does not count,
/// because it may be a shell.
#[doc(alias("is_torchelastic_launched"))]
#[must_use]
pub fn is_rank() -> bool {
    let environment = Environment::current();
    settings::is_rank(|name| environment.get(name))
}

/// Returns the description of a job that runs `program` as `ranks` ranks on this host.
#[doc(hidden)]
#[must_use]
pub fn local_job(program: PathBuf, arguments: Vec<OsString>, ranks: usize) -> Job {
    Job {
        program: program.into_os_string(),
        arguments,
        ranks,
        id: None,
        max_restarts: 0,
        output: Output::Plain,
        log_folder: None,
        rendezvous: None,
        cpus: Vec::new(),
        sessions: false,
    }
}

/// Returns the value of an environment variable, or `None` if it is unset or empty.
fn setting(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.trim().is_empty())
}

/// Supervises the ranks on this host through all attempts and returns the job's exit code.
fn supervise(job: &Job, met: Met, made: Option<&str>, events: Events) -> Result<i32> {
    let Met {
        placement,
        mut attempt,
        peers,
    } = met;
    let mut supervisor = Supervisor::new(placement.launcher_name(), peers, events, job.sessions)?;
    let attempts = || -> Result<i32> {
        let logs = Log::open_all(job.log_folder.as_deref(), &placement, job.ranks)?;
        loop {
            start(job, &placement, attempt, (made, &logs), &mut supervisor)?;
            match supervisor.run()? {
                End::Succeeded => {
                    streams::settle();
                    return Ok(0);
                }
                End::Failed { line, exit_code } => {
                    streams::tell(&line);
                    return Ok(exit_code);
                }
                End::Again(next) => attempt = next,
            }
        }
    };
    attempts().inspect_err(|error| supervisor.abandon(error))
}

/// Starts the ranks on this host.
fn start(
    job: &Job,
    placement: &Placement,
    mut attempt: Attempt,
    (made, logs): (Option<&str>, &[Arc<Log>]),
    supervisor: &mut Supervisor,
) -> Result<()> {
    for local_rank in 0..job.ranks {
        let rank = placement.first_rank + local_rank;
        let mut command = attempt.command(job, placement, local_rank);
        if let Some(secret) = made {
            command.env(secret::VARIABLE, secret);
        }
        // Only the first rank on the host can be rank 0, which gets the listener.
        let listener = attempt.listener.take();
        let mut inherited = Vec::new();
        if let Some(listener) = &listener {
            command.env(LISTENER_VARIABLE, listener.as_raw_fd().to_string());
            inherited.push(listener.as_fd());
        }
        let log = logs.get(local_rank).cloned();
        if let Some(log) = &log {
            log.begin(&placement.run_id, attempt.number);
        }
        let route = Route::lay(job.output, (rank, local_rank), log, &mut command);
        let name = placement.rank_name(rank);
        let _binding = Binding::new(job.cpus.get(local_rank).map_or(&[], Vec::as_slice))?;
        supervisor.spawn((rank, name), command, &inherited, route)?;
    }
    Ok(())
}
