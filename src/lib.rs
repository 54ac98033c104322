//! ringtree: collective communication for people who train models.
//!
//! A [`Communicator`] is a group of processes. Every rank calls the same collectives in the same
//! order:
//!
//! ```no_run
//! use ringtree::{Communicator, ReduceOp};
//!
//! # fn main() -> ringtree::Result<()> {
//! let comm = Communicator::from_env()?; // as `ringtree run` and torchrun set it
//! let mut gradients = vec![0.5f32; 1000];
//! comm.all_reduce(&mut gradients, ReduceOp::Avg)?;
//! # Ok(()) }
//! ```
//!
//! The same code runs on simulated ranks, without processes or a network:
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
//! All that a training program names is at the root of the crate; data-parallel training is in
//! [`ddp`], starting ranks in [`launch`].
//!
//! # One idea
//!
//! *An algorithm is a value.* A [`plan`] says what one rank does in a collective, as data; it is
//! [verified](plan::verify), [priced](plan::cost), [drawn](plan::draw), [chosen](plan::select),
//! and executed by one engine over any link. Nothing else in the library knows an algorithm.
//!
//! # The map
//!
//! | Module | Is for | Start at |
//! |---|---|---|
//! | [`comm`] | the calls of training code | [`Communicator`] |
//! | [`ddp`] | gradients averaged while backward runs | [`ddp::DataParallel`] |
//! | [`launch`] | starting ranks, supervising them | [`launch::run`], [`launch::spawn_self`] |
//! | [`plan`] | collectives as data | [`plan::plan`], [`plan::REGISTRY`] |
//! | [`sim`] | ranks in virtual time | [`simulate()`], [`sim::simulate::World`] |
//!
//! With the feature `cuda`, which is experimental, `device` has the memory and streams of NVIDIA
//! GPUs.
//!
//! All other modules are private. Every module may use [`dtype`], [`op`], [`error`], and
//! [`limits`], where every bound is a constant. The command is the package `ringtree-cli`.
//! `DESIGN.md` lists all modules and packages.

#![deny(unsafe_code)]
// What only a feature uses is dead without it. The build with all features says what is dead.
#![cfg_attr(
    not(all(feature = "checkpoint", feature = "cuda", feature = "launch")),
    allow(dead_code)
)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

#[cfg(not(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
compile_error!("ringtree is written for Linux on x86-64 and aarch64");

mod bootstrap;
pub mod comm;
mod control;
#[cfg(feature = "ddp")]
pub mod ddp;
#[cfg(all(any(test, fuzzing), feature = "checkpoint", feature = "launch"))]
pub mod decoders;
#[cfg(feature = "cuda")]
pub mod device;
pub mod dtype;
mod engine;
pub mod error;
#[doc(hidden)]
pub mod internal;
#[cfg(feature = "launch")]
pub mod launch;
pub mod limits;
mod link;
pub mod op;
mod protocol;
mod random;
mod reduce;
mod runtime;
pub mod sim;
mod sys;
mod whole_file;

pub use bootstrap::settings::{DevicePathChoice, TransportChoice};
#[doc(inline)]
pub use bootstrap::store::{Store, StoreError};
#[doc(inline)]
pub use bootstrap::unique_id::UniqueId;
#[cfg(feature = "cuda")]
#[doc(inline)]
pub use comm::device_buffer::DeviceBuffer;
#[doc(inline)]
pub use comm::{
    Communicator,
    buffer::{Buffer, BufferMut},
    builder::Builder,
    joining::Joining,
    scope::{Exchange, Scope, ScopedWork},
    shared_buffer::SharedBuffer,
    tuning::{Adoption, TuningOrigin},
    work::{Failed, Work},
};
#[cfg(feature = "cuda")]
#[doc(inline)]
pub use device::{Device, Stream};
#[doc(inline)]
pub use dtype::{Dtype, Element};
#[doc(inline)]
pub use error::{Error, ErrorKind, Result};
#[doc(inline)]
pub use op::ReduceOp;
#[doc(inline)]
pub use plan::{
    Algorithm, Collective,
    layout::{Blocks, Layout},
    record::{TuningMismatch, TuningRecord},
    select::TuningTable,
};
pub use protocol::handshake::Secret;
#[doc(inline)]
pub use ringtree_plan as plan;
#[doc(inline)]
pub use sim::simulate::simulate;

/// The programs in the README and in the book, which compile and run as documentation tests.
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
