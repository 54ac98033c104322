//! The ways to get a communicator.

use super::neighbourhood::Neighbourhood;
use super::process::{Callbacks, Links, ProcessHost};
use super::runtime::Runtime;
use super::{Communicator, Parts};
use crate::bootstrap::join::join;
use crate::bootstrap::settings::{Settings, TransportChoice};
use crate::error::{Error, Result};
use crate::limits::TIMEOUT_MAX;
use crate::plan::select::TuningTable;
use crate::plan::spec::Algorithm;
use crate::protocol::handshake::Secret;
use crate::transport::tcp::Reactor;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The group of all ranks.
const WORLD: u32 = 0;

/// Gathers what a rank must know, then joins.
///
/// ```no_run
/// use ringtree::Communicator;
/// use std::time::Duration;
/// # fn main() -> ringtree::Result<()> {
/// let comm = Communicator::builder()
///     .rank(0)
///     .world_size(2)
///     .rendezvous("127.0.0.1:29500")
///     .timeout(Duration::from_secs(60))
///     .connect()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Builder {
    settings: Settings,
}

impl Builder {
    /// What the environment says, to be changed in places.
    ///
    /// ```no_run
    /// use ringtree::bootstrap::TransportChoice;
    /// use ringtree::comm::builder::Builder;
    /// # fn main() -> ringtree::Result<()> {
    /// let comm = Builder::from_env()?.transport(TransportChoice::Tcp).connect()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Configuration`] names the variable.
    pub fn from_env() -> Result<Self> {
        let settings = Settings::from_env(|name| std::env::var(name).ok())?;
        Ok(Self { settings })
    }

    /// This process's number among all, from 0.
    #[must_use]
    pub fn rank(mut self, rank: usize) -> Self {
        self.settings.rank = rank;
        self.settings.local_rank = rank;
        self
    }

    /// How many processes there are.
    #[must_use]
    pub fn world_size(mut self, world_size: usize) -> Self {
        self.settings.world_size = world_size;
        self.settings.local_world_size = world_size;
        self
    }

    /// This process's number on its host, and how many its host has, where there are several.
    #[must_use]
    pub fn local(mut self, local_rank: usize, local_world_size: usize) -> Self {
        self.settings.local_rank = local_rank;
        self.settings.local_world_size = local_world_size;
        self
    }

    /// Where rank 0 waits for the others, as `host:port`.
    #[must_use]
    pub fn rendezvous(mut self, host_and_port: &str) -> Self {
        self.settings.rendezvous = host_and_port.to_owned();
        self
    }

    /// The job's secret, the same on all ranks; without one only loopback is accepted.
    #[must_use]
    pub fn secret(mut self, secret: Secret) -> Self {
        self.settings.secret = Some(secret);
        self
    }

    /// How long the join, and later each call, may take; 5 minutes if not set, at most
    /// [`TIMEOUT_MAX`].
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = timeout.min(TIMEOUT_MAX);
        self
    }

    /// What payload may travel over, the same on all ranks.
    #[must_use]
    pub fn transport(mut self, transport: TransportChoice) -> Self {
        self.settings.transport = transport;
        self
    }

    /// Joins the others.
    ///
    /// # Errors
    /// [`Error::Configuration`] or [`Error::Join`]: one line that says what is wrong.
    pub fn connect(self) -> Result<Communicator> {
        connect(&self.settings)
    }
}

impl Communicator {
    /// A communicator of all ranks, by the environment's settings (`RANK`, `WORLD_SIZE`,
    /// `MASTER_ADDR`, `MASTER_PORT` and ringtree's own), as `ringtree run` and torchrun set them.
    /// Waits until all ranks have come.
    ///
    /// ```no_run
    /// # fn main() -> ringtree::Result<()> {
    /// let comm = ringtree::Communicator::from_env()?;
    /// println!("rank {} of {}", comm.rank(), comm.world_size());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Configuration`] names the variable; [`Error::Join`] says who is missing or what
    /// differs between ranks.
    pub fn from_env() -> Result<Self> {
        Builder::from_env()?.connect()
    }

    /// Builds a communicator without the environment.
    #[must_use]
    pub fn builder() -> Builder {
        Builder {
            settings: Settings::new(0, 1, "127.0.0.1:29500"),
        }
    }
}

fn connect(settings: &Settings) -> Result<Communicator> {
    let tuning = tuning(settings)?;
    let algorithm = settings
        .algorithm
        .as_deref()
        .map(str::parse::<Algorithm>)
        .transpose();
    let algorithm =
        algorithm.map_err(|error| Error::Configuration(format!("RINGTREE_ALGORITHM: {error}")))?;
    let reactor = Reactor::new().map_err(|error| Error::system("setting up epoll", &error))?;
    let reactor = Arc::new(reactor);
    let joined = join(settings)?;
    let membership = joined.membership();
    let (rank, world_size) = (membership.rank, membership.world_size);
    let ranks_per_host = membership.ranks_per_host();
    let neighbours = membership.neighbours();
    let transport_name = match neighbours.len() {
        all if all == world_size && all > 1 => "shm",
        0 | 1 => "tcp",
        _ => "shm+tcp",
    };
    let neighbourhood = match &membership.near {
        Some(near) => {
            near.end_sleeps_of(&reactor)
                .map_err(|error| Error::system("setting up epoll", &error))?;
            Neighbourhood::new(Arc::clone(near), rank, neighbours)
        }
        None => None,
    };
    let links = Arc::new(Links::new(Arc::clone(&reactor), neighbourhood));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let host = ProcessHost {
        links: Arc::clone(&links),
        start: Instant::now(),
        has_own_core: settings.local_world_size <= cores,
    };
    let runtime = Arc::new(Runtime::new(Box::new(host)));
    links.set_control(membership.control.clone());
    runtime.add_group(WORLD, rank, world_size, settings.timeout)?;
    let callbacks = Callbacks {
        runtime: Arc::downgrade(&runtime),
        links: Arc::clone(&links),
    };
    joined.start(Arc::new(callbacks), Some(reactor.as_raw_fd()))?;
    Ok(Communicator::assemble(Parts {
        rank,
        world_size,
        local_rank: settings.local_rank,
        ranks_per_host,
        group: WORLD,
        runtime,
        transport_name,
        timeout: settings.timeout,
        tuning,
        algorithm,
    }))
}

fn tuning(settings: &Settings) -> Result<TuningTable> {
    let Some(path) = &settings.tuning_file else {
        return Ok(TuningTable::default());
    };
    let wrong =
        |what: String| Error::Configuration(format!("RINGTREE_TUNING: {}: {what}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    TuningTable::parse(&text).map_err(wrong)
}
