//! The ways to get a communicator.

mod connect;

pub(super) use connect::transport_name;

use super::Communicator;
use super::joining::Joining;
use crate::bootstrap::TuningSource;
use crate::bootstrap::environment::Environment;
use crate::bootstrap::settings::{DevicePathChoice, Settings, TransportChoice};
use crate::bootstrap::store::Store;
use crate::bootstrap::unique_id::UniqueId;
use crate::control::cancel::Cancel;
use crate::error::{Error, Result};
use crate::limits::TIMEOUT_MAX;
use crate::plan::select::TuningTable;
use crate::protocol::handshake::Secret;
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

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
    /// All but the place is as it will be.
    settings: Settings,
    /// What the program says of its place, by the variables that say it; what is empty here is
    /// said by no variable.
    place: BTreeMap<&'static str, String>,
    /// The environment when the builder was made: what the program does to its own afterwards, as
    /// taking away what its children are not to inherit, changes nothing here.
    environment: Arc<Environment>,
}

impl Builder {
    /// What the environment says of all but the place. What it says wrongly, [`Builder::placed`]
    /// tells.
    fn begun(environment: Environment) -> Self {
        let settings = Settings::for_rank(0, 1, |name| environment.get(name));
        let nothing = |_| Settings::new(0, 1, "127.0.0.1:0");
        Self {
            settings: settings.unwrap_or_else(nothing),
            place: BTreeMap::new(),
            environment: Arc::new(environment),
        }
    }

    /// What this process's environment says, if `settings` can be made of it.
    fn made_of(settings: impl FnOnce(&Environment) -> Result<Settings>) -> Result<Self> {
        let environment = Environment::current();
        environment.check_names()?;
        Ok(Self {
            settings: settings(&environment)?,
            place: BTreeMap::new(),
            environment: Arc::new(environment),
        })
    }

    /// The settings, with the place as the program says, and as far as it does not, the
    /// environment.
    fn placed(&self) -> Result<Settings> {
        let lookup = |name: &str| self.environment.get(name);
        let said = |name: &str| self.place.get(name).cloned().or_else(|| lookup(name));
        let place = Settings::from_env_or_alone(said)?;
        // The launcher's socket is for the rank that it has made of this process.
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
            listener_fd: place.listener_fd.filter(|_| is_launched),
            ..self.settings.clone()
        })
    }

    /// The ranks meet there, and not where the environment says.
    fn meet_at(&mut self, host_and_port: &str) {
        self.place
            .insert("RINGTREE_RENDEZVOUS", host_and_port.to_owned());
        // The launcher's socket is of the meeting that does not take place.
        self.place.insert("RINGTREE_LISTENER_FD", String::new());
        self.settings.start.listen_at(None);
    }

    /// What the environment says, to be changed in places.
    ///
    /// ```no_run
    /// use ringtree::{Builder, TransportChoice};
    /// # fn main() -> ringtree::Result<()> {
    /// let comm = Builder::from_env()?.transport(TransportChoice::Tcp).connect()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::configuration`] names the variable.
    pub fn from_env() -> Result<Self> {
        Self::made_of(|all| Settings::from_env(|name| all.get(name)))
    }

    /// The same; or, in a program that no launcher has started, one rank alone. The other settings
    /// (`RINGTREE_ALGORITHM` and the like) count there, too.
    ///
    /// ```
    /// use ringtree::Builder;
    /// # fn main() -> ringtree::Result<()> {
    /// let comm = Builder::from_env_or_alone()?.connect()?;
    /// assert_eq!((comm.rank(), comm.world_size()), (0, 1));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::configuration`], as for [`Communicator::from_env_or_alone`].
    pub fn from_env_or_alone() -> Result<Self> {
        Self::made_of(|all| Settings::from_env_or_alone(|name| all.get(name)))
    }

    /// What the environment says besides, for a program that knows its rank: the variables that say
    /// which process this is do not count. [`Builder::store`], [`Builder::unique_id`] or
    /// [`Builder::rendezvous`] says where the ranks meet, or else the environment.
    ///
    /// ```
    /// let comm = ringtree::Builder::for_rank(0, 1)?.connect()?;
    /// assert_eq!((comm.rank(), comm.world_size()), (0, 1));
    /// # Ok::<(), ringtree::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::configuration`] names the variable.
    pub fn for_rank(rank: usize, world_size: usize) -> Result<Self> {
        let lookup = |all: &Environment| Settings::for_rank(rank, world_size, |name| all.get(name));
        Ok(Self::made_of(lookup)?.rank(rank).world_size(world_size))
    }

    /// This process's number among all, from 0. Its number on its host is found by the join, unless
    /// [`Builder::local`] says it: the ranks of a host are numbered in their order.
    #[must_use]
    pub fn rank(mut self, rank: usize) -> Self {
        self.place.insert("RANK", rank.to_string());
        self.place.entry("LOCAL_RANK").or_default();
        self
    }

    /// How many processes there are.
    #[must_use]
    pub fn world_size(mut self, world_size: usize) -> Self {
        self.place.insert("WORLD_SIZE", world_size.to_string());
        self.place.entry("LOCAL_WORLD_SIZE").or_default();
        self
    }

    /// This process's number on its host, and how many its host has: what the join would find,
    /// unless ranks in containers of one host are to be numbered together.
    #[must_use]
    pub fn local(mut self, local_rank: usize, local_world_size: usize) -> Self {
        let (rank, count) = (local_rank.to_string(), local_world_size.to_string());
        self.place.insert("LOCAL_RANK", rank);
        self.place.insert("LOCAL_WORLD_SIZE", count);
        self
    }

    /// Where the ranks meet and the secret that they prove, as one value that rank 0's host made
    /// and the program handed on: in place of [`Builder::rendezvous`] and [`Builder::secret`].
    /// [`UniqueId`] has an example.
    #[must_use]
    pub fn unique_id(mut self, id: &UniqueId) -> Self {
        self.meet_at(&id.address().to_string());
        self.settings.use_id(id);
        self.settings.start.store = None;
        self
    }

    /// The ranks meet through a store of the program, which is trusted: rank 0 makes a
    /// [`UniqueId`] and puts it there. In place of [`Builder::rendezvous`], [`Builder::secret`] and
    /// [`Builder::unique_id`]. [`Store`] has an example.
    #[must_use]
    pub fn store(mut self, store: impl Store + 'static) -> Self {
        // Where they meet is in the store.
        self.meet_at("127.0.0.1:0");
        self.settings.start.store = Some(Arc::new(store));
        self
    }

    /// The network interface for data connections, and for rank 0 of a start through a store: its
    /// name, or one of its addresses. By default it is the one that routes to the others.
    #[must_use]
    pub fn interface(mut self, name_or_address: &str) -> Self {
        self.settings.interface = Some(name_or_address.to_owned());
        self
    }

    /// The name of this host's site, as `RINGTREE_SITE`: the links between sites are slow, and all
    /// hosts of a site share them. Hosts without a name are at one site. All ranks of a host have
    /// the same.
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

    /// Where rank 0 waits for the others, as `host:port`.
    #[must_use]
    pub fn rendezvous(mut self, host_and_port: &str) -> Self {
        self.meet_at(host_and_port);
        self
    }

    /// Rank 0 waits for the others at `listener`, which the program has bound to one address; the
    /// others are told that address, as by [`Builder::rendezvous`]. So no other process can take
    /// the port between its choice and the start.
    ///
    /// ```
    /// use ringtree::{Communicator, Result};
    /// use std::net::TcpListener;
    ///
    /// # fn main() -> Result<()> {
    /// let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    /// let address = listener.local_addr().expect("it is bound").to_string();
    /// let of = |rank| Communicator::builder().rank(rank).world_size(2);
    /// let other = of(1).rendezvous(&address);
    /// let other = std::thread::spawn(move || other.connect()?.barrier());
    /// of(0).listener(listener)?.connect()?.barrier()?;
    /// other.join().unwrap()
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::system`](Error::io) if the listener has no address.
    pub fn listener(mut self, listener: TcpListener) -> Result<Self> {
        let address = listener.local_addr();
        let address =
            address.map_err(|error| Error::io("asking a listener for its address", &error))?;
        self.meet_at(&address.to_string());
        self.settings.start.listen_at(Some(listener));
        Ok(self)
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

    /// How long a call waits before this rank says on standard error, in one line, for which ranks
    /// it waits and where they are: `RINGTREE_STALL_WARNING_S`, 10 s if not set; zero means never.
    /// A patient call says so only if ranks wait for each other. Unless it is zero, a start says
    /// after 5 s, and then each 30 s, for whom it waits.
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

    /// Asks `is_interrupted` whether to go on waiting, on each thread that waits in a call, for a
    /// group or in leaving, each time it wakes from a sleep: every 50 ms or so, less often in a
    /// patient call. Once it says yes, all that is under way in this process ends, and so do its
    /// communicators, on all ranks, with an error that names this rank: a buffer is the program's
    /// again only when its call has ended. The callback may make calls; these do not ask again. It
    /// is for a language whose signals come to be seen only
    /// when it is asked, and does not count while ranks join; there is [`Joining::cancel`] for
    /// that.
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

    /// What payload may travel over, the same on all ranks.
    #[must_use]
    pub fn transport(mut self, transport: TransportChoice) -> Self {
        self.settings.transport = transport;
        self
    }

    /// Whether calls are checked, the same on all ranks: `RINGTREE_CHECK=calls`. All ranks agree
    /// before each collective, so that buffers stay untouched if they make different calls; and
    /// every send waits until its receive is posted, so that a program that relies on sends that
    /// return before is found out, with small messages too. It costs a message to rank 0 and back
    /// before every call: it is for tests of a program.
    ///
    /// A call on device buffers by the mapped path begins on its streams without an agreement.
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

    /// Whether sums are reproducible, the same on all ranks: `RINGTREE_REPRODUCIBLE=1`. Every sum
    /// is then one fold of all ranks' contributions in rank order, rounded once. So an element's
    /// result depends on its operands alone, whatever the length of the buffer, the element's place
    /// in it, the collective (all-reduce, reduce, reduce-scatter), the root and the transport; only
    /// another number of ranks, or another order of them, changes bits. Algorithms are chosen among
    /// those whose plans are proven to do that ([`crate::plan::reproducible`]); another one that is
    /// asked for by name is refused where it would sum.
    ///
    /// Partial sums never travel, so between hosts of g ranks each it takes about g times the bytes
    /// of a choice that is free. docs/speed.md has the measured cost.
    ///
    /// ```
    /// use ringtree::{ReduceOp, sim::simulate::World};
    ///
    /// let mut world = World::new(3); // its setting of that name, as there are no processes here
    /// world.is_reproducible = true;
    /// // Of seven elements a ring would sum the fifth as the second block's:
    /// let sums = world.run(|comm| {
    ///     let own = [1e8f32, 1.0, -1e8][comm.rank()];
    ///     let (mut short, mut long) = ([own; 1], [own; 7]);
    ///     comm.all_reduce(&mut short, ReduceOp::Sum)?;
    ///     comm.all_reduce(&mut long, ReduceOp::Sum)?;
    ///     Ok::<_, ringtree::Error>((short[0], long[4]))
    /// });
    /// // (1e8 + 1) − 1e8 in f32, and not 1.
    /// assert_eq!(sums, vec![Ok((0.0, 0.0)); 3]);
    /// ```
    #[must_use]
    pub fn reproducible(mut self, reproducible: bool) -> Self {
        self.settings.is_reproducible = reproducible;
        self
    }

    /// How buffers on GPUs may travel, once a device is attached.
    #[must_use]
    pub fn device_path(mut self, path: DevicePathChoice) -> Self {
        self.settings.device_path = path;
        self
    }

    /// The table by which algorithms are chosen, the same on all ranks; so nothing is measured. A
    /// program that must get the same bits again gives the table that it had ([`TuningTable`]'s
    /// default is the built-in one).
    ///
    /// ```no_run
    /// use ringtree::{Communicator, TuningTable};
    /// # fn main() -> ringtree::Result<()> {
    /// let comm = Communicator::builder().tuning(&TuningTable::default()).connect()?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn tuning(mut self, table: &TuningTable) -> Self {
        self.settings.tuning = TuningSource::Text {
            origin: "the builder's".to_owned(),
            text: table.to_string(),
        };
        self
    }

    /// Joins the others beside what the program does meanwhile, on a thread that ends with the
    /// start. [`Joining`] has an example.
    pub fn connect_async(mut self) -> Joining {
        let cancel = Cancel::new();
        self.settings.start.cancel = cancel.clone();
        Joining::start(cancel, move || self.connect())
    }

    /// Joins the others.
    ///
    /// # Errors
    /// [`Error::configuration`] or [`Error::join`]: one line that says what is wrong.
    pub fn connect(self) -> Result<Communicator> {
        self.environment.check_names()?;
        connect::connect(&self.placed()?)
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
    /// [`Error::configuration`] names the variable; [`Error::join`] says which ranks are missing or
    /// what differs between ranks.
    pub fn from_env() -> Result<Self> {
        Builder::from_env()?.connect()
    }

    /// The same; or, in a program that no launcher has started, a communicator of one rank alone.
    /// So one program runs under `ringtree run` and by itself.
    ///
    /// ```
    /// let comm = ringtree::Communicator::from_env_or_alone()?;
    /// assert_eq!(comm.all_gather_value(&comm.rank())?, [0]);
    /// # Ok::<(), ringtree::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`from_env`](Self::from_env): a variable that names a rank, a number of ranks or a
    /// meeting place, while another one is missing, is an error and does not make this rank alone.
    /// [`Error::configuration`] also where `mpirun` or `srun` have started several processes, for
    /// their variables are not understood yet, and each process would train alone.
    pub fn from_env_or_alone() -> Result<Self> {
        Builder::from_env_or_alone()?.connect()
    }

    /// Builds a communicator: what the program says counts, and as far as it says nothing, what the
    /// environment says, as for [`Builder::from_env_or_alone`]. What is wrong there,
    /// [`Builder::connect`] tells.
    ///
    /// ```no_run
    /// # fn main() -> ringtree::Result<()> {
    /// let builder = ringtree::Communicator::builder();
    /// // RINGTREE_TRANSPORT counts, RINGTREE_REPRODUCIBLE does not.
    /// let comm = builder.reproducible(true).connect()?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn builder() -> Builder {
        Builder::begun(Environment::current())
    }
}

#[cfg(test)]
mod tests;
