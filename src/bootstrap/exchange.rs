//! Carries rank 0's address and a fresh secret to the other ranks over a channel of their launcher.
//!
//! A process can use the channel only once, and an exchange that has begun cannot be started again.
//! So its state belongs to the process: a join that runs out of time leaves the exchange to the
//! next join, and later joins use the same ID.

use super::by_id::new_id;
use super::launcher_directory::LauncherDirectory;
use super::munge::{self, Server};
use super::placement::Meeting;
use super::settings::Settings;
use super::unique_id::UniqueId;
use crate::error::{Error, Result};
use crate::protocol::handshake::Secret;
use crate::protocol::pmi::{Exchange, Next};
use crate::sys::inherit::duplicate_socket;
use crate::sys::mpi::{self, Mpi};
use crate::sys::munge::Munge;
use crate::sys::pmix;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};

/// The interval between checks of the channel.
const PAUSE: Duration = Duration::from_millis(1);
/// The pause between two attempts to reach rank 0.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// The alternative to munge.
const SLURM_INSTEAD: &str = "use `srun --mpi=pmi2`, or run `export RINGTREE_SECRET=$(openssl rand \
                             -hex 32)` before srun";
/// Maximum length of a line from the launcher.
const ANSWER_BYTES_MAX: usize = 4096;

/// The exchange of this process.
static EXCHANGE: Mutex<State> = Mutex::new(State::NotBegun);

enum State {
    NotBegun,
    Running {
        /// The process that began it. A forked child must not continue it.
        process: u32,
        channel: Channel,
        /// The value that this process passes, if it is rank 0.
        own: Option<Passed>,
    },
    Done(UniqueId),
    /// The channel is no longer usable, for this reason.
    Broken(String),
}

/// The value that rank 0 passes to the other ranks.
#[derive(Clone)]
struct Passed {
    id: UniqueId,
    /// The fingerprint of rank 0's own secret, if the user has set one.
    fingerprint: Option<String>,
}

impl Passed {
    fn to_text(&self) -> String {
        match &self.fingerprint {
            Some(fingerprint) => format!("{}.{fingerprint}", self.id.to_hex()),
            None => self.id.to_hex(),
        }
    }

    fn parse(text: &str) -> std::result::Result<Self, String> {
        let (id, fingerprint) = match text.split_once('.') {
            Some((id, fingerprint)) => (id, Some(fingerprint.to_owned())),
            None => (text, None),
        };
        let id = id.parse().map_err(|error: Error| error.to_string())?;
        Ok(Self { id, fingerprint })
    }

    /// Checks that this rank has the same secret as rank 0, because a launcher may pass a variable
    /// to the ranks of one host only.
    fn check_secret(&self, rank: usize, own: Option<&Secret>) -> Result<()> {
        let own = own.map(Secret::fingerprint);
        if own == self.fingerprint {
            return Ok(());
        }
        let what = match (own, &self.fingerprint) {
            (None, _) => "rank 0 has a secret, but this rank does not",
            (_, None) => "this rank has a secret, but rank 0 does not",
            _ => "this rank and rank 0 have different secrets",
        };
        Err(Error::configuration(format!(
            "rank {rank}: {what}; pass RINGTREE_SECRET to all ranks, for example with `mpirun -x \
             RINGTREE_SECRET`, or to none"
        ))
        .with_rank(rank))
    }
}

enum Channel {
    Pmi {
        stream: OwnedFd,
        exchange: Exchange,
        /// Bytes that have to be sent.
        request: Vec<u8>,
        answer: Vec<u8>,
    },
    /// libpmix cannot be interrupted while it waits for the other ranks, so it runs on a separate
    /// thread.
    Pmix(Receiver<std::result::Result<String, String>>),
    /// Rank 0's server, which passes its ID with munge.
    Munge {
        address: String,
        step: String,
        /// The ID of this process, if it is rank 0.
        own: Option<String>,
        /// The reason why the last attempt failed.
        why: String,
    },
}

/// Receives rank 0's address and a secret over the launcher's channel, if the settings name one. A
/// secret that the user has set takes precedence. The time that this takes is subtracted from the
/// timeout.
///
/// # Errors
/// Returns `ErrorKind::Join` if the channel fails, if the time limit expires, or if the join is
/// canceled.
pub(super) fn carry(settings: &mut Settings) -> Result<()> {
    let Some(meeting) = settings.channel.take() else {
        return Ok(());
    };
    if let Meeting::Directory { path, job } = &meeting
        && let Ok(directory) = LauncherDirectory::open(path, job)
    {
        settings.start.store = Some(Arc::new(directory));
        return Ok(());
    }
    if matches!(meeting, Meeting::Address { .. })
        && (settings.secret.is_some() || Munge::load().is_none())
    {
        // The ranks meet at the address itself.
        return Ok(());
    }
    let began = Instant::now();
    let deadline = settings.deadline();
    let id = loop {
        settings.check_cancelled()?;
        // Another thread may be looking. After a fork, it may never release the lock.
        let found = match EXCHANGE.try_lock() {
            Ok(mut state) => advance(&mut state, settings, &meeting)?,
            Err(TryLockError::Poisoned(poisoned)) => {
                advance(&mut poisoned.into_inner(), settings, &meeting)?
            }
            Err(TryLockError::WouldBlock) => None,
        };
        if let Some(id) = found {
            break id;
        }
        if Instant::now() >= deadline {
            let limit_ms = settings.timeout.as_millis();
            let why = format!("it did not come within {limit_ms} ms{}", last_failure());
            return Err(failed(settings, &meeting, why));
        }
        std::thread::sleep(match meeting {
            Meeting::Address { .. } => RETRY_PAUSE,
            _ => PAUSE,
        });
    };
    let left = settings.timeout.saturating_sub(began.elapsed());
    settings.timeout = left.max(PAUSE);
    if let (Meeting::Address { address, step }, 0) = (&meeting, settings.rank) {
        let server = Server::start(address, step, &id);
        let server = server.map_err(|why| failed(settings, &meeting, why))?;
        settings.server = Some(Arc::new(server));
    }
    let own = settings.secret.take();
    settings.use_id(&id);
    if own.is_some() {
        settings.secret = own;
    }
    Ok(())
}

/// Returns a clause with the reason why the last attempt to reach rank 0 failed, if it is known.
fn last_failure() -> String {
    match EXCHANGE.try_lock().as_deref() {
        Ok(State::Running {
            channel: Channel::Munge { why, .. },
            ..
        }) if !why.is_empty() => format!(": {why}"),
        _ => String::new(),
    }
}

/// Advances the exchange without waiting, except for one attempt to connect. Returns the ID once it
/// is known.
fn advance(state: &mut State, settings: &Settings, meeting: &Meeting) -> Result<Option<UniqueId>> {
    let failed = |why: &str| failed(settings, meeting, why);
    if let State::NotBegun = state {
        let own = match settings.rank {
            0 => Some(Passed {
                id: new_id(settings)?,
                fingerprint: settings.secret.as_ref().map(Secret::fingerprint),
            }),
            _ => None,
        };
        let value = own.as_ref().map(Passed::to_text);
        *state = State::Running {
            process: std::process::id(),
            channel: Channel::open(meeting, value).map_err(|why| failed(&why))?,
            own,
        };
    }
    let (channel, own) = match state {
        State::Done(id) => return Ok(Some(id.clone())),
        State::Broken(why) => return Err(failed(why)),
        State::Running { process, .. } if *process != std::process::id() => {
            return Err(failed(
                "this process was forked while its parent was connecting",
            ));
        }
        State::Running { channel, own, .. } => (channel, own),
        State::NotBegun => unreachable!("invariant: the exchange has begun"),
    };
    let carried = match channel.advance() {
        Ok(None) => return Ok(None),
        Ok(Some(value)) => Passed::parse(&value),
        Err(why) => Err(why),
    };
    match carried {
        Ok(passed) => {
            // Rank 0's own value keeps its port reserved.
            let passed = own.take().unwrap_or(passed);
            *state = match (meeting, settings.rank) {
                // A later join asks rank 0 again, which may have been replaced.
                (Meeting::Address { .. }, 1..) => State::NotBegun,
                _ => State::Done(passed.id.clone()),
            };
            passed.check_secret(settings.rank, settings.secret.as_ref())?;
            Ok(Some(passed.id))
        }
        Err(why) => {
            let error = failed(&why);
            *state = State::Broken(why);
            Err(error)
        }
    }
}

/// Returns the error of a channel that failed.
fn failed(settings: &Settings, meeting: &Meeting, why: impl std::fmt::Display) -> Error {
    let rank = settings.rank;
    let channel = match meeting {
        Meeting::Pmi(descriptor) => format!("PMI (PMI_FD={descriptor})"),
        Meeting::Address { .. } => "munge".to_owned(),
        _ => "PMIx".to_owned(),
    };
    let (verb, instead) = match (rank, meeting) {
        (0, Meeting::Address { .. }) => ("pass its", SLURM_INSTEAD),
        (_, Meeting::Address { .. }) => ("receive rank 0's", SLURM_INSTEAD),
        _ => (
            "receive rank 0's",
            "set RINGTREE_RENDEZVOUS=HOST:PORT and RINGTREE_SECRET on all ranks instead",
        ),
    };
    Error::join(format!(
        "rank {rank} cannot {verb} address over {channel}: {why}; {instead}"
    ))
    .with_rank(rank)
}

impl Channel {
    fn open(meeting: &Meeting, value: Option<String>) -> std::result::Result<Self, String> {
        if let Meeting::Address { address, step } = meeting {
            munge::check()?;
            return Ok(Channel::Munge {
                address: address.clone(),
                step: step.clone(),
                own: value,
                why: String::new(),
            });
        }
        let is_shared = match mpi::state() {
            Mpi::NotLoaded => false,
            Mpi::Initialized => true,
            Mpi::NotInitialized => {
                return Err("the program has loaded an MPI library; call MPI_Init first".to_owned());
            }
            Mpi::Finalized => return Err("MPI is finalized; connect before".to_owned()),
        };
        let Meeting::Pmi(descriptor) = meeting else {
            let (sender, receiver) = channel();
            let call = move || {
                let _ = sender.send(pmix::exchange(value.as_deref()));
            };
            let thread = std::thread::Builder::new().name("ringtree-pmix".to_owned());
            let spawned = thread.spawn(call);
            spawned.map_err(|error| format!("cannot start a thread: {error}"))?;
            return Ok(Channel::Pmix(receiver));
        };
        let stream = duplicate_socket(*descriptor).map_err(|error| error.to_string())?;
        let (exchange, request) = Exchange::new(value, is_shared);
        Ok(Channel::Pmi {
            stream,
            exchange,
            request: request.into_bytes(),
            answer: Vec::new(),
        })
    }

    /// Returns the value of rank 0 once it has arrived.
    fn advance(&mut self) -> std::result::Result<Option<String>, String> {
        let (stream, exchange, request, answer) = match self {
            Channel::Pmix(receiver) => {
                return match receiver.try_recv() {
                    Ok(ended) => ended.map(Some),
                    Err(TryRecvError::Empty) => Ok(None),
                    Err(TryRecvError::Disconnected) => Err("its thread ended".to_owned()),
                };
            }
            Channel::Munge { own: Some(own), .. } => return Ok(Some(own.clone())),
            Channel::Munge {
                address, step, why, ..
            } => {
                return Ok(match munge::fetch(address, step) {
                    Ok(id) => Some(id.to_hex()),
                    Err(error) => {
                        *why = error;
                        None
                    }
                });
            }
            Channel::Pmi {
                stream,
                exchange,
                request,
                answer,
            } => (stream, exchange, request, answer),
        };
        loop {
            // A signal for a closed connection would end the process.
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            while !request.is_empty() {
                match send(&*stream, request, flags) {
                    Ok(count) => drop(request.drain(..count)),
                    Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
                    Err(error) => return Err(broken(error)),
                }
            }
            let Some(end) = answer.iter().position(|byte| *byte == b'\n') else {
                let mut bytes = [0; 512];
                match recv(&*stream, &mut bytes, RecvFlags::DONTWAIT) {
                    Ok((0, _)) => return Err(broken(Errno::PIPE)),
                    Ok((count, _)) if answer.len() < ANSWER_BYTES_MAX => {
                        answer.extend_from_slice(&bytes[..count]);
                        continue;
                    }
                    Ok(_) => return Err("the launcher sent a line that is too long".to_owned()),
                    Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
                    Err(error) => return Err(broken(error)),
                }
            };
            let line: Vec<u8> = answer.drain(..=end).collect();
            match exchange.receive(String::from_utf8_lossy(&line[..end]).as_ref())? {
                Next::Send(line) => request.extend_from_slice(line.as_bytes()),
                Next::Done(value) => return Ok(Some(value)),
            }
        }
    }
}

/// Describes an error of the connection to the launcher.
fn broken(error: Errno) -> String {
    match error {
        Errno::PIPE | Errno::CONNRESET => "the launcher has closed it; perhaps an earlier program \
                                           of this rank has used it, which only one can"
            .to_owned(),
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests;
