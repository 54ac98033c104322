//! Carries rank 0's address and a fresh secret to the other ranks over a channel of their launcher.

use super::placement::Meeting;
use super::settings::Settings;
use super::unique_id::UniqueId;
use crate::error::{Error, Result};
use crate::lock::lock;
use crate::protocol::pmi::{Exchange, Next};
use crate::sys::inherit::duplicate_socket;
use crate::sys::mpi::{self, Mpi};
use crate::sys::pmix;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

/// The ID that a launcher has carried. A process can use a launcher's channel only once, so later
/// joins use the same ID.
static CARRIED: Mutex<Option<UniqueId>> = Mutex::new(None);
/// Name of the file in the launcher's directory.
const FILE: &str = "ringtree-id";
/// The time between two checks for an answer and for cancellation.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum length of a line from the launcher.
const ANSWER_BYTES_MAX: usize = 4096;

/// The file through which rank 0 passes its ID. Rank 0 removes it when the join has ended, so that
/// a later program of the same job cannot read it.
pub(super) struct Carried(Option<PathBuf>);

impl Drop for Carried {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = fs::remove_file(path);
        }
    }
}

/// Receives rank 0's address and a secret over the launcher's channel, if the ranks have neither
/// another way to find rank 0 nor a single rank. A secret that the user has set takes precedence.
pub(super) fn carry(settings: &mut Settings) -> Result<Carried> {
    let Some(channel) = settings.channel.take() else {
        return Ok(Carried(None));
    };
    let mut carried = lock(&CARRIED);
    let mut file = None;
    let id = match &*carried {
        Some(id) => id.clone(),
        None => carried
            .insert(exchange(settings, &channel, &mut file)?)
            .clone(),
    };
    let own = settings.secret.take();
    settings.use_id(&id);
    if own.is_some() {
        settings.secret = own;
    }
    Ok(Carried(file))
}

fn exchange(
    settings: &Settings,
    channel: &Meeting,
    file: &mut Option<PathBuf>,
) -> Result<UniqueId> {
    let own = match settings.rank {
        0 => Some(own_id(settings)?),
        _ => None,
    };
    let value = own.as_ref().map(UniqueId::to_hex);
    let carried = match channel {
        Meeting::Pmi(descriptor) => over_pmi(settings, *descriptor, value),
        Meeting::Pmix(directory) => match directory.as_deref().filter(|one| is_private(one)) {
            Some(directory) => over_directory(settings, directory, value, file),
            None => over_pmix(settings, value),
        },
        _ => unreachable!("invariant: only launchers that have a channel are asked"),
    }?;
    match own {
        Some(own) => Ok(own),
        None => carried.parse(),
    }
}

/// Returns a new ID for this job, whose rank 0 this process is.
fn own_id(settings: &Settings) -> Result<UniqueId> {
    match &settings.interface {
        Some(interface) => UniqueId::on(interface),
        None if settings.local_world_size == Some(settings.world_size) => UniqueId::on("127.0.0.1"),
        None => UniqueId::new(),
    }
}

/// Returns the error of a channel that failed.
fn failed(settings: &Settings, channel: &str, why: impl std::fmt::Display) -> Error {
    let rank = settings.rank;
    Error::join(format!(
        "rank {rank} cannot receive rank 0's address over {channel}: {why}; set \
         RINGTREE_RENDEZVOUS=HOST:PORT and RINGTREE_SECRET on all ranks instead"
    ))
    .with_rank(rank)
}

/// Waits for `attempt` to return a value, until the join is canceled or its time limit expires.
fn wait<T>(
    settings: &Settings,
    channel: &str,
    mut attempt: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = settings.deadline();
    loop {
        settings.check_cancelled()?;
        if let Some(value) = attempt()? {
            return Ok(value);
        }
        if Instant::now() >= deadline {
            let why = format!("it is not there after {} ms", settings.timeout.as_millis());
            return Err(failed(settings, channel, why));
        }
    }
}

fn over_pmi(settings: &Settings, descriptor: i32, value: Option<String>) -> Result<String> {
    let channel = format!("PMI (PMI_FD={descriptor})");
    let failed = |why: String| failed(settings, &channel, why);
    let is_shared = match mpi::state() {
        Mpi::NotLoaded => false,
        Mpi::Initialized => true,
        Mpi::NotInitialized => {
            let why = "the program has loaded an MPI library, which has to be initialized first";
            return Err(failed(why.to_owned()));
        }
    };
    let broken = |error: io::Error| failed(error.to_string());
    let mut stream = fs::File::from(duplicate_socket(descriptor).map_err(broken)?);
    let (mut exchange, mut line) = Exchange::new(value, is_shared);
    loop {
        stream.write_all(line.as_bytes()).map_err(broken)?;
        let mut answer = Vec::new();
        let answer = wait(settings, &channel, || {
            read_line(&mut stream, &mut answer).map_err(broken)
        })?;
        match exchange.receive(&answer).map_err(failed)? {
            Next::Send(next) => line = next,
            Next::Done(value) => return Ok(value),
        }
    }
}

/// Returns the next line from the launcher, without its line break, or `None` if it has not arrived
/// yet. `answer` holds the beginning of the line.
fn read_line(stream: &mut fs::File, answer: &mut Vec<u8>) -> io::Result<Option<String>> {
    let pause = Timespec::try_from(CHECK_INTERVAL).map_err(io::Error::other)?;
    if poll(&mut [PollFd::new(stream, PollFlags::IN)], Some(&pause))? == 0 {
        return Ok(None);
    }
    // The launcher sends nothing after an answer, so no bytes of a later line can arrive.
    let mut bytes = [0; 512];
    match stream.read(&mut bytes)? {
        0 => return Err(io::Error::other("the launcher has closed it")),
        count => answer.extend_from_slice(&bytes[..count]),
    }
    if answer.len() > ANSWER_BYTES_MAX {
        return Err(io::Error::other(
            "the launcher sent a line that is too long",
        ));
    }
    let line = answer.strip_suffix(b"\n");
    Ok(line.map(|line| String::from_utf8_lossy(line).into_owned()))
}

/// Returns `true` if only this process's user can read and write the directory.
fn is_private(directory: &Path) -> bool {
    let user = rustix::process::geteuid().as_raw();
    fs::metadata(directory).is_ok_and(|found| {
        found.is_dir() && found.uid() == user && found.mode().trailing_zeros() >= 6
    })
}

/// Passes the value of rank 0 through a file in a private directory.
fn over_directory(
    settings: &Settings,
    directory: &Path,
    value: Option<String>,
    file: &mut Option<PathBuf>,
) -> Result<String> {
    let path = directory.join(FILE);
    let channel = format!("the file {}", path.display());
    let broken = |error: io::Error| failed(settings, &channel, error);
    if let Some(value) = value {
        let draft = directory.join(format!("{FILE}.{}", std::process::id()));
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let written = options
            .open(&draft)
            .and_then(|mut open| open.write_all(value.as_bytes()));
        written
            .and_then(|()| fs::rename(&draft, &path))
            .map_err(broken)?;
        *file = Some(path);
        return Ok(value);
    }
    wait(settings, &channel, || match fs::read_to_string(&path) {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            std::thread::sleep(CHECK_INTERVAL);
            Ok(None)
        }
        Err(error) => Err(broken(error)),
    })
}

/// Passes the value of rank 0 with libpmix. The library cannot be interrupted while it waits for
/// the other ranks, so it runs on a separate thread, which is abandoned if the time limit
/// expires.
fn over_pmix(settings: &Settings, value: Option<String>) -> Result<String> {
    let (send, received) = std::sync::mpsc::channel();
    let call = move || {
        let _ = send.send(pmix::exchange(value.as_deref()));
    };
    let thread = std::thread::Builder::new().name("ringtree-pmix".to_owned());
    thread
        .spawn(call)
        .map_err(|error| Error::io("cannot start a thread", &error))?;
    let channel = "PMIx";
    wait(settings, channel, || {
        match received.recv_timeout(CHECK_INTERVAL) {
            Ok(Ok(value)) => Ok(Some(value)),
            Ok(Err(why)) => Err(failed(settings, channel, why)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                Err(failed(settings, channel, "its thread ended"))
            }
        }
    })
}
