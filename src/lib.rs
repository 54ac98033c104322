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
//! # One idea
//!
//! *An algorithm is a value.* A [`plan`] says what one rank does in a collective, as data; it is
//! [verified](plan::verify), [priced](plan::cost), [drawn](plan::draw), [chosen](plan::select),
//! and executed by one [`engine`] over any [`transport`]. Nothing else in the library knows an
//! algorithm.
//!
//! # The map
//!
//! | Room | Is for | Start at |
//! |---|---|---|
//! | [`comm`] | the calls of training code | [`Communicator`] |
//! | [`ddp`] | gradients averaged while backward runs | [`ddp::DataParallel`] |
//! | [`launch`] | starting ranks, standing by them | [`launch::run`], [`launch::spawn_self`] |
//! | [`bootstrap`] | settings, the join | [`bootstrap::Settings`] |
//! | [`control`] | the control thread, local ranks | [`control::ControlHandle`] |
//! | `runtime` | which thread polls, what waits | |
//! | [`engine`] | running plans over links | [`engine::program`], `engine/run.rs` |
//! | [`link`] | moving bytes to and from one peer | [`link::Link`] |
//! | [`device`] | memory and streams of a GPU | [`device::Device`] |
//! | [`reduce`] | folding elements on the CPU | [`reduce::Kernel`] |
//! | [`plan`] | collectives as data | [`plan::plan`], [`plan::REGISTRY`] |
//! | [`protocol`] | handshake, calls, the first cause | [`protocol::session`] |
//! | [`sim`] | ranks in virtual time | [`simulate()`], [`sim::simulate::World`] |
//! | [`sys`] | the only unsafe code | |
//!
//! [`plan`] and [`protocol`] are pure: no clock, no I/O, no threads. Imports point one way,
//! `comm → runtime → engine → link, reduce → sys` and `comm, launch → bootstrap → control →
//! link → sys`, and a test reads the `use` lines to keep it so. What every room may know:
//! [`dtype`], [`op`], [`error`], and [`limits`], where every bound is a constant.

#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

#[cfg(not(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
compile_error!("ringtree is written for Linux on x86-64 and aarch64");

pub mod bootstrap;
pub mod comm;
pub mod control;
pub mod ddp;
pub mod device;
pub mod dtype;
pub mod engine;
pub mod error;
pub mod launch;
pub mod limits;
pub mod link;
mod named;
pub mod op;
pub mod plan;
pub mod protocol;
pub mod reduce;
mod runtime;
pub mod sim;
pub mod sys;

pub use comm::Communicator;
pub use comm::shared_buffer::SharedBuffer;
pub use dtype::{Dtype, Element};
pub use error::{Error, Result};
pub use op::ReduceOp;
pub use sim::simulate::simulate;

/// The README's program is compiled with the documentation's.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
