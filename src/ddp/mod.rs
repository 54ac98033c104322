//! Data-parallel training: one process becomes many.
//!
//! *Purpose.* [`DataParallel`] averages the gradients of a model over all ranks while backward
//! runs: `layout` packs them into buckets, `readiness` says which bucket may go, one of the
//! [`hooks`] says how it travels, `step` ends a step on all ranks or on none. [`Trace`] shows where
//! the time went. An [`Optimizer`] updates the weights, on every rank or each rank its share. A
//! [`checkpoint`] keeps what a training needs to go on after a failure. Where gradients do not lie
//! in host memory, a [`Carrier`] keeps and averages the buckets.
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
