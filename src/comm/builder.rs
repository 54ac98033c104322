//! Creates communicators from settings in the program and the environment.

mod connect;

pub(super) use connect::transport_name;

use super::Communicator;
use super::connecting::Connecting;
use crate::bootstrap::TuningSource;
use crate::bootstrap::environment::Environment;
use crate::bootstrap::placement::is_of_other_launcher;
use crate::bootstrap::settings::{DevicePathChoice, Settings, TransportChoice, check_rendezvous};
use crate::bootstrap::store::Store;
use crate::bootstrap::unique_id::UniqueId;
use crate::control::cancel::Cancel;
use crate::error::{Error, Result};
use crate::limits::TIMEOUT_MAX;
use crate::plan::TuningTable;
use crate::protocol::handshake::Secret;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A builder for a [`Communicator`]. Values set on the builder take precedence over the
/// environment.
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
    /// Final values of all settings except those that [`Builder::resolved_settings`] fills in.
    settings: Settings,
    /// Values that the program sets for the rank, the world size, their local equivalents and the
    /// rendezvous, keyed by the names of the corresponding variables. They override the
    /// environment. An empty value hides the variable.
    place: BTreeMap<&'static str, String>,
    /// The environment as it was when the builder was created. The program may change its
    /// environment afterwards, for example to hide variables from its children.
    environment: Arc<Environment>,
}

impl Builder {
    /// Creates a builder with the settings from `environment`, except those that belong in `place`.
    /// If `environment` is malformed, [`Builder::resolved_settings`] returns the error.
    fn with_environment(environment: Environment) -> Self {
        let settings = Settings::for_rank(0, 1, |name| environment.get(name));
        let nothing = |_| Settings::new(0, 1, "127.0.0.1:0");
        Self {
            settings: settings.unwrap_or_else(nothing),
            place: BTreeMap::new(),
            environment: Arc::new(environment),
        }
    }

    /// Creates a builder with the settings that `settings` reads from this process's environment.
    fn from_settings(settings: impl FnOnce(&Environment) -> Result<Settings>) -> Result<Self> {
        let environment = Environment::current();
        environment.check_names()?;
        Ok(Self {
            settings: settings(&environment)?,
            place: BTreeMap::new(),
            environment: Arc::new(environment),
        })
    }

    /// Returns all settings. Those that belong in `place` come from the program or, if the program
    /// does not set them, from the environment.
    fn resolved_settings(&self) -> Result<Settings> {
        let lookup = |name: &str| self.environment.get(name);
        // A program that sets its rank itself does not depend on how it was launched.
        let is_placed = ["RANK", "WORLD_SIZE"].map(|name| self.place.contains_key(name));
        let is_hidden = |name: &str| is_placed.contains(&true) && is_of_other_launcher(name);
        let said = |name: &str| {
            let environment = || lookup(name).filter(|_| !is_hidden(name));
            self.place.get(name).cloned().or_else(environment)
        };
        check_rendezvous(|name| self.place.get(name), said)?;
        let place = Settings::from_env_or_alone(said)?;
        // The launcher's socket may be used only with the rank and the world size that the launcher
        // has set.
        let as_launched = |name: &str| {
            let said = self.place.get(name);
            said.is_none_or(|said| lookup(name).as_ref() == Some(said))
        };
        let is_launched = as_launched("RANK") && as_launched("WORLD_SIZE");
        Ok(Settings {
            rank: place.rank,
            world_size: place.world_size,
            local_rank: place.local_rank,
            local_world_size: place.local_world_size,
            rendezvous: place.rendezvous,
            next_port_too: place.next_port_too,
            channel: place.channel,
            launcher: match is_placed.contains(&true) {
                true => "",
                false => place.launcher,
            },
            listener_fd: place.listener_fd.filter(|_| is_launched),
            ..self.settings.clone()
        })
    }

    /// Creates a builder with the settings from the environment. You can then change these
    /// settings.
    ///
    /// ```no_run
    /// use ringtree::start::TransportChoice;
    /// use ringtree::Builder;
    /// # fn main() -> ringtree::Result<()> {
    /// let comm = Builder::from_env()?.transport(TransportChoice::Tcp).connect()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Returns an [`Error`] of kind [`ErrorKind::Configuration`](crate::ErrorKind::Configuration)
    /// if a required variable is not set or if a variable is unknown or malformed. The error names
    /// the variable.
    pub fn from_env() -> Result<Self> {
        Self::from_settings(|all| Settings::from_env(|name| all.get(name)))
    }

    /// Sets the rank of this process, counted from 0. `LOCAL_RANK` is then ignored, and the ranks
    /// on each host are numbered in rank order at startup, unless you also call [`Builder::local`].
    #[must_use]
    pub fn rank(mut self, rank: usize) -> Self {
        self.place.insert("RANK", rank.to_string());
        self.place.entry("LOCAL_RANK").or_default();
        self
    }

    /// Sets the number of ranks. `LOCAL_WORLD_SIZE` is then ignored, unless you also call
    /// [`Builder::local`].
    #[must_use]
    pub fn world_size(mut self, world_size: usize) -> Self {
        self.place.insert("WORLD_SIZE", world_size.to_string());
        self.place.entry("LOCAL_WORLD_SIZE").or_default();
        self
    }

    /// Sets the local rank of this process and the number of ranks on its host. By default, both
    /// are determined automatically at startup. You need this method only if the ranks on a host
    /// run in several containers and should be numbered together.
    #[must_use]
    pub fn local(mut self, local_rank: usize, local_world_size: usize) -> Self {
        let (rank, count) = (local_rank.to_string(), local_world_size.to_string());
        self.place.insert("LOCAL_RANK", rank);
        self.place.insert("LOCAL_WORLD_SIZE", count);
        self
    }

    /// Sets the rendezvous and the secret from an ID. Use this instead of [`Builder::rendezvous`]
    /// and [`Builder::secret`]. Create the ID on the host of rank 0 and send it to every rank. See
    /// [`UniqueId`] for an example.
    #[must_use]
    pub fn unique_id(self, id: &UniqueId) -> Self {
        let mut this = self.rendezvous(&id.address().to_string());
        this.settings.use_id(id);
        this.settings.start.store = None;
        this
    }

    /// Connects the ranks through a key-value store that the program provides. Use this instead of
    /// [`Builder::rendezvous`], [`Builder::secret`] and [`Builder::unique_id`]. Rank 0 creates a
    /// [`UniqueId`] and puts it into the store, so the store must be trusted. See [`Store`] for an
    /// example.
    #[must_use]
    pub fn store(self, store: impl Store + 'static) -> Self {
        // This address is a placeholder, because the actual one comes from the store.
        let mut this = self.rendezvous("127.0.0.1:0");
        this.settings.start.store = Some(Arc::new(store));
        this
    }

    /// Sets the network interface for data connections. The interface is given by its name or by
    /// one of its addresses. If you use [`Builder::store`], rank 0 also listens for the other ranks
    /// on this interface. The default is the interface with a route to the other ranks.
    #[must_use]
    pub fn interface(mut self, name_or_address: &str) -> Self {
        self.settings.interface = Some(name_or_address.to_owned());
        self
    }

    /// Sets the name of the site that this host belongs to, like `RINGTREE_SITE`. Links between
    /// sites are assumed to be slow and shared by all hosts at a site. All hosts without a site
    /// name belong to the same site. All ranks on a host must set the same name.
    ///
    /// ```
    /// let comm = ringtree::Communicator::builder().site("berlin").connect()?;
    /// assert_eq!(comm.world_size(), 1);
    /// # Ok::<(), ringtree::Error>(())
    /// ```
    #[must_use]
    pub fn site(mut self, name: &str) -> Self {
        self.settings.site = Some(name.to_owned());
        self
    }

    /// Sets the address, in the form `host:port`, at which rank 0 waits for the other ranks.
    #[must_use]
    pub fn rendezvous(mut self, host_and_port: &str) -> Self {
        self.place
            .insert("RINGTREE_RENDEZVOUS", host_and_port.to_owned());
        // The launcher's socket belongs to the rendezvous that this call replaces.
        self.place.insert("RINGTREE_LISTENER_FD", String::new());
        self
    }

    /// Sets the secret of the job, which must be the same on all ranks. Without a secret, only
    /// loopback addresses are accepted.
    #[must_use]
    pub fn secret(mut self, secret: Secret) -> Self {
        self.settings.secret = Some(secret);
        self
    }

    /// Sets the timeout for startup and for each subsequent call. The default is 5 minutes, and the
    /// maximum is [`TIMEOUT_MAX`].
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = timeout.min(TIMEOUT_MAX);
        self
    }

    /// Sets how long a call waits before this rank prints a stall warning. The warning is a single
    /// line on standard error. It names the ranks that the call is waiting for and reports which
    /// call, if any, each of them is in. The default is the value of `RINGTREE_STALL_WARNING_S`, or
    /// 10 seconds if that variable is not set. For a call without a timeout, a warning is printed
    /// only if ranks are waiting for each other.
    ///
    /// A value of zero disables both these warnings and the notices at startup. If the value is not
    /// zero, a rank that is waiting at startup prints which ranks it is waiting for after 5
    /// seconds, and then every 30 seconds.
    ///
    /// ```no_run
    /// # fn main() -> ringtree::Result<()> {
    /// let builder = ringtree::Communicator::builder();
    /// let comm = builder.stall_warning(std::time::Duration::from_secs(120)).connect()?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn stall_warning(mut self, after: Duration) -> Self {
        self.settings.stall_warning = after;
        self
    }

    /// Sets a callback that can interrupt waiting calls. This is intended for bindings to languages
    /// in which a program receives signals only when it polls for them.
    ///
    /// A thread runs `is_interrupted` while it is waiting in a call, waiting for a group to be
    /// created, or dropping a communicator. The thread runs the callback each time it wakes from a
    /// sleep, which is about every 50 ms, or less often in calls without a timeout. If the callback
    /// returns `true`, all operations in flight in this process fail, and the communicators of this
    /// process fail on all ranks with an error that names this rank. All of the operations must
    /// fail because the program gets a buffer back only when the call that uses it has ended.
    ///
    /// The callback may issue calls, and those calls do not run the callback again. The callback
    /// does not run during startup. To cancel startup, use [`Connecting::cancel`] instead.
    ///
    /// ```
    /// let builder = ringtree::Communicator::builder();
    /// let comm = builder.interrupt(|| false).connect()?;
    /// comm.barrier()?;
    /// # Ok::<(), ringtree::Error>(())
    /// ```
    #[must_use]
    pub fn interrupt(mut self, is_interrupted: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.settings.start.interrupt = Some(Arc::new(is_interrupted));
        self
    }

    /// Sets the transports that may be used for payload data. All ranks must set the same value.
    #[must_use]
    pub fn transport(mut self, transport: TransportChoice) -> Self {
        self.settings.transport = transport;
        self
    }

    /// Sets whether calls are checked, like `RINGTREE_CHECK=calls`. All ranks must set the same
    /// value. Use checks only to test a program, because they add a round trip to rank 0 to every
    /// call.
    ///
    /// - Before each collective, all ranks compare their calls. If the calls differ, the buffers
    ///   remain untouched.
    /// - Every send waits until the matching receive has been posted. Programs that rely on sends
    ///   returning earlier are thereby exposed, even if their messages are small.
    ///
    /// Calls on device buffers that use the mapped path are not compared before they start on their
    /// streams.
    ///
    /// ```no_run
    /// # fn main() -> ringtree::Result<()> {
    /// let comm = ringtree::Communicator::builder().check_calls(true).connect()?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn check_calls(mut self, checks: bool) -> Self {
        self.settings.checks_calls = checks;
        self
    }

    /// Sets whether sums are reproducible, like `RINGTREE_REPRODUCIBLE=1`. All ranks must set the
    /// same value.
    ///
    /// A reproducible sum combines the contributions of all ranks, in rank order, in a single
    /// reduction and rounds the result once. The result for each element then depends only on that
    /// element's operands. It does not depend on the length of the buffer, the position of the
    /// element, the collective (all-reduce, reduce or reduce-scatter), the root or the transport.
    /// The bits change only if the number or the order of the ranks changes.
    ///
    /// Only algorithms whose plans have been verified to sum in this way are chosen. If you request
    /// any other algorithm by name, calls that would use it for a sum return an error.
    ///
    /// Partial sums are never sent. If each host has g ranks, reproducible sums therefore send
    /// about g times as many bytes between hosts as sums with an unrestricted choice of algorithm
    /// do. See `docs/speed.md#reproducible-sums` for measurements.
    ///
    /// ```
    /// use ringtree::{ReduceOp, sim::World};
    ///
    /// let mut world = World::new(3); // the same setting, for simulated ranks
    /// world.is_reproducible = true;
    /// // A ring would sum the fifth of seven elements as part of the second block:
    /// let sums = world.run(|comm| {
    ///     let own = [1e8f32, 1.0, -1e8][comm.rank()];
    ///     let (mut short, mut long) = ([own; 1], [own; 7]);
    ///     comm.all_reduce(&mut short, ReduceOp::Sum)?;
    ///     comm.all_reduce(&mut long, ReduceOp::Sum)?;
    ///     Ok::<_, ringtree::Error>((short[0], long[4]))
    /// });
    /// // (1e8 + 1) − 1e8 is 0 in f32, not 1.
    /// assert_eq!(sums, vec![Ok((0.0, 0.0)); 3]);
    /// ```
    #[must_use]
    pub fn reproducible(mut self, reproducible: bool) -> Self {
        self.settings.is_reproducible = reproducible;
        self
    }

    /// Sets the path that GPU buffers may use once a device is attached.
    #[must_use]
    pub fn device_path(mut self, path: DevicePathChoice) -> Self {
        self.settings.device_path = path;
        self
    }

    /// Sets the table of link speeds that is used to choose algorithms. Link speeds are then not
    /// measured. All ranks must set the same table. To get the same bits as in an earlier run, set
    /// the table that was used in that run. The default value of [`TuningTable`] is the built-in
    /// table.
    ///
    /// ```no_run
    /// use ringtree::tuning::TuningTable;
    /// use ringtree::Communicator;
    /// # fn main() -> ringtree::Result<()> {
    /// let comm = Communicator::builder().tuning(&TuningTable::default()).connect()?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn tuning(mut self, table: &TuningTable) -> Self {
        self.settings.tuning = TuningSource::Text {
            origin: "Builder::tuning".to_owned(),
            text: table.to_string(),
        };
        self
    }

    /// Connects to the other ranks on a background thread. The thread exits once the connection
    /// attempt has succeeded or failed. See [`Connecting`] for an example.
    pub fn start_connect(mut self) -> Connecting {
        let cancel = Cancel::new();
        self.settings.start.cancel = cancel.clone();
        Connecting::start(cancel, move || self.connect())
    }

    /// Connects to the other ranks and waits until all of them have joined.
    ///
    /// # Errors
    /// Returns an [`Error`] of one of the following kinds:
    /// - [`ErrorKind::Configuration`](crate::ErrorKind::Configuration) if a setting is missing,
    ///   unknown or malformed.
    /// - [`ErrorKind::Join`](crate::ErrorKind::Join) if ranks are missing, cannot connect, or have
    ///   different settings.
    /// - [`ErrorKind::System`](crate::ErrorKind::System) if the operating system refuses a
    ///   resource.
    ///
    /// If link speeds are measured at startup, this method can also return one of the [errors that
    /// all calls share](Communicator#errors).
    pub fn connect(self) -> Result<Communicator> {
        self.environment.check_names()?;
        connect::connect(&self.resolved_settings()?)
    }
}

impl Communicator {
    /// Creates the communicator for all ranks that a launcher has started, and waits until all
    /// ranks have joined. The launcher may be `ringtree run`, torchrun, `mpirun`, `srun`, or any
    /// program that sets `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`.
    ///
    /// ```no_run
    /// # fn main() -> ringtree::Result<()> {
    /// let comm = ringtree::Communicator::from_env()?;
    /// println!("rank {} of {}", comm.rank(), comm.world_size());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Returns the same errors as [`Builder::from_env`] and [`Builder::connect`].
    #[doc(alias("MPI_Init", "init_process_group"))]
    pub fn from_env() -> Result<Self> {
        Builder::from_env()?.connect()
    }

    /// Like [`Communicator::from_env`], but creates a communicator for a single rank if the program
    /// was not started by a launcher. The same program then runs both with and without `ringtree
    /// run`.
    ///
    /// ```
    /// let comm = ringtree::Communicator::from_env_or_alone()?;
    /// assert_eq!(comm.all_gather_value(&comm.rank())?, [0]);
    /// # Ok::<(), ringtree::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns the same errors as [`from_env`](Self::from_env). It is an error if the environment
    /// sets only some of the variables for the rank, the world size and the rendezvous. In this
    /// case, no communicator for a single rank is created.
    pub fn from_env_or_alone() -> Result<Self> {
        Self::builder().connect()
    }

    /// Creates a world of `count` ranks in this process, and returns its communicators in rank
    /// order. Use each communicator in a separate thread. The ranks exchange data through shared
    /// memory, as ranks in separate processes do. Use this function for tests, and for servers that
    /// run one thread per model part. [`simulate`](crate::simulate()) creates the threads itself
    /// and runs the ranks in virtual time.
    ///
    /// ```
    /// use ringtree::{Communicator, ReduceOp};
    ///
    /// # fn main() -> ringtree::Result<()> {
    /// let threads = Communicator::local(4)?.into_iter().map(|comm| {
    ///     std::thread::spawn(move || {
    ///         let mut numbers = [comm.rank() as f32; 1000];
    ///         comm.all_reduce(&mut numbers, ReduceOp::Sum).map(|()| numbers[0])
    ///     })
    /// });
    /// for thread in threads.collect::<Vec<_>>() {
    ///     assert_eq!(thread.join().unwrap()?, 6.0);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Returns the same errors as [`Builder::connect`].
    #[doc(alias("ncclCommInitAll"))]
    pub fn local(count: usize) -> Result<Vec<Self>> {
        let id = UniqueId::on("127.0.0.1")?;
        let connect = |rank| {
            let builder = Self::builder().rank(rank).world_size(count);
            builder.unique_id(&id).connect()
        };
        std::thread::scope(|scope| {
            let ranks = (0..count).map(|rank| scope.spawn(move || connect(rank)));
            let ranks: Vec<_> = ranks.collect();
            let panicked = |_| Err(Error::join("a thread panicked while connecting"));
            let joined = ranks
                .into_iter()
                .map(|rank| rank.join().unwrap_or_else(panicked));
            joined.collect()
        })
    }

    /// Returns a builder. Values that you set on the builder take precedence. All other values come
    /// from the environment. If the environment is malformed, [`Builder::connect`] returns the
    /// error. If neither the program nor a launcher sets a rank, the communicator has a single
    /// rank.
    ///
    /// ```no_run
    /// # fn main() -> ringtree::Result<()> {
    /// let builder = ringtree::Communicator::builder();
    /// // RINGTREE_TRANSPORT applies. RINGTREE_REPRODUCIBLE is overridden.
    /// let comm = builder.reproducible(true).connect()?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn builder() -> Builder {
        Builder::with_environment(Environment::current())
    }
}

#[cfg(test)]
mod tests;
