//! The public API: communicators, collectives, point-to-point, handles.
//!
//! *Purpose.* [`Communicator`] is what training code holds. [`buffer`] is the door by which memory
//! comes in, [`collectives`] and [`pairs`] the calls, [`work`] the handles of asynchronous ones,
//! [`builder`] the ways to get a communicator; `planned` chooses, builds and caches programs;
//! `runtime` polls the engine for blocked callers and for the control thread.
//!
//! *Invariants.* No panic crosses this room's public functions and no call waits for ever. All
//! ranks issue the operations of a communicator in the same order; breaking it is a named error.
//!
//! *May import* `engine`, `bootstrap`, `transport`, `reduce`, `sys`, the pure rooms and the base
//! files.

#![forbid(unsafe_code)]

pub mod buffer;
pub mod builder;
pub mod collectives;
pub(crate) mod host;
pub mod pairs;
pub(crate) mod planned;
mod process;
pub(crate) mod runtime;
pub mod scope;
pub mod work;

use crate::error::{Error, Result};
use crate::plan::select::TuningTable;
use crate::plan::spec::Algorithm;
use runtime::Runtime;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What a communicator is made of; all but the rank numbers is equal on all ranks.
pub(crate) struct Parts {
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    pub(crate) local_rank: usize,
    /// The group's number in the engine.
    pub(crate) group: u32,
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) transport_name: &'static str,
    pub(crate) timeout: Duration,
    pub(crate) tuning: TuningTable,
    pub(crate) algorithm: Option<Algorithm>,
    /// What a rank that is a process does last; a simulated rank needs none.
    pub(crate) farewell: Option<process::Farewell>,
}

/// A group of ranks that work together.
///
/// All ranks issue the operations of a communicator in the same order. Methods take `&self`, but
/// two threads in one communicator at once get a usage error; give each thread its own.
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
pub struct Communicator(Arc<Core>);

/// A communicator without its face: operations under way keep it alive.
struct Core {
    parts: Parts,
    issued: Mutex<Issued>,
    is_entered: AtomicBool,
}

/// What has been issued so far, and the programs made for it.
#[derive(Default)]
struct Issued {
    collectives: u64,
    pairs: HashMap<(usize, usize), u64>,
    planned: planned::Cache,
    /// The algorithm to use wherever it can be.
    algorithm: Option<Algorithm>,
}

impl Communicator {
    pub(crate) fn assemble(parts: Parts) -> Self {
        let is_entered = AtomicBool::new(false);
        let issued = Issued {
            algorithm: parts.algorithm,
            ..Issued::default()
        };
        Self(Arc::new(Core {
            parts,
            issued: Mutex::new(issued),
            is_entered,
        }))
    }

    /// This process's number in the group, from 0.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.0.parts.rank
    }

    /// How many ranks there are.
    #[must_use]
    pub fn world_size(&self) -> usize {
        self.0.parts.world_size
    }

    /// This process's number on its host, from 0.
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

    /// How long a call may take before it ends with an error.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.0.parts.timeout
    }

    /// What the bytes travel over, as `bench` names it.
    #[must_use]
    pub fn transport(&self) -> &'static str {
        self.0.parts.transport_name
    }

    /// Uses `algorithm` from now on wherever it carries out the collective; `None` returns to the
    /// chooser. All ranks must do the same between the same calls.
    ///
    /// # Errors
    /// [`Error::Usage`] if another thread is in the communicator.
    pub fn use_algorithm(&self, algorithm: Option<Algorithm>) -> Result<()> {
        self.enter()?.issued().algorithm = algorithm;
        Ok(())
    }

    pub(crate) fn pass_time(&self, time: Duration) {
        self.0.parts.runtime.pass_time(time);
    }

    /// Entry to every call: refuses a second thread.
    fn enter(&self) -> Result<Entered<'_>> {
        if self.0.is_entered.swap(true, Ordering::Acquire) {
            return Err(Error::Usage(format!(
                "two threads of rank {} are in one communicator at once; give each its own",
                self.rank()
            )));
        }
        Ok(Entered(&self.0))
    }

    fn check_peer(&self, what: &str, peer: usize) -> Result<()> {
        if peer < self.world_size() {
            return Ok(());
        }
        Err(Error::Usage(format!(
            "{what} {peer} is no rank; there are {}, numbered from 0",
            self.world_size()
        )))
    }
}

/// Proof that this thread is the only one in the communicator.
struct Entered<'a>(&'a Core);

impl Entered<'_> {
    fn issued(&self) -> std::sync::MutexGuard<'_, Issued> {
        self.0.issued.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.is_entered.store(false, Ordering::Release);
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.parts
            .runtime
            .leave(self.parts.group, self.parts.timeout);
        drop(self.parts.farewell.take());
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
