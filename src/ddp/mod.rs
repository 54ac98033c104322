//! Data-parallel training: every rank has a copy of the model, trains on its own part of the data,
//! and takes the step that the averaged gradients of all ranks ask for.
//!
//! # What is here
//!
//! - [`DataParallel`] averages gradients while backward runs; its [`Options`] say how, and a
//!   [`Hook`] what travels ([`HalfHook`]: 16 bits; [`PowerSgd`]: low-rank factors).
//! - An [`Optimizer`] takes the step: every rank for all weights or, with [`Options::sharded`],
//!   for its share. A program may have its own optimizer. [`LocalSteps`] is for links too slow for
//!   an exchange in every step.
//! - [`DistributedSampler`] deals the samples of a data set out to the ranks.
//! - [`checkpoint::Run`] resumes a training in one call, and saves it while it goes on.
//! - [`Metrics`] writes a line a step. [`Trace`] shows where the time of steps went.
//! - A [`Carrier`] averages gradients that do not lie in host memory.
//!
//! `examples/15_training.rs` is a whole training with all of it.
//!
//! # The order of calls
//!
//! Once, on all ranks alike:
//!
//! 1. [`checkpoint::Run::open`] reads the newest checkpoint. Left out, the training starts from the
//!    beginning each time.
//! 2. [`DataParallel::new`] on [`Run::comm`](checkpoint::Run::comm). On another communicator it
//!    works too, but sums may differ in their last bits from those before the interruption.
//! 3. [`DataParallel::broadcast`], if the ranks' initial weights may differ. Left out, replicas
//!    that start apart stay apart, and nothing tells.
//! 4. [`Run::resume`](checkpoint::Run::resume) before the first step. Left out, `save` is refused.
//!
//! In every step:
//!
//! 1. [`DistributedSampler::next_batch`]; at the end of an epoch,
//!    [`set_epoch`](DistributedSampler::set_epoch) with the next. Left out, there are no more
//!    samples.
//! 2. For all micro-batches but the last, backward inside [`DataParallel::no_sync`]: gradients add
//!    up on the rank. Left out, the second report of a parameter is an error.
//! 3. Backward of the last micro-batch reports each gradient by [`DataParallel::report`] as soon as
//!    it is there. A parameter that a rank with data does not report is an error in `wait`, on
//!    all ranks, unless [`Options::allow_unused`] says that this is meant.
//! 4. [`DataParallel::wait`] on all ranks, once. Left out on one rank, the others wait for it.
//! 5. [`Optimizer::step`], once, or [`DataParallel::gradient`] and the program's own step: the same
//!    on all ranks, from the same averages. An optimizer that draws random numbers seeds them alike
//!    on all ranks; forward draws others on each, by [`stream_seed`].
//! 6. [`Run::save`](checkpoint::Run::save) now and then, on all ranks; it returns before the file
//!    is written. [`Run::finish`](checkpoint::Run::finish) at the end waits for the last.
//!
//! All ranks make the same calls. The trainer has communicators of its own, which messages call
//! "gradients", and [`checkpoint::Run`] has "checkpoint". Ranks may come to wait for each other in
//! different ones, as after `if rank == 0 { comm.all_reduce(&mut loss, op)? }`, a save on one rank
//! or a step that one rank leaves out. Then one line on standard error says after 10 s
//! (`RINGTREE_STALL_WARNING_S`) which rank waits for which in which call of which communicator
//! ([`Communicator::named`](crate::Communicator::named) names the program's own), and that they
//! wait for each other; of a rank that is merely late it says where that is. The deadline, after
//! five minutes unless set otherwise, ends the call with the same words.
//!
//! Ranks that have different numbers of batches call [`DataParallel::join`] when they have run out,
//! with [`Options::uneven_data`]. After an error in a step no average can be read on any rank; end
//! the process, and let the launcher start all ranks again (`ringtree run --max-restarts`).

// For who works on the room. *Invariants.* All ranks issue the same operations in the same order,
// in whatever order their gradients come. A gradient is averaged exactly once. No rank reads an
// average before every rank has all of them. The room starts no thread but the one that writes a
// checkpoint, and knows no framework. `layout` packs gradients into buckets, `readiness` says which
// bucket may go, `step` ends a step on all ranks or on none.
//
// *May import* `comm`, `plan`, `reduce`, `sys` and the base files.

#![forbid(unsafe_code)]

mod agree;
mod backward;
mod carrier;
#[cfg(feature = "checkpoint")]
pub mod checkpoint;
mod flight;
pub mod hooks;
mod layout;
mod local_steps;
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
mod statistics;
mod step;
pub(crate) mod trace;
mod values;

pub use backward::GradientMut;
pub use carrier::{Carrier, Place};
pub use hooks::{BucketInfo, Exchange, HalfHook, Hook, Next, Plain, PowerSgd};
pub use layout::Bucket;
pub use local_steps::{LocalSteps, Outer};
pub use metrics::{Line, Measured, Metrics};
pub use optimizer::{AdamW, Optimizer, Part, UpdateRule, Weights};
pub use options::{NonFinite, Options};
pub use parallel::DataParallel;
pub use parameter::Parameter;
pub use random::stream_seed;
pub use sampler::DistributedSampler;
pub use size::BucketSize;
pub use statistics::BucketStatistics;
pub use trace::{RankSpans, Span, Timeline, Trace};
pub use values::Values;
