//! Reads a rank's settings from the environment.

use super::environment::{NOT_BUILT_YET, VARIABLES, host_and_port, malformed, optional, required};
use super::munge::Server;
use super::placement::{self, Meeting, Placement};
use super::start::Start;
use super::tuning::{JOB_TUNING, TUNING, TuningSource};
use crate::control::report::REPORT_FD;
use crate::error::{Error, Result};
use crate::event;
use crate::limits::{DEADLINE_DEFAULT, STALL_WARNING_DEFAULT, TIMEOUT_MAX, WORLD_SIZE_MAX};
use crate::protocol::handshake::{NONCE_BYTES, Secret, WIRE_VERSION};
use std::fs;
use std::num::NonZeroU16;
use std::os::fd::RawFd;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Variables that determine the rank of a process or the rendezvous.
const PLACE: &[&str] = &[
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "RINGTREE_RENDEZVOUS",
];

/// The variable that selects the transport.
const TRANSPORT: &str = "RINGTREE_TRANSPORT";

/// The variable that selects how GPU buffers are transferred.
const DEVICE_PATH: &str = "RINGTREE_DEVICE_PATH";

/// The variable that enables checks, which are intended for testing a program.
const CHECK: &str = "RINGTREE_CHECK";

/// The variable that makes sums reproducible.
const REPRODUCIBLE: &str = "RINGTREE_REPRODUCIBLE";

/// The variable that selects an algorithm.
const ALGORITHM: &str = "RINGTREE_ALGORITHM";

/// The transport to use for data. Set with `RINGTREE_TRANSPORT`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransportChoice {
    /// Shared memory between ranks that can share memory, and TCP between all others.
    #[default]
    Auto,
    /// Only TCP.
    Tcp,
    /// Only shared memory. Startup fails unless all ranks can share memory.
    Shm,
}

impl TransportChoice {
    /// Returns the name used in settings.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            TransportChoice::Auto => "auto",
            TransportChoice::Tcp => "tcp",
            TransportChoice::Shm => "shm",
        }
    }
}

impl FromStr for TransportChoice {
    type Err = String;

    /// Returns the transport with that name.
    ///
    /// # Errors
    /// Returns a message if the name is unknown.
    ///
    /// ```
    /// use ringtree::start::TransportChoice;
    /// assert_eq!("shm".parse(), Ok(TransportChoice::Shm));
    /// assert!("pigeon".parse::<TransportChoice>().is_err());
    /// ```
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let all = [Self::Auto, Self::Tcp, Self::Shm];
        let found = all.into_iter().find(|choice| choice.name() == text);
        found.ok_or_else(|| format!("{text}: unknown transport; use auto, tcp or shm"))
    }
}

/// The path that is used for GPU buffers. Set with `RINGTREE_DEVICE_PATH`. Ranks compare this
/// setting when they attach their devices (see `Communicator::attach`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DevicePathChoice {
    /// Mapped if all ranks can map each other's GPU memory, and staged otherwise.
    #[default]
    Auto,
    /// Always staged through host memory. No rank maps GPU memory.
    Staged,
    /// Always mapped. Attaching fails on all ranks unless all of them can map each other's GPU
    /// memory.
    Mapped,
}

impl DevicePathChoice {
    const ALL: &[Self] = &[Self::Auto, Self::Staged, Self::Mapped];

    /// Returns the name used in settings.
    pub(crate) fn name(self) -> &'static str {
        match self {
            DevicePathChoice::Auto => "auto",
            DevicePathChoice::Staged => "staged",
            DevicePathChoice::Mapped => "mapped",
        }
    }
}

ringtree_plan::named!(DevicePathChoice, "device path");

/// A rank's settings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    /// The rank of this process, counted from 0.
    pub rank: usize,
    /// The number of ranks.
    pub world_size: usize,
    /// The rank of this process on its host, counted from 0. If `None`, it is determined during the
    /// join.
    pub local_rank: Option<usize>,
    /// The number of ranks on this host. If `None`, it is determined during the join.
    pub local_world_size: Option<usize>,
    /// The address at which rank 0 listens, in the form `HOST:PORT`.
    pub rendezvous: String,
    /// If `true`, the next port is tried as well, because another service may be using the
    /// rendezvous port.
    pub next_port_too: bool,
    /// The launcher's channel, which carries the rendezvous and a secret.
    pub channel: Option<Meeting>,
    /// Passes rank 0's address to the other ranks as long as the ranks are joining.
    pub server: Option<Arc<Server>>,
    /// The name of the launcher that started this process, for messages. Empty if there was none.
    pub launcher: &'static str,
    /// The job's secret. Without a secret, every address must be a loopback address.
    pub secret: Option<Secret>,
    /// The time limit for the join, at most [`TIMEOUT_MAX`].
    pub timeout: Duration,
    /// The time that a call waits before it prints a warning. Zero turns off warnings and startup
    /// notices.
    pub stall_warning: Duration,
    /// The name or address of the interface for data connections. If `None`, the interface with a
    /// route to the rendezvous is used.
    pub interface: Option<String>,
    /// The name of this host. Ranks share memory only if their hosts have the same name. If `None`,
    /// the name is derived from the system.
    pub host_id: Option<String>,
    /// The name of this host's site. Links between sites are treated as slow. All hosts without a
    /// site name belong to the same site.
    pub site: Option<String>,
    /// The transport for data.
    pub transport: TransportChoice,
    /// The path that is used for GPU buffers.
    pub device_path: DevicePathChoice,
    /// If `true`, the ranks compare each call before it starts, and every send waits for the
    /// matching receive.
    pub checks_calls: bool,
    /// If `true`, only algorithms that reduce in rank order are used.
    pub is_reproducible: bool,
    /// The algorithm to use for every collective that it implements. `None` means `auto`.
    pub algorithm: Option<String>,
    /// The source of the link speed table.
    pub tuning: TuningSource,
    /// The number of times that the job had been restarted when this process started. Processes
    /// from different attempts reject each other. `ringtree run` sets this value through
    /// `RINGTREE_ATTEMPT`.
    pub attempt: u16,
    /// The descriptor of a listening socket for the rendezvous, which rank 0 inherits from its
    /// launcher.
    pub listener_fd: Option<RawFd>,
    /// The descriptor of a file for the rank's reports, which the rank inherits from its launcher.
    pub report_fd: Option<RawFd>,
    /// Values that the program itself provides for the join.
    pub start: Start,
}

impl Settings {
    /// Returns settings for the given rank, with default values for everything else.
    #[must_use]
    pub(crate) fn new(rank: usize, world_size: usize, rendezvous: &str) -> Self {
        Self {
            rank,
            world_size,
            rendezvous: rendezvous.to_owned(),
            timeout: DEADLINE_DEFAULT,
            stall_warning: STALL_WARNING_DEFAULT,
            ..Self::default()
        }
    }

    /// Reads the settings from torchrun's and ringtree's variables.
    ///
    /// # Errors
    /// Returns `ErrorKind::Configuration` if a variable is missing, malformed or not supported.
    pub(crate) fn from_env(lookup: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let set = |name: &str| lookup(name).filter(|value| !value.trim().is_empty());
        reject_unimplemented(&set)?;
        log_level(&set)?;
        let Some(placement) = placement::find(&set)? else {
            return Err(placement::not_started(&set));
        };
        let rendezvous = rendezvous(&set, &placement)?;
        let mut settings = Self::new(placement.rank, placement.world_size, &rendezvous.address);
        settings.next_port_too = rendezvous.next_port_too;
        settings.channel = rendezvous.channel;
        settings.launcher = placement.launcher;
        settings.local_rank = placement.local_rank;
        settings.local_world_size = placement.local_world_size;
        settings.secret = secret(&set)?;
        settings.timeout = timeout(&set)?;
        let seconds = optional(&set, "RINGTREE_STALL_WARNING_S", "a number of seconds")?;
        settings.stall_warning = seconds.map_or(STALL_WARNING_DEFAULT, Duration::from_secs);
        let word = |name| set(name).map(|value| value.trim().to_owned());
        settings.interface = word("RINGTREE_INTERFACE");
        settings.host_id = word("RINGTREE_HOST_ID");
        settings.site = word("RINGTREE_SITE");
        settings.transport = transport(&set)?;
        settings.device_path = device_path(&set)?;
        settings.checks_calls = checks_calls(&set)?;
        settings.is_reproducible = is_reproducible(&set)?;
        settings.algorithm = word(ALGORITHM).filter(|name| name != "auto");
        settings.tuning = match (set(TUNING), set(JOB_TUNING)) {
            (Some(value), _) => TuningSource::of_setting(&value)?,
            (None, Some(text)) => TuningSource::HandedOn(text),
            (None, None) => TuningSource::Measured,
        };
        settings.report_fd = optional(&set, REPORT_FD, "a file descriptor")?;
        // Do not use TORCHELASTIC_RESTART_COUNT, in which torchrun counts the failures on each
        // host: its value differs between the hosts in one attempt.
        if let Some(attempt) = optional(&set, "RINGTREE_ATTEMPT", "a number of restarts")? {
            settings.attempt = attempt;
        }
        settings.listener_fd = optional(&set, "RINGTREE_LISTENER_FD", "a file descriptor")?;
        settings.check()?;
        Ok(settings)
    }

    /// Like [`from_env`](Self::from_env), but returns the settings of a single rank if no variable
    /// in [`PLACE`] is set and no other launcher started this process.
    ///
    /// # Errors
    /// Returns the same errors as [`from_env`](Self::from_env), even if only some of the required
    /// variables are set.
    pub(crate) fn from_env_or_alone(lookup: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let set = |name: &str| lookup(name).filter(|value| !value.trim().is_empty());
        if PLACE.iter().any(|name| set(name).is_some()) || placement::find(&set)?.is_some() {
            return Self::from_env(lookup);
        }
        let settings = Self::from_env(|name| match name {
            "RANK" => Some("0".to_owned()),
            "WORLD_SIZE" => Some("1".to_owned()),
            _ => lookup(name),
        })?;
        Ok(Self {
            launcher: "",
            ..settings
        })
    }

    /// Reads the settings for a program that sets the rank and the number of ranks itself.
    ///
    /// # Errors
    /// See [`from_env`](Self::from_env).
    pub(crate) fn for_rank(
        rank: usize,
        world_size: usize,
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Self> {
        Self::from_env(|name| match name {
            "RANK" => Some(rank.to_string()),
            "WORLD_SIZE" => Some(world_size.to_string()),
            "RINGTREE_RENDEZVOUS" => Some("127.0.0.1:29500".to_owned()),
            // The launcher's socket belongs to a rendezvous that this rank does not use.
            "RINGTREE_LISTENER_FD" => None,
            _ if PLACE.contains(&name) || placement::is_of_other_launcher(name) => None,
            _ => lookup(name),
        })
    }

    /// Returns an upper bound on the number of ranks on this host, for use before the join
    /// determines the actual number.
    pub(super) fn local_world_size_at_most(&self) -> usize {
        self.local_world_size.unwrap_or(self.world_size)
    }

    /// Returns the deadline for a join that starts now.
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.timeout.min(TIMEOUT_MAX)
    }

    /// Returns the names and values of all settings that must be the same on all ranks.
    pub(super) fn to_agree(&self) -> Vec<(String, String)> {
        let algorithm = self.algorithm.as_deref().unwrap_or("auto");
        let check = if self.checks_calls { "calls" } else { "" };
        let agreed = [
            ("ringtree's version", env!("CARGO_PKG_VERSION").to_owned()),
            ("ringtree's wire version", WIRE_VERSION.to_string()),
            (ALGORITHM, algorithm.to_owned()),
            (TRANSPORT, self.transport.name().to_owned()),
            (TUNING, self.tuning.to_agree()),
            (CHECK, check.to_owned()),
            (REPRODUCIBLE, u8::from(self.is_reproducible).to_string()),
        ];
        agreed.map(|(name, value)| (name.to_owned(), value)).into()
    }

    /// Checks that all numbers are in range.
    ///
    /// # Errors
    /// Returns `ErrorKind::Configuration` if a number is out of range.
    pub(crate) fn check(&self) -> Result<()> {
        let Self {
            rank, world_size, ..
        } = *self;
        let local_world_size = self.local_world_size_at_most();
        let out_of_range = if world_size == 0 || world_size > WORLD_SIZE_MAX {
            format!("WORLD_SIZE={world_size} is out of range: expected 1 to {WORLD_SIZE_MAX}")
        } else if rank >= world_size {
            let last = world_size - 1;
            format!(
                "RANK={rank} is out of range: with WORLD_SIZE={world_size}, valid ranks are 0 to \
                 {last}"
            )
        } else if local_world_size == 0 || local_world_size > world_size {
            format!(
                "LOCAL_WORLD_SIZE={local_world_size} is out of range: expected 1 to {world_size} \
                 (WORLD_SIZE)"
            )
        } else if self.timeout.is_zero() {
            "RINGTREE_TIMEOUT_MS=0 is out of range: expected at least 1".to_owned()
        } else {
            return Ok(());
        };
        Err(Error::configuration(out_of_range))
    }
}

/// Returns `true` if a launcher started this process as a rank, or if its variables are malformed.
/// A single task of Slurm does not count, because it may be a shell.
pub(crate) fn is_rank(lookup: impl Fn(&str) -> Option<String>) -> bool {
    let set = |name: &str| lookup(name).filter(|value| !value.trim().is_empty());
    let found = placement::find(&set);
    PLACE.iter().any(|name| set(name).is_some())
        || found.map_or(true, |found| {
            found.is_some_and(|found| !found.is_single_task())
        })
}

/// Checks the settings that do not depend on the rank. This is intended for programs that never
/// join a world.
///
/// # Errors
/// Returns `ErrorKind::Configuration` if a setting is malformed or not supported.
///
/// ```
/// use ringtree::internal::bootstrap::check_environment;
/// assert!(check_environment(|_| None).is_ok());
/// let encrypted = |name: &str| (name == "RINGTREE_ENCRYPT").then(|| "1".to_owned());
/// assert!(check_environment(encrypted).is_err());
/// ```
pub fn check_environment(lookup: impl Fn(&str) -> Option<String>) -> Result<()> {
    let set = |name: &str| lookup(name).filter(|value| !value.trim().is_empty());
    reject_unimplemented(&set)?;
    log_level(&set)?;
    transport(&set)?;
    checks_calls(&set)?;
    is_reproducible(&set)?;
    device_path(&set).map(|_| ())
}

/// Like [`check_environment`], but also checks the settings that only ranks read. The variables
/// that determine the rank and the rendezvous are checked only if `RANK` is set.
///
/// # Errors
/// Returns `ErrorKind::Configuration` if a setting is malformed or not supported.
///
/// ```
/// use ringtree::internal::bootstrap::check_settings;
/// assert!(check_settings(|_| None).is_ok());
/// let timeout = |name: &str| (name == "RINGTREE_TIMEOUT_MS").then(|| "soon".to_owned());
/// assert!(check_settings(timeout).is_err());
/// ```
pub fn check_settings(lookup: impl Fn(&str) -> Option<String>) -> Result<()> {
    let is_rank = lookup("RANK").is_some_and(|rank| !rank.trim().is_empty());
    let settings = match is_rank {
        true => Settings::from_env(lookup),
        false => Settings::for_rank(0, 1, lookup),
    };
    settings.map(drop)
}

/// Returns an error if a setting that is not implemented has a value other than the default.
fn reject_unimplemented(set: &impl Fn(&str) -> Option<String>) -> Result<()> {
    for one in VARIABLES.iter().filter(|one| one.meaning == NOT_BUILT_YET) {
        if let Some(value) = set(one.name).filter(|value| value.trim() != one.default) {
            return Err(Error::configuration(format!(
                "{}={value} is not supported by ringtree {} yet; unset it",
                one.name,
                env!("CARGO_PKG_VERSION")
            )));
        }
    }
    Ok(())
}

/// Checks the value of `RINGTREE_LOG`, which [`event`] reads.
fn log_level(set: &impl Fn(&str) -> Option<String>) -> Result<()> {
    match set(event::LOG).filter(|value| event::level(value).is_none()) {
        Some(value) => {
            let meaning = "off, error, warn, info, debug or trace";
            Err(malformed(event::LOG, &value, meaning))
        }
        None => Ok(()),
    }
}

fn transport(set: &impl Fn(&str) -> Option<String>) -> Result<TransportChoice> {
    let choice = set(TRANSPORT).map(|value| value.trim().parse());
    let choice = choice.transpose();
    choice
        .map(Option::unwrap_or_default)
        .map_err(|why| Error::configuration(format!("{TRANSPORT}={why}")))
}

fn device_path(set: &impl Fn(&str) -> Option<String>) -> Result<DevicePathChoice> {
    let choice = set(DEVICE_PATH).map(|value| value.trim().parse());
    let choice = choice.transpose().map(Option::unwrap_or_default);
    choice.map_err(|why: <DevicePathChoice as FromStr>::Err| {
        Error::configuration(format!("{DEVICE_PATH}: {why}"))
    })
}

fn checks_calls(set: &impl Fn(&str) -> Option<String>) -> Result<bool> {
    match set(CHECK).as_deref().map(str::trim) {
        None => Ok(false),
        Some("calls") => Ok(true),
        Some(other) => Err(Error::configuration(format!(
            "{CHECK}={other}: unknown check; use calls"
        ))),
    }
}

fn is_reproducible(set: &impl Fn(&str) -> Option<String>) -> Result<bool> {
    match set(REPRODUCIBLE).as_deref().map(str::trim) {
        None | Some("0") => Ok(false),
        Some("1") => Ok(true),
        Some(other) => Err(Error::configuration(format!(
            "{REPRODUCIBLE}={other}: expected 0 or 1"
        ))),
    }
}

/// Returns the rendezvous in `value`, or an error in which the setting has the name `name`.
fn rendezvous_of(name: &str, value: &str) -> Result<String> {
    let value = value.trim();
    let is_address = |(host, port): (&str, &str)| !host.is_empty() && port.parse::<u16>().is_ok();
    match value.rsplit_once(':').is_some_and(is_address) {
        true => Ok(value.to_owned()),
        false => Err(malformed(
            name,
            value,
            "the HOST:PORT at which rank 0 listens",
        )),
    }
}

/// Checks the rendezvous of a program that sets the rendezvous or its rank in code. The errors name
/// the values that the program can set. `told` returns the values that are set in code, and `said`
/// also returns environment variables.
pub(crate) fn check_rendezvous<'a>(
    told: impl Fn(&str) -> Option<&'a String>,
    said: impl Fn(&str) -> Option<String>,
) -> Result<()> {
    if let Some(address) = told("RINGTREE_RENDEZVOUS") {
        return rendezvous_of("rendezvous", address).map(drop);
    }
    let is_set = |name: &str| said(name).is_some_and(|value| !value.trim().is_empty());
    let is_found = is_set("RINGTREE_RENDEZVOUS") || is_set("MASTER_ADDR");
    let is_alone = said("WORLD_SIZE").is_none_or(|size| size.trim() == "1");
    if told("RANK").is_none() || is_found || is_alone {
        return Ok(());
    }
    Err(Error::configuration(
        "MASTER_ADDR is not set; pass `rendezvous` or `store`, or start the program with `ringtree \
         run` or torchrun",
    ))
}

/// The way in which the ranks meet.
struct Rendezvous {
    address: String,
    /// If `true`, the next port must be tried as well.
    next_port_too: bool,
    /// The launcher's channel that carries the address, if there is no other way to find it.
    channel: Option<Meeting>,
}

/// Returns the rendezvous of the ranks that a launcher started.
fn rendezvous(set: &impl Fn(&str) -> Option<String>, placement: &Placement) -> Result<Rendezvous> {
    let at = |address, next_port_too| {
        Ok(Rendezvous {
            address,
            next_port_too,
            channel: None,
        })
    };
    if let Some(value) = set("RINGTREE_RENDEZVOUS") {
        return at(rendezvous_of("RINGTREE_RENDEZVOUS", &value)?, false);
    }
    if placement.world_size == 1 && set("MASTER_ADDR").is_none() {
        return at("127.0.0.1:0".to_owned(), false);
    }
    let channel = placement.meeting.clone();
    match &placement.meeting {
        Meeting::Pmi(_) | Meeting::Pmix | Meeting::Directory { .. } => Ok(Rendezvous {
            address: String::new(),
            next_port_too: false,
            channel: Some(channel),
        }),
        Meeting::Address { address, .. } if set("MASTER_ADDR").is_none() => Ok(Rendezvous {
            address: address.clone(),
            next_port_too: true,
            channel: (!placement.is_on_one_host()).then_some(channel),
        }),
        Meeting::Unknown(why) if set("MASTER_ADDR").is_none() => {
            Err(Error::configuration(format!(
                "{} started this rank, but ringtree cannot tell where rank 0 is: {why}; or set \
                 RINGTREE_RENDEZVOUS to the HOST:PORT at which rank 0 listens",
                placement.launcher
            )))
        }
        Meeting::Master | Meeting::Address { .. } | Meeting::Unknown(_) => {
            let host: String = required(set, "MASTER_ADDR", "the address of rank 0's host")?;
            let port: NonZeroU16 =
                required(set, "MASTER_PORT", "a port on rank 0's host, 1 to 65535")?;
            at(host_and_port(&host, port.get()), true)
        }
    }
}

/// Returns the job's secret if the environment contains one.
pub(crate) fn secret(set: &impl Fn(&str) -> Option<String>) -> Result<Option<Secret>> {
    // The message omits the value, which may be the secret with a typo.
    let (text, must) = if let Some(text) = set("RINGTREE_SECRET") {
        (text, "RINGTREE_SECRET must be".to_owned())
    } else if let Some(path) = set("RINGTREE_SECRET_FILE") {
        let name = format!("RINGTREE_SECRET_FILE={path}");
        let text = fs::read_to_string(path.trim())
            .map_err(|error| Error::configuration(format!("{name} cannot be read: {error}")))?;
        (text, format!("{name} must contain"))
    } else {
        return Ok(None);
    };
    let secret = Secret::from_hex(&text).ok_or_else(|| {
        Error::configuration(format!(
            "{must} {} hexadecimal digits; generate them with `openssl rand -hex 32`",
            2 * NONCE_BYTES
        ))
    });
    secret.map(Some)
}

/// Returns the time that ranks and launchers wait for each other.
pub(crate) fn timeout(set: &impl Fn(&str) -> Option<String>) -> Result<Duration> {
    let timeout_ms = optional(set, "RINGTREE_TIMEOUT_MS", "a number of milliseconds")?;
    let timeout = timeout_ms.map_or(DEADLINE_DEFAULT, Duration::from_millis);
    Ok(timeout.min(TIMEOUT_MAX))
}

#[cfg(test)]
mod tests;
