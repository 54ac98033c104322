//! The calls that training code makes.
//!
//! A [`Communicator`] provides collectives, messages between two ranks, calls that send serde
//! values, and methods that create groups. [`Communicator::builder`] configures how it connects.
//!
//! A collective comes in several forms:
//!
//! - `all_reduce` blocks and works in place. `all_reduce_into` reads one buffer and writes another.
//! - `start_all_reduce` returns a [`Work`](crate::Work), which owns the buffer until the call ends.
//! - [`Communicator::scope`] provides a [`Scope`], whose calls borrow their buffers.
//!
//! Buffers are slices, arrays, vectors, [shared memory](SharedBuffer) or device buffers. To split a
//! buffer into blocks of different lengths, pass it with a [`Layout`](crate::Layout).

// For contributors.
//
// *Purpose.* Provides `Communicator`, on which training code makes all its calls.
//
// - `builder` and `connecting` connect ranks. `groups` creates communicators for some or all of the
//   ranks.
// - `forms`, `collectives`, `blocks` and `any` run collectives. `own_operator` runs an all-reduce
//   with a custom function. `many` reduces lists of tensors. `pairs` sends messages between two
//   ranks. `values` sends serde values.
// - `work` and `scope` run operations asynchronously. `views` creates handles with a different
//   timeout, tag or name.
// - `buffer` defines the buffers that calls accept. `shared_buffer` allocates buffers that peers
//   can read in place. `attach`, `device_buffer` and `on_device` support buffers on GPUs.
// - `info` describes a communicator. `measure` measures link speeds. `tuning` supplies tuning
//   tables. `recording` records when collectives run.
//
// *Invariants.* A public function panics only if code that the program supplies panics or if a
// completed `Work` is polled again. Every call has a timeout, unless it is made through a handle
// from `Communicator::without_timeout`. All ranks must issue the operations of a communicator in
// the same order. If they do not, they get an error that quotes the calls.
//
// *May import* `runtime`, `engine`, `bootstrap`, `control`, `link`, `device`, `reduce`, `sys`,
// `plan`, `protocol` and the base files.

#![forbid(unsafe_code)]

pub(crate) mod any;
#[cfg(feature = "cuda")]
pub(crate) mod attach;
mod blocks;
pub(crate) mod buffer;
pub(crate) mod builder;
mod collectives;
pub(crate) mod connecting;
#[cfg(feature = "cuda")]
pub(crate) mod device_buffer;
mod forms;
mod groups;
pub(crate) mod info;
pub(crate) mod many;
pub(crate) mod measure;
#[cfg(feature = "cuda")]
pub(crate) mod on_device;
mod own_operator;
pub(crate) mod pairs;
#[cfg(feature = "ddp")]
pub(crate) mod recording;
pub(crate) mod scope;
pub(crate) mod shared_buffer;
mod stats;
pub(crate) mod tuning;
pub(crate) mod values;
pub(crate) mod views;
pub(crate) mod work;

pub use crate::engine::stats::CallStats;
#[cfg(feature = "cuda")]
pub use buffer::DeviceMemory;
pub use buffer::{Memory, MemoryMut};
pub use info::Info;
pub use scope::{MessageBatch, Scope, ScopedWork};
pub use shared_buffer::SharedBuffer;
pub use work::WorkError;

use crate::bootstrap::settings::DevicePathChoice;
use crate::engine::bind::Placement;
use crate::engine::cache::Cache;
use crate::engine::group::{self, Group};
use crate::error::{Error, Result};
use crate::lock::lock;
use crate::plan::internal::topology::at_sites;
use crate::plan::{Algorithm, Topology, TuningTable};
use crate::protocol::members::Members;
use crate::runtime::Runtime;
use crate::runtime::fork_guard::RuntimeHandle;
use crate::sys::memory::Region;
use crate::sys::shared::Extent;
#[cfg(feature = "cuda")]
use on_device::Attached;
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tuning::TuningOrigin;

/// All the parts that a communicator is assembled from. Fields that determine plans, such as
/// `hosts` and `tuning`, are the same on all ranks.
#[derive(Clone)]
pub(crate) struct Parts {
    pub(crate) rank: usize,
    /// World ranks of the group's members.
    pub(crate) members: Members,
    pub(crate) local_rank: usize,
    /// An integer for each rank that identifies the rank's host. Ranks with the same integer share
    /// memory.
    pub(crate) hosts: Arc<[usize]>,
    /// An integer for each rank that identifies the site of the rank's host.
    pub(crate) sites: Arc<[usize]>,
    /// Group number, by which the engine identifies the group.
    pub(crate) group: u32,
    pub(crate) runtime: RuntimeHandle,
    pub(crate) transport_name: &'static str,
    pub(crate) timeout: Duration,
    /// The paths that device buffers may use. Other ranks may have a different setting.
    pub(crate) device_path: DevicePathChoice,
    pub(crate) tuning: TuningTable,
    pub(crate) tuning_origin: TuningOrigin,
    pub(crate) algorithm: Option<Algorithm>,
    /// `true` if all ranks compare their calls before each collective and every send waits for the
    /// matching receive.
    pub(crate) checks_calls: bool,
    /// `true` if only algorithms that reduce in rank order are used.
    pub(crate) is_reproducible: bool,
}

impl Parts {
    fn topology(&self) -> Topology {
        at_sites(&self.hosts, &self.sites)
    }
}

/// A handle to a group of ranks that exchange data with each other.
///
/// The handle also determines the [timeout](Communicator::with_timeout) of the calls and the
/// [tag](Communicator::with_tag) of the messages that are issued through it.
///
/// All ranks must issue the operations of a communicator in the same order. A communicator can be
/// shared between threads. Calls from different threads are queued in the order in which they
/// arrive, and this order must be the same on all ranks.
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
/// # Errors
///
/// Every call that communicates can return an [`Error`] of the following [kinds](crate::ErrorKind):
///
/// - [`Usage`](crate::ErrorKind::Usage) if this process is a forked child, or if an argument is
///   invalid, such as a rank that is out of range, a buffer of the wrong length, or an operator
///   that does not support the element type. Correct the program. Other ranks may already be
///   waiting for the call.
/// - [`Mismatch`](crate::ErrorKind::Mismatch) if different ranks made different calls. Make the
///   same calls in the same order, with the same arguments, on all ranks.
/// - [`PeerLost`](crate::ErrorKind::PeerLost) if a rank died, cannot be reached, or left while
///   other ranks still needed it. Read the last output of that rank, and restart the job from a
///   checkpoint.
/// - [`Deadline`](crate::ErrorKind::Deadline) if the call did not complete within its timeout.
///   Check the ranks that [`Error::missing`] returns. If they are merely slow, raise the timeout.
/// - [`Protocol`](crate::ErrorKind::Protocol) if a peer sent invalid data. Check that all ranks are
///   running the same build. If they are, report a bug.
/// - [`System`](crate::ErrorKind::System) if the operating system refused to provide a resource,
///   such as memory or a file descriptor. Fix the cause that the message names.
///
/// Calls on GPU buffers can also return [`Device`](crate::ErrorKind::Device) if a GPU or its driver
/// fails.
///
/// After a `Usage` error, the communicator remains usable. After any other error, the communicator
/// has failed. In that case, all calls in flight and all subsequent calls return the first error on
/// all ranks, and the contents of their buffers are unspecified. Restart the job, or have the
/// surviving ranks form a [`subgroup`](Communicator::subgroup).
///
/// [`Communicator::error`] returns the first error. If the program passed that error to
/// [`Communicator::abort`], it can be of any kind. The documentation of each method describes any
/// errors that differ from this list.
///
/// # Forks
///
/// A process that forks keeps its communicators, and the child process gets copies of them. Calls
/// on these copies return [`Usage`](crate::ErrorKind::Usage) and do not reach any other rank.
/// Dropping the copies has no effect. A child that is created by a bare `clone` system call rather
/// than the C library's `fork` is not recognized as a forked child and must not make any calls.
#[derive(Clone)]
pub struct Communicator {
    core: Handle,
    timeout: Duration,
    tag: u32,
}

/// A reference to a communicator's core. A forked child never drops the core because only the
/// parent may close the resources that the core holds.
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

/// State that all handles of a communicator share. Each `Work` also keeps it alive.
struct Core {
    parts: Parts,
    /// Locked while a thread is issuing a collective. A thread that waits for a result keeps it
    /// locked only if the collective is on a device buffer.
    issued: Mutex<Issued>,
    /// Number of threads that are waiting for `issued`. Threads that arrive later must not overtake
    /// them.
    queued: AtomicUsize,
    /// Held by the thread that will lock `issued` next.
    first_in_line: Mutex<()>,
    /// Held by the thread that is allocating, because the ranks can exchange only one allocation at
    /// a time.
    allocating: shared_buffer::Turn,
}

/// State that is read and updated when an operation is issued, such as the counts of issued
/// operations and the programs that have been prepared for them.
struct Issued {
    collectives: u64,
    cache: Cache,
    /// Number of allocations so far.
    allocations: u64,
    /// Address ranges of the allocations that still exist.
    extents: Vec<Extent>,
    /// The device whose buffers collectives accept.
    #[cfg(feature = "cuda")]
    attached: Option<Attached>,
    /// The algorithm to use for every collective that it supports.
    algorithm: Option<Algorithm>,
}

impl Issued {
    /// Returns `true` if peers can read part of `memory` in place.
    #[inline]
    fn exposes(&self, placement: Placement, memory: &group::Memory) -> bool {
        let input = memory.input.iter().filter(|_| placement == Placement::Into);
        let regions = || input.clone().chain(&memory.output).map(Region::bytes);
        let mut extents = self.extents.iter();
        extents.any(|extent| regions().any(|bytes| extent.offset_of(bytes).is_some()))
    }
}

impl Communicator {
    pub(crate) fn assemble(parts: Parts) -> Self {
        let runtime = parts.runtime.get();
        let events = runtime.as_ref().ok().and_then(|one| one.events().cloned());
        let local = runtime.map_or_else(|_| Vec::new(), |one| one.local_ranks(&parts.members));
        let topology = parts.topology();
        let world_rank = parts.members.world_rank(parts.rank);
        let issued = Issued {
            collectives: 0,
            cache: Cache::new(parts.rank, topology, parts.tuning, local)
                .in_rank_order(parts.is_reproducible)
                .reporting_to(events, world_rank),
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
        Self {
            core: Handle(Arc::new(core)),
            timeout,
            tag: 0,
        }
    }

    /// Returns the rank of this process in the group, counted from 0.
    #[doc(alias("MPI_Comm_rank", "ncclCommUserRank", "get_rank"))]
    #[must_use]
    pub fn rank(&self) -> usize {
        self.core.parts.rank
    }

    /// Returns the number of ranks in the group.
    #[doc(alias("MPI_Comm_size", "ncclCommCount", "get_world_size", "size"))]
    #[must_use]
    pub fn world_size(&self) -> usize {
        self.core.parts.members.count()
    }

    /// Returns the local rank of this process, which is its index among the ranks on its host,
    /// counted from 0. In a group, a process keeps the local rank that it has in the world.
    #[must_use]
    pub fn local_rank(&self) -> usize {
        self.core.parts.local_rank
    }

    /// Returns the range of this rank's own block in a buffer of `count` elements.
    ///
    /// Collectives that use one block per rank, such as `reduce_scatter` and `all_gather`, split a
    /// buffer evenly unless the buffer has a different [`Layout`](crate::Layout). The first `count
    /// % world_size` blocks have one more element than the others.
    ///
    /// ```
    /// let blocks = ringtree::simulate(3, |comm| comm.block(7));
    /// assert_eq!(blocks, [0..3, 3..5, 5..7]);
    /// ```
    #[must_use]
    pub fn block(&self, count: usize) -> Range<usize> {
        let start =
            |rank| crate::plan::internal::layout::part_start(count, self.world_size(), rank);
        start(self.rank())..start(self.rank() + 1)
    }

    /// Uses `algorithm` for all subsequent collectives that it supports. `None` restores the
    /// automatic choice.
    ///
    /// All ranks must make this call between the same two collectives and with the same
    /// `algorithm`.
    ///
    /// ```
    /// use ringtree::plan::Algorithm;
    /// use ringtree::ReduceOp;
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
    /// Returns [`ErrorKind::Usage`](crate::ErrorKind::Usage) in a forked child.
    pub fn use_algorithm(&self, algorithm: Option<Algorithm>) -> Result<()> {
        self.enter()?.algorithm = algorithm;
        Ok(())
    }

    /// Records that this rank has completed all steps up to `number` (see [`crate::ddp::mark`]).
    pub(crate) fn mark(&self, number: u64) {
        if let Ok(runtime) = self.core.parts.runtime.get() {
            runtime.mark(self.core.parts.group, number);
        }
    }

    /// Aborts the communicator on all ranks.
    ///
    /// Use this for a failure that the communicator cannot detect, such as the failure of another
    /// communicator that the same work depends on. All calls in flight and all subsequent calls
    /// then return the first error on all ranks. That error is `cause`, unless another error
    /// occurred earlier.
    ///
    /// ```
    /// use ringtree::{Error, ErrorKind};
    /// let ends = ringtree::simulate(3, |comm| {
    ///     if comm.rank() == 1 {
    ///         comm.abort(&Error::new(ErrorKind::System, "rank 1 has no room on its disk"));
    ///     }
    ///     comm.barrier()
    /// });
    /// assert_eq!(ends[0], Err(Error::new(ErrorKind::System, "rank 1 has no room on its disk")));
    /// assert!(ends[1] == ends[0] && ends[2] == ends[0]);
    /// ```
    #[doc(alias("MPI_Abort", "ncclCommAbort"))]
    pub fn abort(&self, cause: &Error) {
        if let Ok(runtime) = self.core.parts.runtime.get() {
            runtime.fail(self.core.parts.group, cause);
        }
    }

    /// Returns the first error, which is also the error that all subsequent calls return. Returns
    /// `None` if this rank does not know of an error. This method does not communicate.
    ///
    /// ```
    /// use ringtree::{Error, ErrorKind};
    /// let found = ringtree::simulate(2, |comm| {
    ///     let before = comm.error();
    ///     if comm.rank() == 1 {
    ///         comm.abort(&Error::new(ErrorKind::System, "no room on the disk"));
    ///     }
    ///     let end = comm.barrier();
    ///     (before, end.err() == comm.error())
    /// });
    /// assert_eq!(found, [(None, true), (None, true)]);
    /// ```
    #[doc(alias("ncclCommGetAsyncError"))]
    #[must_use]
    pub fn error(&self) -> Option<Error> {
        let first = |group: &mut Group| group.first_error().cloned();
        match self.core.parts.runtime.get() {
            Ok(runtime) => runtime.with_group(self.core.parts.group, first).flatten(),
            Err(refusal) => Some(refusal),
        }
    }

    /// Returns the mark that the surviving ranks agree on (see [`crate::ddp::agreed_mark`]).
    pub(crate) fn agreed_mark(&self, at_most: Duration) -> Option<u64> {
        let Parts { runtime, group, .. } = &self.core.parts;
        runtime.get().ok()?.agreed_mark(*group, at_most)
    }

    /// Returns the algorithm requested by [`Communicator::use_algorithm`] or by a setting.
    pub(crate) fn algorithm(&self) -> Option<Algorithm> {
        self.enter().ok()?.algorithm
    }

    /// Returns the time on this rank's clock. The clock starts at an arbitrary value and never goes
    /// backward. Simulated ranks use the simulation's clock.
    #[doc(alias("MPI_Wtime"))]
    #[must_use]
    pub fn clock(&self) -> Duration {
        self.core.parts.runtime.now()
    }

    /// Returns `true` in a forked child of the rank. In such a child, every call returns an error.
    pub(crate) fn is_forked(&self) -> bool {
        self.core.parts.runtime.is_forked()
    }

    pub(crate) fn pass_time(&self, time: Duration) {
        if let Ok(runtime) = self.core.parts.runtime.get() {
            runtime.pass_time(time);
        }
    }

    /// Locks the state that is needed to issue a collective. Threads get the lock in the order in
    /// which they arrive. Callers drop the guard before they wait for peers, except in calls that
    /// concern device buffers.
    ///
    /// # Errors
    /// Returns `ErrorKind::Usage` in a forked child.
    #[inline]
    fn enter(&self) -> Result<MutexGuard<'_, Issued>> {
        let runtime = self.core.parts.runtime.get()?;
        if self.core.queued.load(Ordering::Relaxed) == 0
            && let Ok(issued) = self.core.issued.try_lock()
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
        } = &*self.core;
        queued.fetch_add(1, Ordering::Relaxed);
        let room = runtime.ask_others_to_yield();
        let first = lock(first_in_line);
        let issued = lock(issued);
        drop((first, room));
        queued.fetch_sub(1, Ordering::Relaxed);
        issued
    }

    pub(crate) fn check_peer(&self, what: &str, peer: usize) -> Result<()> {
        if peer < self.world_size() {
            return Ok(());
        }
        Err(Error::usage(format!(
            "{what} {peer} is out of range: valid ranks are 0 to {}",
            self.world_size() - 1
        )))
    }
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
            let why = format!("{who} panicked; check its last output and restart the job");
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
