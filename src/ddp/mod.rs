//! Data-parallel training. Every rank trains its own copy of the model on its part of the data and
//! updates that copy with gradients averaged across all ranks.
//!
//! # Overview
//!
//! - [`DataParallel`] averages gradients while the backward pass is running. [`Options`] control
//!   how they are averaged. A [hook](Options::hook) controls what is sent: [`HalfHook`] sends
//!   16-bit values, and [`PowerSgd`] sends low-rank factors.
//! - [`Optimizer`] updates the weights. Each rank updates all weights or, with
//!   [`Options::sharded`], only its share of them. You can also write your own optimizer. Use
//!   [`LocalSteps`] if the links are too slow to exchange gradients in every step.
//! - [`DistributedSampler`] distributes the samples of a data set among the ranks.
//! - [`checkpoint::Run`] resumes training with a single call and saves checkpoints in the
//!   background.
//! - [`Metrics`] writes one line of metrics per step. [`Trace`] records how the time in each step
//!   was spent.
//!
//! `examples/15_training.rs` is a complete training program that uses most of these types.
//!
//! # Order of calls
//!
//! When training starts, do the following on all ranks:
//!
//! 1. Call [`checkpoint::Run::open`], which reads the newest checkpoint. If you omit this call,
//!    training always starts from the beginning.
//! 2. Call [`DataParallel::new`] with [`Run::comm`](checkpoint::Run::comm). If you use a different
//!    communicator, sums may differ in their last bits from those before the interruption.
//! 3. Call [`DataParallel::broadcast`] if the initial weights may differ between ranks. If you omit
//!    this call, weights that differ remain different, and no error is reported.
//! 4. Call [`Run::resume`](checkpoint::Run::resume) before the first step. If you omit this call,
//!    `save` returns an error.
//!
//! In every step, do the following:
//!
//! 1. Call [`DistributedSampler::next_batch`]. At the end of an epoch, it returns `None` until
//!    [`set_epoch`](DistributedSampler::set_epoch) selects the next epoch.
//! 2. Run the backward pass of every micro-batch except the last one inside
//!    [`DataParallel::no_sync`], which adds up the gradients on each rank. Outside `no_sync`, it is
//!    an error to report a parameter's gradient a second time.
//! 3. Run the backward pass of the last micro-batch. Pass each gradient to [`DataParallel::report`]
//!    as soon as it is computed. If a rank that has data does not report a gradient for a
//!    parameter, `wait` returns an error on all ranks unless you set [`Options::allow_unused`].
//! 4. Call [`DataParallel::wait`] once on every rank. If a rank does not call it, the other ranks
//!    keep waiting for that rank.
//! 5. Call [`Optimizer::step`] once. If you use your own optimizer, read the averages from
//!    [`DataParallel::gradient`] and compute the same update on all ranks. Seed the optimizer's
//!    random numbers identically on all ranks, but use [`stream_seed`] to seed the forward pass's
//!    random numbers differently on each rank.
//! 6. Call [`Run::save`](checkpoint::Run::save) from time to time on all ranks. It returns before
//!    the checkpoint is written. At the end of training, call
//!    [`Run::finish`](checkpoint::Run::finish), which waits until the last checkpoint has been
//!    written.
//!
//! # Ranks that wait for each other
//!
//! All ranks must make the same calls. [`DataParallel`] and [`checkpoint::Run`] use separate
//! communicators, which messages refer to as "gradients" and "checkpoint". Ranks can deadlock in
//! calls on different communicators. This happens, for example, after `if rank == 0 {
//! comm.all_reduce(&mut loss, op)? }`, after a save on only one rank, or if one rank skips a step.
//!
//! After 10 seconds (`RINGTREE_STALL_WARNING_S`), a warning on standard error names the waiting
//! ranks and the calls in which they are waiting for each other. To make this warning show a name
//! for your own communicators, call [`Communicator::with_name`](crate::Communicator::with_name). If
//! a rank is merely late, the warning shows where that rank is. When the timeout expires (by
//! default, after five minutes), the call returns an error with the same text.
//!
//! # Uneven data and errors
//!
//! With [`Options::uneven_data`], ranks may have different numbers of batches. A rank that has no
//! batches left calls [`DataParallel::join`].
//!
//! If a step fails, no rank can read the averages. Exit the process and let the launcher restart
//! all ranks (`ringtree run --max-restarts`).

// For contributors.
//
// *Purpose.* This module averages gradients while the backward pass is running, and provides the
// other building blocks of a training loop. `layout` packs gradients into buckets. `backward`
// collects the reported gradients. `readiness` decides which buckets can be launched. `flight`
// exchanges the gradients in a bucket. `step` ends a step either on all ranks or on none.
// docs/internals/training.md explains the design.
//
// *Invariants.* All ranks issue the same operations in the same order, even if their gradients
// arrive in different orders. Each gradient is averaged exactly once. No rank reads an average
// before every rank has all averages of the step. The module starts no thread except the checkpoint
// writer, and depends on no framework.
//
// *May import* `comm`, `plan`, `reduce`, `sys` and the base files.

#![forbid(unsafe_code)]

mod agree;
pub(crate) mod backward;
pub(crate) mod carried;
pub(crate) mod carrier;
#[cfg(feature = "checkpoint")]
pub mod checkpoint;
mod flight;
pub(crate) mod hooks;
mod layout;
mod local_steps;
pub(crate) mod marks;
mod metrics;
mod norm;
mod optimizer;
mod options;
mod parallel;
mod parameter;
mod random;
mod readiness;
mod sampler;
mod size;
pub(crate) mod state;
mod statistics;
mod step;
pub(crate) mod trace;
pub(crate) mod values;

pub use backward::GradientMut;
#[cfg(feature = "checkpoint")]
pub use checkpoint::Run;
pub use hooks::{HalfHook, PowerSgd};
pub use layout::Bucket;
pub use local_steps::{LocalSteps, Outer};

pub use metrics::{Line, Metrics};
pub use optimizer::{AdamW, Optimizer, Part, UpdateRule, Weights};
pub use options::{NonFinite, Options};
pub use parallel::DataParallel;
pub use parameter::{Parameter, ParameterId};
pub use random::stream_seed;
pub use sampler::DistributedSampler;
pub use size::BucketSize;
pub use statistics::BucketStatistics;
pub use trace::{RankSpans, Span, Timeline, Trace};

use crate::comm::Communicator;
use crate::dtype::Element;
use crate::error::Result;
use crate::op::ReduceOp;

/// Averages the gradients in `tensors` across all ranks, in place.
///
/// Use this function after the backward pass if communication does not need to overlap with the
/// backward pass. To send gradients while the backward pass is still running, use [`DataParallel`].
///
/// ```
/// let ends = ringtree::simulate(2, |comm| {
///     let (mut weight, mut bias) = ([comm.rank() as f32; 4], [1.0]);
///     ringtree::ddp::average(comm, &mut [&mut weight, &mut bias])?;
///     Ok::<_, ringtree::Error>((weight, bias))
/// });
/// assert_eq!(ends, vec![Ok(([0.5; 4], [1.0])); 2]);
/// ```
///
/// # Errors
/// Returns one of the [errors that all calls share](Communicator#errors).
pub fn average<T: Element>(comm: &Communicator, tensors: &mut [&mut [T]]) -> Result<()> {
    comm.all_reduce_many(tensors, ReduceOp::Avg)
}
