//! The public API: communicators, collectives, point-to-point, handles.
//!
//! *Purpose.* [`Communicator`] is what training code holds. [`buffer`] is the door by which memory
//! comes in, [`shared_buffer`] memory that peers can read, [`collectives`] and [`pairs`] the calls,
//! [`views`] handles with other deadlines, [`work`] the handles of asynchronous calls, `values`
//! small values by serde, `own_operator` an all-reduce by a function of the program, [`builder`]
//! the ways to get a communicator; `measure` finds what its links cost, and [`tuning`] says where
//! its table comes from; `recording` writes down what its collectives do when.
//!
//! *Invariants.* No panic crosses this room's public functions and no call waits for ever. All
//! ranks issue the operations of a communicator in the same order; breaking it is a named error.
//!
//! *May import* `runtime`, `engine`, `bootstrap`, `control`, `link`, `device`, `reduce`, `sys`,
//! `plan`, `protocol` and the base files.

#![forbid(unsafe_code)]

mod any;
#[cfg(feature = "cuda")]
pub mod attach;
pub mod blocks;
pub mod buffer;
pub mod builder;
pub mod collectives;
#[cfg(feature = "cuda")]
pub mod device_buffer;
mod groups;
pub mod joining;
mod measure;
#[cfg(feature = "cuda")]
mod on_device;
mod own_operator;
pub mod pairs;
#[cfg(feature = "ddp")]
pub(crate) mod recording;
pub mod scope;
pub mod shared_buffer;
pub mod tuning;
pub(crate) mod values;
pub mod views;
pub mod work;

use crate::bootstrap::settings::DevicePathChoice;
use crate::engine::cache::Cache;
use crate::engine::group::{Group, Memory};
use crate::error::{Error, Result};
use crate::plan::Topology;
use crate::plan::select::TuningTable;
use crate::plan::spec::Algorithm;
use crate::protocol::members::Members;
use crate::runtime::Runtime;
use crate::runtime::own::OwnRuntime;
use crate::sys::memory::Region;
use crate::sys::shared::Extent;
#[cfg(feature = "cuda")]
use on_device::Attached;
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tuning::TuningOrigin;

/// What a communicator is made of; all but the rank numbers is equal on all ranks.
#[derive(Clone)]
pub(crate) struct Parts {
    pub(crate) rank: usize,
    /// The ranks of the world that it has.
    pub(crate) members: Members,
    pub(crate) local_rank: usize,
    /// By rank, the number of its host: ranks with equal ones share memory.
    pub(crate) hosts: Arc<[usize]>,
    /// By rank, the number of its host's site.
    pub(crate) sites: Arc<[usize]>,
    /// The group's number in the engine.
    pub(crate) group: u32,
    pub(crate) runtime: OwnRuntime,
    pub(crate) transport_name: &'static str,
    pub(crate) timeout: Duration,
    /// How buffers on devices may travel: this rank's setting, which the others' may differ from.
    pub(crate) device_path: DevicePathChoice,
    pub(crate) tuning: TuningTable,
    pub(crate) tuning_origin: TuningOrigin,
    pub(crate) algorithm: Option<Algorithm>,
    /// Whether all ranks agree before each call, and every send waits for its receive.
    pub(crate) checks_calls: bool,
    /// Whether only algorithms that fold in rank order are used.
    pub(crate) is_reproducible: bool,
}

impl Parts {
    fn world_size(&self) -> usize {
        self.members.count()
    }

    fn topology(&self) -> Topology {
        Topology::at_sites(&self.hosts, &self.sites)
    }
}

/// A group of ranks that work together, as a handle whose calls have a certain timeout, and
/// whose messages a certain tag.
///
/// All ranks issue the operations of a communicator in the same order. Threads may share one: calls
/// are queued in the order of arrival, which must then be the same on all ranks.
///
/// ```
/// use ringtree::ReduceOp;
/// let sums = ringtree::simulate(4, |comm| {
///     let mut numbers = [comm.rank() as f32, 1.0];
///     comm.all_reduce(&mut numbers, ReduceOp::Sum)?;
///     Ok::<_, ringtree::Error>(numbers)
/// });
/// assert!(sums.into_iter().all(|sum| sum == Ok([6.0, 4.0])));
/// ```
///
/// A process that forks goes on as before. Its child holds a copy that makes no calls: each is
/// refused with [`Error::usage`] and reaches no other rank, and dropping the copy does nothing.
/// (A child that is made by a bare `clone`, without the C library's `fork`, is not recognized.)
pub struct Communicator(Handle, Duration, u32);

/// A communicator's core. A forked child drops none: what it holds is its parent's to close.
#[derive(Clone)]
struct Handle(Arc<Core>);

impl Deref for Handle {
    type Target = Core;

    #[inline]
    fn deref(&self) -> &Core {
        &self.0
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.parts.runtime.is_forked() {
            std::mem::forget(Arc::clone(&self.0));
        }
    }
}

/// A communicator without its face: operations under way keep it alive.
struct Core {
    parts: Parts,
    /// Locked by the thread that issues a collective, which does not wait for its end meanwhile.
    issued: Mutex<Issued>,
    /// Threads that wait for `issued`, and the first of them: a thread that comes later than they
    /// did does not overtake them.
    queued: AtomicUsize,
    first_in_line: Mutex<()>,
    /// Locked by the thread that allocates: the ranks exchange one allocation at a time.
    allocating: shared_buffer::Turn,
}

/// What has been issued so far, and the programs made for it.
struct Issued {
    collectives: u64,
    cache: Cache,
    /// Allocations so far, and where those that are there lie.
    allocations: u64,
    extents: Vec<Extent>,
    /// The device that buffers may be on.
    #[cfg(feature = "cuda")]
    attached: Option<Attached>,
    /// The algorithm to use wherever it can be.
    algorithm: Option<Algorithm>,
}

impl Issued {
    /// Whether peers can read some of the memory where it lies.
    #[inline]
    fn exposes(&self, memory: &Memory) -> bool {
        let regions = || memory.input.iter().chain(&memory.output).map(Region::bytes);
        let mut extents = self.extents.iter();
        extents.any(|extent| regions().any(|bytes| extent.offset_of(bytes).is_some()))
    }
}

impl Communicator {
    pub(crate) fn assemble(parts: Parts) -> Self {
        let runtime = parts.runtime.get();
        let local = runtime.map_or_else(|_| Vec::new(), |one| one.local_ranks(&parts.members));
        let topology = parts.topology();
        let issued = Issued {
            collectives: 0,
            cache: Cache::new(parts.rank, topology, parts.tuning, local)
                .in_rank_order(parts.is_reproducible),
            allocations: 0,
            extents: Vec::new(),
            #[cfg(feature = "cuda")]
            attached: None,
            algorithm: parts.algorithm,
        };
        let timeout = parts.timeout;
        let core = Core {
            parts,
            issued: Mutex::new(issued),
            queued: AtomicUsize::new(0),
            first_in_line: Mutex::default(),
            allocating: shared_buffer::Turn::default(),
        };
        Self(Handle(Arc::new(core)), timeout, 0)
    }

    /// This process's number in the group, from 0.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.0.parts.rank
    }

    /// How many ranks there are.
    #[must_use]
    pub fn world_size(&self) -> usize {
        self.0.parts.world_size()
    }

    /// This process's number on its host, from 0: the same in every communicator.
    #[must_use]
    pub fn local_rank(&self) -> usize {
        self.0.parts.local_rank
    }

    /// The elements of a buffer of `count` that are this rank's own block in `reduce_scatter` and
    /// `all_gather`: the buffer is split evenly, the first `count mod n` blocks one longer.
    ///
    /// ```
    /// let blocks = ringtree::simulate(3, |comm| comm.block(7));
    /// assert_eq!(blocks, [0..3, 3..5, 5..7]);
    /// ```
    #[must_use]
    pub fn block(&self, count: usize) -> Range<usize> {
        let start = |rank| crate::plan::layout::part_start(count, self.world_size(), rank);
        start(self.rank())..start(self.rank() + 1)
    }

    /// What the bytes travel over, as `bench` names it.
    ///
    /// ```
    /// let names = ringtree::simulate(2, |comm| comm.transport());
    /// assert_eq!(names, ["sim"; 2]);
    /// ```
    #[must_use]
    pub fn transport(&self) -> &'static str {
        self.0.parts.transport_name
    }

    /// Whether sums are [reproducible](builder::Builder::reproducible).
    ///
    /// ```
    /// let are_they = ringtree::simulate(2, |comm| comm.is_reproducible());
    /// assert_eq!(are_they, [false; 2]);
    /// ```
    #[must_use]
    pub fn is_reproducible(&self) -> bool {
        self.0.parts.is_reproducible
    }

    /// Uses `algorithm` from now on wherever it carries out the collective; `None` returns to the
    /// chooser. All ranks must do the same between the same calls.
    ///
    /// ```
    /// use ringtree::{Algorithm, ReduceOp};
    /// let sums = ringtree::simulate(5, |comm| {
    ///     let mut sum = [comm.rank() as i64];
    ///     comm.use_algorithm(Some(Algorithm::RecursiveDoubling))?;
    ///     comm.all_reduce(&mut sum, ReduceOp::Sum)?;
    ///     comm.use_algorithm(None)?;
    ///     Ok::<_, ringtree::Error>(sum)
    /// });
    /// assert_eq!(sums, vec![Ok([10]); 5]);
    /// ```
    ///
    /// # Errors
    /// [`Error::usage`] in a forked child.
    pub fn use_algorithm(&self, algorithm: Option<Algorithm>) -> Result<()> {
        self.enter()?.algorithm = algorithm;
        Ok(())
    }

    /// "I have completed everything up to `number`": what a rank says before the *commit* of a
    /// step, the call after which it relies on every rank having completed the same. The commit
    /// must end on no rank before every rank has begun it, as a barrier or an all-reduce of at
    /// least one element does. Marks start at 0 and only grow; nothing is sent. After a failure
    /// the mark stands, and this does nothing: the commit then returns the failure.
    ///
    /// See [`Communicator::agreed_mark`] for what it is good for.
    pub fn mark(&self, number: u64) {
        if let Ok(runtime) = self.0.parts.runtime.get() {
            runtime.mark(self.0.parts.group, number);
        }
    }

    /// This rank gives up for a reason that the communicator does not know, such as the failure of
    /// another communicator that the same work needs. Every call under way and every later one
    /// ends, on all ranks, with the first error: `cause`, unless another error was first.
    ///
    /// ```
    /// use ringtree::Error;
    /// let ends = ringtree::simulate(3, |comm| {
    ///     if comm.rank() == 1 {
    ///         comm.fail(&Error::system("rank 1 has no room on its disk"));
    ///     }
    ///     comm.barrier()
    /// });
    /// assert_eq!(ends[0], Err(Error::system("rank 1 has no room on its disk")));
    /// assert!(ends[1] == ends[0] && ends[2] == ends[0]);
    /// ```
    pub fn fail(&self, cause: &Error) {
        if let Ok(runtime) = self.0.parts.runtime.get() {
            runtime.fail(self.0.parts.group, cause);
        }
    }

    /// The first error, with which every call ends from now on; `None` while this rank knows of
    /// none. No other rank is asked.
    ///
    /// ```
    /// use ringtree::Error;
    /// let found = ringtree::simulate(2, |comm| {
    ///     let before = comm.failure();
    ///     if comm.rank() == 1 {
    ///         comm.fail(&Error::system("no room on the disk"));
    ///     }
    ///     let end = comm.barrier();
    ///     (before, end.err() == comm.failure())
    /// });
    /// assert_eq!(found, [(None, true), (None, true)]);
    /// ```
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        let first = |group: &mut Group| group.first_error().cloned();
        match self.0.parts.runtime.get() {
            Ok(runtime) => runtime.with_group(self.0.parts.group, first).flatten(),
            Err(refusal) => Some(refusal),
        }
    }

    /// After a call has failed: the mark that all survivors agree on, the least of theirs. So a
    /// step counts exactly if every survivor had [marked](Communicator::mark) it, also where its
    /// commit failed; a rank that passed the commit finds that it counts.
    ///
    /// `None` after `at_most` (the answer takes a round trip to the lowest rank that has not left,
    /// or about a second longer if a rank is silent), immediately if a rank died that may have
    /// answered others, or if nothing has failed. A rank without an answer that has passed the
    /// commit knows that the step counts; one that has not is in doubt: the others may have an
    /// answer, and it may be either.
    ///
    /// A number *above* this rank's own mark says that it was silent for so long that the others
    /// gave it up: they count a step that it has not completed, so its state is of no more use.
    ///
    /// ```
    /// use ringtree::{ReduceOp, sim::simulate::World};
    /// use std::time::Duration;
    ///
    /// let mut world = World::new(4);
    /// world.network.faults.deaths = vec![(2, Duration::from_millis(1))];
    /// let agreed = world.run(|comm| {
    ///     let mut step = 0;
    ///     let failed = loop {
    ///         let step_ends = comm.all_reduce(&mut [1.0f32; 100], ReduceOp::Sum).and_then(|()| {
    ///             comm.mark(step + 1);
    ///             comm.barrier() // the commit
    ///         });
    ///         match step_ends {
    ///             Ok(()) => step += 1, // update the weights
    ///             Err(error) => break error,
    ///         }
    ///     };
    ///     assert!(failed.to_string().contains("rank 2 is gone"));
    ///     // Whether step + 1 counts as well:
    ///     comm.agreed_mark(Duration::from_secs(5))
    /// });
    /// assert!(agreed[0].is_some());
    /// assert!(agreed[1] == agreed[0] && agreed[3] == agreed[0]);
    /// ```
    #[must_use]
    pub fn agreed_mark(&self, at_most: Duration) -> Option<u64> {
        let Parts { runtime, group, .. } = &self.0.parts;
        runtime.get().ok()?.agreed_mark(*group, at_most)
    }

    /// The algorithm that [`Communicator::use_algorithm`] or a setting asks for.
    pub(crate) fn algorithm(&self) -> Option<Algorithm> {
        self.enter().ok()?.algorithm
    }

    /// The time on this rank's clock, which starts somewhere and never goes back. Simulated ranks
    /// have the simulation's clock.
    #[must_use]
    pub fn clock(&self) -> Duration {
        self.0.parts.runtime.now()
    }

    /// Whether this process is a child that was forked from the rank: every call is refused.
    pub(crate) fn is_forked(&self) -> bool {
        self.0.parts.runtime.is_forked()
    }

    pub(crate) fn pass_time(&self, time: Duration) {
        if let Ok(runtime) = self.0.parts.runtime.get() {
            runtime.pass_time(time);
        }
    }

    /// Entry to every collective, in the order in which threads come. The guard is not kept while
    /// the call waits for peers.
    ///
    /// # Errors
    /// [`Error::usage`] in a forked child.
    #[inline]
    fn enter(&self) -> Result<MutexGuard<'_, Issued>> {
        let runtime = self.0.parts.runtime.get()?;
        if self.0.queued.load(Ordering::Relaxed) == 0
            && let Ok(issued) = self.0.issued.try_lock()
        {
            return Ok(issued);
        }
        Ok(self.enter_in_line(runtime))
    }

    #[cold]
    fn enter_in_line(&self, runtime: &Runtime) -> MutexGuard<'_, Issued> {
        let Core {
            issued,
            queued,
            first_in_line,
            ..
        } = &*self.0;
        queued.fetch_add(1, Ordering::Relaxed);
        let room = runtime.ask_for_room();
        let first = lock(first_in_line);
        let issued = lock(issued);
        drop((first, room));
        queued.fetch_sub(1, Ordering::Relaxed);
        issued
    }

    fn check_peer(&self, what: &str, peer: usize) -> Result<()> {
        if peer < self.world_size() {
            return Ok(());
        }
        Err(Error::usage(format!(
            "{what} {peer} is no rank; there are {}, numbered from 0",
            self.world_size()
        )))
    }
}

/// A call that panicked has issued what it counted.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Core {
    fn drop(&mut self) {
        let Parts {
            rank,
            members,
            runtime,
            group,
            timeout,
            ..
        } = &self.parts;
        let Ok(runtime) = runtime.get() else { return };
        if std::thread::panicking() {
            let who = members.name(*rank);
            let why = format!("{who} panicked; look at its last output and restart the job");
            runtime.fail(*group, &Error::peer_lost(*rank, why));
        }
        runtime.leave(*group, *timeout);
    }
}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "Communicator(rank {} of {})",
            self.rank(),
            self.world_size()
        )
    }
}
