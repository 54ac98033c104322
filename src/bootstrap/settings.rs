//! What a rank must know before it can meet the others.

use super::environment::{NOT_BUILT_YET, VARIABLES};
use super::start::Start;
use super::tuning::{JOB_TUNING, TUNING, TuningSource};
use crate::control::report::REPORT_FD;
use crate::error::{Error, Result};
use crate::limits::{DEADLINE_DEFAULT, STALL_WARNING_DEFAULT, TIMEOUT_MAX, WORLD_SIZE_MAX};
use crate::protocol::handshake::{NONCE_BYTES, Secret, WIRE_VERSION};
use std::fs;
use std::num::NonZeroU16;
use std::os::fd::RawFd;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// What says which of several processes this one is, and where they meet.
const PLACE: &[&str] = &[
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "RINGTREE_RENDEZVOUS",
];

/// Launchers whose variables are not understood yet, and in which of them each says how many
/// processes it has started.
const OTHER_LAUNCHERS: &[(&str, &str)] = &[
    ("Open MPI", "OMPI_COMM_WORLD_SIZE"),
    ("an MPI launcher", "PMI_SIZE"),
    ("Slurm", "SLURM_STEP_NUM_TASKS"),
];

/// What payload may travel over.
const TRANSPORT: &str = "RINGTREE_TRANSPORT";

/// How buffers on GPUs may travel.
const DEVICE_PATH: &str = "RINGTREE_DEVICE_PATH";

/// What is checked while a program is tested.
const CHECK: &str = "RINGTREE_CHECK";

/// Whether sums may depend on nothing but their operands.
const REPRODUCIBLE: &str = "RINGTREE_REPRODUCIBLE";

/// Settings that must be the same on all ranks, with what they are when unset; besides these, the
/// transport, the tuning, the checks and whether sums are reproducible.
const AGREED: &[(&str, &str)] = &[("RINGTREE_ALGORITHM", "auto")];

/// What payload may travel over: `RINGTREE_TRANSPORT`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransportChoice {
    /// Shared memory where ranks can share it, TCP elsewhere.
    #[default]
    Auto,
    /// TCP alone.
    Tcp,
    /// Shared memory alone: the join fails unless all ranks can share theirs.
    Shm,
}

impl TransportChoice {
    /// As it is spelt in settings.
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

    /// The transport of that name.
    ///
    /// ```
    /// use ringtree::TransportChoice;
    /// assert_eq!("shm".parse(), Ok(TransportChoice::Shm));
    /// assert!("pigeon".parse::<TransportChoice>().is_err());
    /// ```
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let all = [Self::Auto, Self::Tcp, Self::Shm];
        let found = all.into_iter().find(|choice| choice.name() == text);
        found.ok_or_else(|| format!("{text}: no such transport; there are auto, tcp and shm"))
    }
}

/// How buffers on GPUs may travel: `RINGTREE_DEVICE_PATH`. The ranks compare it when they attach
/// their devices (`Communicator::attach`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DevicePathChoice {
    /// Mapped where all ranks can map each other's GPU memory, staged elsewhere.
    #[default]
    Auto,
    /// Through the memory of the hosts; no GPU memory is mapped, on any rank.
    Staged,
    /// Mapped alone: attaching fails on all ranks unless all can map each other's GPU memory.
    Mapped,
}

impl DevicePathChoice {
    const ALL: &[Self] = &[Self::Auto, Self::Staged, Self::Mapped];

    /// As it is spelt in settings.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            DevicePathChoice::Auto => "auto",
            DevicePathChoice::Staged => "staged",
            DevicePathChoice::Mapped => "mapped",
        }
    }
}

ringtree_plan::named!(DevicePathChoice, "device path");

/// What a rank must know before it can meet the others.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// This process among all, from 0.
    pub rank: usize,
    /// How many processes there are.
    pub world_size: usize,
    /// This process among those of its host, if that was said; the join finds it.
    pub local_rank: Option<usize>,
    /// How many processes its host has, likewise.
    pub local_world_size: Option<usize>,
    /// Where rank 0 waits for the others: `host:port`.
    pub rendezvous: String,
    /// Whether another service may hold the rendezvous port, so that the next one is tried too.
    pub next_port_too: bool,
    /// The job's secret; without one every address must be loopback.
    pub secret: Option<Secret>,
    /// How long the join may take, at most [`TIMEOUT_MAX`].
    pub timeout: Duration,
    /// After how long a call that waits is told of; never, if that is zero.
    pub stall_warning: Duration,
    /// Name or address of the interface for data connections, if not the one that routes to the
    /// rendezvous.
    pub interface: Option<String>,
    /// Ranks with different host ids share no memory; by default found from the system.
    pub host_id: Option<String>,
    /// The name of this host's site: hosts of other sites are behind a slow link. Hosts without a
    /// name are at one site.
    pub site: Option<String>,
    /// What payload may travel over.
    pub transport: TransportChoice,
    /// How buffers on GPUs may travel.
    pub device_path: DevicePathChoice,
    /// Whether all ranks agree before each call, and every send waits for its receive.
    pub checks_calls: bool,
    /// Whether only algorithms that fold in rank order are used.
    pub is_reproducible: bool,
    /// The algorithm asked for, if not `auto`.
    pub algorithm: Option<String>,
    /// Where the table of link speeds comes from.
    pub tuning: TuningSource,
    /// Settings that must be equal on all ranks, by name; beside them those that have a field:
    /// the transport, the tuning, the checks and whether sums are reproducible.
    pub agreed: Vec<(String, String)>,
    /// How often the job had been restarted when this process was started; processes of different
    /// attempts refuse each other. From `RINGTREE_ATTEMPT`, which only `ringtree run` sets.
    pub attempt: u16,
    /// A listening socket for the rendezvous, inherited by rank 0 from its launcher.
    pub listener_fd: Option<RawFd>,
    /// A file of the launcher's, inherited by each rank, for the rank's reports.
    pub report_fd: Option<RawFd>,
    /// What the program brings.
    pub start: Start,
}

impl Settings {
    /// The settings of one rank that takes all else from the defaults.
    #[must_use]
    pub(crate) fn new(rank: usize, world_size: usize, rendezvous: &str) -> Self {
        Self {
            rank,
            world_size,
            local_rank: None,
            local_world_size: None,
            rendezvous: rendezvous.to_owned(),
            next_port_too: false,
            secret: None,
            timeout: DEADLINE_DEFAULT,
            stall_warning: STALL_WARNING_DEFAULT,
            interface: None,
            host_id: None,
            site: None,
            transport: TransportChoice::Auto,
            device_path: DevicePathChoice::Auto,
            checks_calls: false,
            is_reproducible: false,
            algorithm: None,
            tuning: TuningSource::default(),
            agreed: versions(),
            attempt: 0,
            listener_fd: None,
            report_fd: None,
            start: Start::default(),
        }
    }

    /// The settings in an environment: torchrun's variables, then our own.
    ///
    /// # Errors
    /// [`Error::configuration`] names the variable and what it should be.
    pub(crate) fn from_env(lookup: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let set = |name: &str| lookup(name).filter(|value| !value.trim().is_empty());
        refuse_what_is_not_built(&set)?;
        if set("RANK").is_none() {
            refuse_other_launchers(&set)?;
        }
        let rank = required(&set, "RANK", "this process's number among all, from 0")?;
        let world_size = required(&set, "WORLD_SIZE", "the number of processes")?;
        let (rendezvous, next_port_too) = rendezvous(&set, world_size)?;
        let mut settings = Self::new(rank, world_size, &rendezvous);
        settings.next_port_too = next_port_too;
        let local = "a number, from 0";
        settings.local_rank = optional(&set, "LOCAL_RANK", local)?;
        settings.local_world_size = optional(&set, "LOCAL_WORLD_SIZE", local)?;
        settings.secret = secret(&set)?;
        settings.timeout = timeout(&set)?;
        let seconds = optional(&set, "RINGTREE_STALL_WARNING_S", "seconds, or 0")?;
        settings.stall_warning = seconds.map_or(STALL_WARNING_DEFAULT, Duration::from_secs);
        settings.interface = set("RINGTREE_INTERFACE");
        settings.host_id = set("RINGTREE_HOST_ID");
        settings.site = set("RINGTREE_SITE").map(|name| name.trim().to_owned());
        settings.transport = transport(&set)?;
        settings.device_path = device_path(&set)?;
        settings.checks_calls = checks_calls(&set)?;
        settings.is_reproducible = is_reproducible(&set)?;
        settings.algorithm = set("RINGTREE_ALGORITHM").filter(|name| name != "auto");
        settings.tuning = match (set(TUNING), set(JOB_TUNING)) {
            (Some(value), _) => TuningSource::of_setting(&value)?,
            (None, Some(text)) => TuningSource::HandedOn(text),
            (None, None) => TuningSource::Measured,
        };
        settings.report_fd = optional(&set, REPORT_FD, "a file descriptor")?;
        // Not TORCHELASTIC_RESTART_COUNT: torchrun counts failures of one host there, and so gives
        // the hosts of one attempt different numbers.
        if let Some(attempt) = optional(&set, "RINGTREE_ATTEMPT", "a number of restarts")? {
            settings.attempt = attempt;
        }
        settings.listener_fd = optional(&set, "RINGTREE_LISTENER_FD", "a file descriptor")?;
        settings.agreed.extend(agreed(&set));
        settings.check()?;
        Ok(settings)
    }

    /// The same; or, where the environment says nothing of other ranks, those of one rank alone.
    ///
    /// # Errors
    /// As [`from_env`](Self::from_env), also for an environment that says a part of it; and
    /// [`Error::configuration`] where a launcher whose variables are not understood has started
    /// several processes, each of which would be alone.
    pub(crate) fn from_env_or_alone(lookup: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let set = |name: &str| lookup(name).filter(|value| !value.trim().is_empty());
        if PLACE.iter().any(|name| set(name).is_some()) {
            return Self::from_env(lookup);
        }
        refuse_other_launchers(&set)?;
        Self::from_env(|name| match name {
            "RANK" => Some("0".to_owned()),
            "WORLD_SIZE" => Some("1".to_owned()),
            _ => lookup(name),
        })
    }

    /// The settings in an environment, for a rank that its program has numbered.
    ///
    /// # Errors
    /// As [`from_env`](Self::from_env).
    pub(crate) fn for_rank(
        rank: usize,
        world_size: usize,
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Self> {
        Self::from_env(|name| match name {
            "RANK" => Some(rank.to_string()),
            "WORLD_SIZE" => Some(world_size.to_string()),
            "RINGTREE_RENDEZVOUS" => Some("127.0.0.1:29500".to_owned()),
            // The launcher's socket is of the meeting that does not take place.
            "RINGTREE_LISTENER_FD" => None,
            _ if PLACE.contains(&name) => None,
            _ => lookup(name),
        })
    }

    /// How many processes its host may have, before the join has found out.
    pub(super) fn local_world_size_at_most(&self) -> usize {
        self.local_world_size.unwrap_or(self.world_size)
    }

    /// When a join that begins now has taken too long.
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.timeout.min(TIMEOUT_MAX)
    }

    /// All that is compared with the other ranks.
    pub(super) fn to_agree(&self) -> Vec<(String, String)> {
        let transport = (TRANSPORT.to_owned(), self.transport.name().to_owned());
        let check = if self.checks_calls { "calls" } else { "" };
        let check = (CHECK.to_owned(), check.to_owned());
        let reproducible = u8::from(self.is_reproducible).to_string();
        let reproducible = (REPRODUCIBLE.to_owned(), reproducible);
        let besides = [transport, self.tuning.to_agree(), check, reproducible];
        self.agreed.iter().cloned().chain(besides).collect()
    }

    /// Whether the numbers make sense together.
    ///
    /// # Errors
    /// [`Error::configuration`] names the one that does not.
    pub(crate) fn check(&self) -> Result<()> {
        let Self {
            rank, world_size, ..
        } = *self;
        let local_world_size = self.local_world_size_at_most();
        if world_size == 0 || world_size > WORLD_SIZE_MAX {
            let message = format!("WORLD_SIZE is {world_size}; it must be 1 to {WORLD_SIZE_MAX}");
            return Err(Error::configuration(message));
        }
        if rank >= world_size {
            return Err(Error::configuration(format!(
                "RANK is {rank} but WORLD_SIZE is {world_size}: ranks count from 0 to {}",
                world_size - 1
            )));
        }
        if local_world_size == 0 || local_world_size > world_size {
            return Err(Error::configuration(format!(
                "LOCAL_WORLD_SIZE is {local_world_size}; it must be 1 to WORLD_SIZE ({world_size})"
            )));
        }
        if self.timeout.is_zero() {
            let message = "RINGTREE_TIMEOUT_MS is 0; it must be at least 1".to_owned();
            return Err(Error::configuration(message));
        }
        Ok(())
    }
}

fn malformed(name: &str, value: &str, meaning: &str) -> Error {
    Error::configuration(format!("{name} is {value:?}; it should be {meaning}"))
}

fn optional<T: FromStr>(
    set: &impl Fn(&str) -> Option<String>,
    name: &str,
    meaning: &str,
) -> Result<Option<T>> {
    match set(name) {
        None => Ok(None),
        Some(value) => match value.trim().parse() {
            Ok(parsed) => Ok(Some(parsed)),
            Err(_) => Err(malformed(name, &value, meaning)),
        },
    }
}

fn required<T: FromStr>(
    set: &impl Fn(&str) -> Option<String>,
    name: &str,
    meaning: &str,
) -> Result<T> {
    optional(set, name, meaning)?.ok_or_else(|| {
        Error::configuration(format!(
            "{name} is not set; it should be {meaning} (`ringtree run` and torchrun set it)"
        ))
    })
}

/// Refuses an environment that asks for what there is not, for programs that never join.
///
/// # Errors
/// [`Error::configuration`] names the setting.
///
/// ```
/// use ringtree::internal::bootstrap::check_environment;
/// assert!(check_environment(|_| None).is_ok());
/// let encrypted = |name: &str| (name == "RINGTREE_ENCRYPT").then(|| "1".to_owned());
/// assert!(check_environment(encrypted).is_err());
/// ```
pub fn check_environment(lookup: impl Fn(&str) -> Option<String>) -> Result<()> {
    let set = |name: &str| lookup(name).filter(|value| !value.trim().is_empty());
    refuse_what_is_not_built(&set)?;
    transport(&set)?;
    checks_calls(&set)?;
    is_reproducible(&set)?;
    device_path(&set).map(|_| ())
}

/// An error if a launcher whose variables are not understood has started several processes.
fn refuse_other_launchers(set: &impl Fn(&str) -> Option<String>) -> Result<()> {
    for (launcher, name) in OTHER_LAUNCHERS {
        if let Some(size) = set(name).filter(|size| size.trim() != "1") {
            return Err(Error::configuration(format!(
                "{launcher} started this process ({name}={size}), and its variables are not \
                 understood yet: start the program with `ringtree run`, or set RANK, WORLD_SIZE, \
                 MASTER_ADDR and MASTER_PORT"
            )));
        }
    }
    Ok(())
}

/// An error that names a setting which asks for what is not built.
fn refuse_what_is_not_built(set: &impl Fn(&str) -> Option<String>) -> Result<()> {
    for one in VARIABLES.iter().filter(|one| one.meaning == NOT_BUILT_YET) {
        if let Some(value) = set(one.name).filter(|value| value.trim() != one.default) {
            return Err(Error::configuration(format!(
                "{}={value} is not supported by ringtree {} yet: unset it",
                one.name,
                env!("CARGO_PKG_VERSION")
            )));
        }
    }
    Ok(())
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
    let choice: std::result::Result<Option<_>, String> = choice.transpose();
    choice
        .map(Option::unwrap_or_default)
        .map_err(|why| Error::configuration(format!("{DEVICE_PATH}: {why}")))
}

fn checks_calls(set: &impl Fn(&str) -> Option<String>) -> Result<bool> {
    match set(CHECK).as_deref().map(str::trim) {
        None => Ok(false),
        Some("calls") => Ok(true),
        Some(other) => Err(Error::configuration(format!(
            "{CHECK}={other}: no such check; there is calls"
        ))),
    }
}

fn is_reproducible(set: &impl Fn(&str) -> Option<String>) -> Result<bool> {
    match set(REPRODUCIBLE).as_deref().map(str::trim) {
        None | Some("0") => Ok(false),
        Some("1") => Ok(true),
        Some(other) => Err(Error::configuration(format!(
            "{REPRODUCIBLE}={other}: it is 0 or 1"
        ))),
    }
}

/// Where to meet, and whether the next port is to be tried as well.
fn rendezvous(set: &impl Fn(&str) -> Option<String>, world_size: usize) -> Result<(String, bool)> {
    let meaning = "the host:port at which rank 0 waits for the others";
    if let Some(value) = set("RINGTREE_RENDEZVOUS") {
        let value = value.trim();
        let port = value
            .rsplit_once(':')
            .and_then(|(host, port)| port.parse::<u16>().ok().filter(|_| !host.is_empty()));
        return match port {
            Some(_) => Ok((value.to_owned(), false)),
            None => Err(malformed("RINGTREE_RENDEZVOUS", value, meaning)),
        };
    }
    if world_size == 1 && set("MASTER_ADDR").is_none() {
        return Ok(("127.0.0.1:0".to_owned(), false));
    }
    let host: String = required(set, "MASTER_ADDR", "the address of rank 0's host")?;
    let port: NonZeroU16 = required(set, "MASTER_PORT", "a port of rank 0's host, 1 to 65535")?;
    let bracketed = host.contains(':') && !host.starts_with('[');
    let rendezvous = if bracketed {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    };
    Ok((rendezvous, true))
}

/// The job's secret, if the environment gives one.
pub(crate) fn secret(set: &impl Fn(&str) -> Option<String>) -> Result<Option<Secret>> {
    let should = format!(
        "{} hexadecimal digits (`openssl rand -hex 32`)",
        2 * NONCE_BYTES
    );
    if let Some(text) = set("RINGTREE_SECRET") {
        // The value itself is not shown: it may be the secret with a typing error.
        let message = format!("RINGTREE_SECRET should be {should}");
        return match Secret::from_hex(&text) {
            Some(secret) => Ok(Some(secret)),
            None => Err(Error::configuration(message)),
        };
    }
    let Some(path) = set("RINGTREE_SECRET_FILE") else {
        return Ok(None);
    };
    let text = fs::read_to_string(path.trim()).map_err(|error| {
        Error::configuration(format!(
            "RINGTREE_SECRET_FILE={path} cannot be read: {error}"
        ))
    })?;
    match Secret::from_hex(&text) {
        Some(secret) => Ok(Some(secret)),
        None => Err(Error::configuration(format!(
            "RINGTREE_SECRET_FILE={path} should hold {should}"
        ))),
    }
}

/// How long the ranks, and the launchers, wait for each other.
pub(crate) fn timeout(set: &impl Fn(&str) -> Option<String>) -> Result<Duration> {
    let timeout_ms = optional(set, "RINGTREE_TIMEOUT_MS", "milliseconds")?;
    let timeout = timeout_ms.map_or(DEADLINE_DEFAULT, Duration::from_millis);
    Ok(timeout.min(TIMEOUT_MAX))
}

fn versions() -> Vec<(String, String)> {
    vec![
        (
            "ringtree's version".to_owned(),
            env!("CARGO_PKG_VERSION").to_owned(),
        ),
        (
            "ringtree's wire version".to_owned(),
            WIRE_VERSION.to_string(),
        ),
    ]
}

fn agreed(set: &impl Fn(&str) -> Option<String>) -> Vec<(String, String)> {
    let value = |(name, unset): &(&str, &str)| {
        let value = set(name).map_or_else(|| (*unset).to_owned(), |value| value.trim().to_owned());
        ((*name).to_owned(), value)
    };
    AGREED.iter().map(value).collect()
}

#[cfg(test)]
mod tests;
