//! A job from its start to its exit code.

use super::alone::Alone;
use super::attempt::{Attempt, LISTENER_VARIABLE, Placement, run_id};
use super::event::{Events, Met};
use super::job::{Job, Output};
use super::log::{self, Log};
use super::meet::meet;
use super::route::Route;
use super::secret;
use super::streams;
use super::supervise::{End, Supervisor};
use crate::bootstrap::{address::host_name, settings};
use crate::control::descriptors;
use crate::error::{Error, Result};
use crate::limits::RANKS_PER_HOST_MAX;
use crossbeam_channel as channel;
use std::env;
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::sync::Arc;

/// Runs a job to its end and returns its exit code: 0, or 1 when it failed, after one line on
/// standard error has said why; 2 when the rank that failed said with that code that it was called
/// wrongly.
///
/// When a rank fails, all ranks of all hosts are stopped. While restarts are left they are then
/// started again, as a new attempt with a fresh rendezvous; whatever is left of an earlier attempt
/// is refused there. Nothing is restarted after a signal to a launcher, when a launcher is gone, or
/// when the first to fail ended with exit code 2, by which programs say that they were called
/// wrongly: it would do so again. What a rank had in memory is lost; it must find its checkpoint.
///
/// Call it from a thread that does nothing else: the ranks die with the thread. While it runs, the
/// signals SIGINT, SIGTERM and SIGHUP are passed on to the ranks, and SIGTSTP stops the job on this
/// host until SIGCONT; afterwards they do nothing. A signal that was ignored stays ignored.
///
/// The line on standard error names the first rank that failed, its host and how it ended. What
/// that rank wrote last is quoted unless it has been shown there already.
///
/// Where standard output or standard error is not read, ranks that write wait, as at any pipe;
/// nothing else does.
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
///     meeting: None,
///     sessions: false,
/// };
/// std::process::exit(run(&job)?);
/// # Ok::<(), ringtree::Error>(())
/// ```
///
/// # Errors
/// [`Error::configuration`] when the program cannot be started or a setting is wrong;
/// [`Error::join`] when the launchers did not come together; [`Error::system`] when the operating
/// system refuses something. No rank is running then.
pub fn run(job: &Job) -> Result<i32> {
    if job.ranks == 0 || job.ranks > RANKS_PER_HOST_MAX {
        return Err(Error::usage(format!(
            "a host runs 1 to {RANKS_PER_HOST_MAX} ranks, not {}",
            job.ranks
        )));
    }
    if let Some(folder) = &job.log_folder {
        if matches!(job.output, Output::Inherit | Output::Plain) {
            return Err(Error::usage(
                "ranks that write to the launcher's own streams leave no log: take the output \
                 prefixed or rank0, or no folder for logs",
            ));
        }
        log::make(folder)?;
    }
    settings::check_environment(setting)?;
    // A rank needs some for every other rank, and so does the launcher.
    descriptors::raise_limit();
    let secret = settings::secret(&setting)?;
    let events = channel::unbounded();
    match &job.meeting {
        Some(meeting) if meeting.nodes > 1 => {
            let secret = secret.ok_or_else(secret::missing)?;
            let timeout = settings::timeout(&setting)?;
            let met = meet(job, meeting, &secret, timeout, &events)?;
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

/// A job of one host has no other launchers to meet.
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
        attempt: Attempt::alone(0, endpoint, None)?,
        peers: Box::new(Alone::new(endpoint, job.max_restarts)),
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
        .map_err(|error| Error::io("cannot find this program's own file", &error))?;
    spawn(program, env::args_os().skip(1).collect(), ranks)
}

/// Runs `program` with these arguments as `ranks` ranks on this host, as [`spawn_self`] runs this
/// one.
///
/// # Errors
/// As [`run`].
pub fn spawn(program: PathBuf, arguments: Vec<OsString>, ranks: usize) -> Result<i32> {
    run(&on_this_host(program, arguments, ranks))
}

/// The job of [`spawn`].
#[doc(hidden)]
#[must_use]
pub fn on_this_host(program: PathBuf, arguments: Vec<OsString>, ranks: usize) -> Job {
    Job {
        program: program.into_os_string(),
        arguments,
        ranks,
        id: None,
        max_restarts: 0,
        output: Output::Plain,
        log_folder: None,
        meeting: None,
        sessions: false,
    }
}

/// A setting of the environment, unless it is empty.
fn setting(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.trim().is_empty())
}

/// Supervises the ranks of this host through all attempts of the job.
fn supervise(job: &Job, met: Met, made: Option<&str>, events: Events) -> Result<i32> {
    let Met {
        placement,
        mut attempt,
        peers,
    } = met;
    let mut supervisor = Supervisor::new(placement.launcher_name(), peers, events, job.sessions)?;
    let logs = match Log::open_all(job.log_folder.as_deref(), &placement, job.ranks) {
        Ok(logs) => logs,
        Err(error) => {
            supervisor.abandon(&error);
            return Err(error);
        }
    };
    loop {
        let end = start(job, &placement, attempt, (made, &logs), &mut supervisor);
        match end.and_then(|()| supervisor.run()) {
            Ok(End::Succeeded) => {
                streams::settle();
                return Ok(0);
            }
            Ok(End::Failed { line, exit_code }) => {
                streams::tell(&line);
                return Ok(exit_code);
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
    (made, logs): (Option<&str>, &[Arc<Log>]),
    supervisor: &mut Supervisor,
) -> Result<()> {
    for local_rank in 0..job.ranks {
        let rank = placement.first_rank + local_rank;
        let mut command = attempt.command(job, placement, local_rank);
        if let Some(secret) = made {
            command.env(secret::VARIABLE, secret);
        }
        // The first of this host; there is a listener where that is rank 0.
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
        supervisor.spawn((rank, name), command, &inherited, route)?;
    }
    Ok(())
}
