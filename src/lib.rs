//! Collective communication for training models across multiple processes and hosts.
//!
//! A [`Communicator`] connects a group of processes called *ranks*. All ranks make the same calls
//! in the same order:
//!
//! ```no_run
//! use ringtree::{Communicator, ReduceOp};
//!
//! # fn main() -> ringtree::Result<()> {
//! let comm = Communicator::from_env()?; // started by `ringtree run`, torchrun, mpirun or srun
//! let mut gradients = vec![0.5f32; 1000];
//! comm.all_reduce(&mut gradients, ReduceOp::Avg)?;
//! # Ok(()) }
//! ```
//!
//! The same code also runs on simulated ranks, which need neither processes nor a network:
//!
//! ```
//! use ringtree::ReduceOp;
//!
//! let sums = ringtree::simulate(8, |comm| {
//!     let mut numbers = [comm.rank() as f32];
//!     comm.all_reduce(&mut numbers, ReduceOp::Sum).map(|()| numbers)
//! });
//! assert!(sums.iter().all(|sum| *sum == Ok([28.0])));
//! ```
//!
//! The crate root exports the types that a training program needs. `docs/calls.md` is a guide to
//! the calls, and `docs/errors.md` explains what to do when something hangs or fails.
//!
//! # Algorithms are data
//!
//! A [`plan`] is plain data that describes what one rank does in a collective. ringtree can
//! [verify](plan::verify()) a plan, estimate its [cost](plan::Cost) and [draw](plan::draw) it. It
//! can also [choose](plan::choose) the fastest of several plans. A single engine runs every plan
//! over any kind of link, and no other part of the library depends on the algorithm.
//!
//! # Modules
//!
//! | Module | Purpose | Start at |
//! |---|---|---|
//! | [`comm`] | the calls that training code makes | [`Communicator`] |
//! | [`ddp`] | averaging gradients during the backward pass | [`ddp::DataParallel`] |
//! | [`launch`] | starting and supervising ranks | [`launch::run`], [`launch::spawn_self`] |
//! | [`plan`] | collectives described as data | [`plan::plan`], [`plan::REGISTRY`] |
//! | [`sim`] | simulated ranks in virtual time | [`simulate()`], [`sim::World`] |
//! | [`start`] | starting a communicator | [`start::UniqueId`], [`start::Secret`] |
//! | [`tuning`] | tables of link costs | [`tuning::TuningTable`] |
//!
//! # Features
//!
//! All features except `cuda` are on by default.
//!
//! | Feature | Adds |
//! |---|---|
//! | `ddp` | [`ddp`], without checkpoints |
//! | `checkpoint` | `ddp::checkpoint` and `ddp::Run` |
//! | `launch` | [`launch`] |
//! | `draw` | [`plan::draw`] |
//! | `cuda` | `cuda`: memory and streams on NVIDIA GPUs. Experimental. |
//!
//! All other modules are private. The `ringtree` command is in the `ringtree-cli` package.
//! `DESIGN.md` lists all modules and packages.

#![deny(unsafe_code)]
// If a feature is off, code that only this feature uses is dead. The build with all features still
// reports any other dead code.
#![cfg_attr(
    not(all(feature = "checkpoint", feature = "cuda", feature = "launch")),
    allow(dead_code)
)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

#[cfg(not(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
compile_error!("ringtree supports only Linux on x86-64 and aarch64");

mod bootstrap;
pub mod comm;
mod control;
#[cfg(feature = "ddp")]
pub mod ddp;
#[cfg(all(any(test, fuzzing), feature = "checkpoint", feature = "launch"))]
pub mod decoders;
#[cfg(feature = "cuda")]
mod device;
mod dtype;
mod engine;
mod error;
mod event;
mod hash;
#[doc(hidden)]
pub mod internal;
#[cfg(feature = "launch")]
pub mod launch;
mod limits;
mod link;
mod lock;
mod op;
mod protocol;
mod random;
mod reduce;
mod runtime;
pub mod sim;
mod sys;
mod whole_file;

#[doc(inline)]
pub use comm::{
    Communicator,
    buffer::{Buffer, BufferMut},
    builder::Builder,
    work::Work,
};
#[doc(inline)]
pub use dtype::{Dtype, Element};
#[doc(inline)]
pub use error::{Error, ErrorKind, Result};
#[doc(inline)]
pub use op::ReduceOp;
#[doc(inline)]
pub use plan::{Blocks, Layout};
#[doc(inline)]
pub use ringtree_plan as plan;
#[doc(inline)]
pub use sim::simulate;

/// Starting a communicator: shared secrets, identifiers, and key-value stores.
pub mod start {
    pub use crate::bootstrap::settings::{DevicePathChoice, TransportChoice};
    pub use crate::bootstrap::store::{Store, StoreError};
    pub use crate::bootstrap::unique_id::UniqueId;
    pub use crate::comm::connecting::Connecting;
    pub use crate::protocol::handshake::Secret;
}

/// Tables of link costs, which determine the algorithms that are chosen.
pub mod tuning {
    pub use crate::comm::tuning::TuningOrigin;
    pub use crate::plan::{TuningMismatch, TuningRecord, TuningTable};
}

/// NVIDIA GPUs, their memory and their streams. Experimental.
#[cfg(feature = "cuda")]
pub mod cuda {
    pub use crate::comm::device_buffer::DeviceBuffer;
    pub use crate::device::{Device, Memory, Stream, count};
}

/// Pages whose example programs are compiled and run as documentation tests.
#[cfg(all(doctest, feature = "checkpoint", feature = "launch"))]
mod pages {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../docs/calls.md")]
    struct Calls;
    #[doc = include_str!("../docs/errors.md")]
    struct Errors;
    #[doc = include_str!("../docs/from_mpi.md")]
    struct FromMpi;
    #[doc = include_str!("../docs/from_nccl.md")]
    struct FromNccl;
    #[cfg(feature = "cuda")]
    #[doc = include_str!("../docs/gpu.md")]
    struct Gpu;
    #[doc = include_str!("../docs/running.md")]
    struct Running;
    #[doc = include_str!("../docs/training.md")]
    struct Training;
    #[doc = include_str!("../docs/tuning.md")]
    struct Tuning;
}
