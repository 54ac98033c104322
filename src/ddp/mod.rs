//! Data-parallel training: one process becomes many.
//!
//! Every rank holds the whole model and computes gradients on its own share of the data.
//! [`DataParallel`] averages them over all ranks while backward still runs, so that every rank
//! takes the same optimizer step and ends with the same bits. The framework and the learning rate
//! stay the program's; so does the optimizer, unless it is an [`Optimizer`].
//!
//! # A training
//!
//! 1. [`DataParallel::new`] with the parameters in the order in which forward uses them, once, on
//!    all ranks; [`DataParallel::broadcast`] gives all ranks rank 0's weights. A training that
//!    goes on loads a [`checkpoint`] first.
//! 2. Each epoch: [`DistributedSampler::set_epoch`], then the batches of [`DistributedSampler`]
//!    are this rank's share.
//! 3. Each step: [`report`](DataParallel::report) a gradient as soon as backward has it, in any
//!    order (or write it where it travels from: [`gradient_mut`](DataParallel::gradient_mut), then
//!    [`ready`](DataParallel::ready)); [`wait`](DataParallel::wait) when backward has ended;
//!    [`gradient`](DataParallel::gradient) has the averages for the optimizer. To accumulate over
//!    several batches, report all but the last inside of [`no_sync`](DataParallel::no_sync).
//! 4. Ranks whose data may end early: the option [`Options::uneven_data`], and
//!    [`join`](DataParallel::join) after the last own step.
//!
//! # If one is left out
//!
//! - `broadcast`: nothing tells; replicas that begin apart stay apart.
//! - `set_epoch`: every epoch has the same order.
//! - `report` of a parameter: if no rank reports it, `wait` is an
//!   [`Error::usage`](crate::Error::usage) that names it, unless [`Options::allow_unused`]. If some
//!   ranks do, the others count as zeros, and the average divides by all ranks.
//! - `wait`, on all ranks: the next `report` of the same parameter is an error.
//! - `wait` or a whole step on some ranks, or `join` where data ends on some: the others wait.
//!
//! All ranks make the same calls. The trainer works on communicators of its own, which messages
//! call "gradients". Ranks may come to wait for each other there and in another communicator, as
//! after `if rank == 0 { comm.all_reduce(&mut loss, op)? }`: then all of these calls end within
//! seconds, with one error that says who waits where.
//! [`Communicator::named`](crate::Communicator::named) gives the program's own communicators names
//! for it. A rank that is merely late is told of in one line on standard error after 30 s
//! (`RINGTREE_STALL_WARNING_S`), and ends the call at its deadline.
//!
//! # This room
//!
//! *Purpose.* `layout` packs the gradients into buckets, `readiness` says which bucket may go, one
//! of the [`hooks`] says how it travels, `step` ends a step on all ranks or on none. [`Trace`]
//! shows where the time went. An [`Optimizer`] updates the weights, on every rank or each rank its
//! share. A [`checkpoint`] keeps what a training needs to go on after a failure. Where gradients do
//! not lie in host memory, a [`Carrier`] keeps and averages the buckets.
//!
//! *Invariants.* All ranks issue the same operations in the same order, in whatever order their
//! gradients come. A gradient is averaged exactly once. No rank reads an average before every rank
//! has all of them. The room starts no thread and knows no framework.
//!
//! *May import* `comm`, `plan`, `reduce` and the base files.

#![forbid(unsafe_code)]

mod agree;
mod backward;
mod carrier;
pub mod checkpoint;
mod flight;
pub mod hooks;
mod layout;
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
