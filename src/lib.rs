//! ringtree: collective communication for people who train models.
//!
//! One idea carries the library: *an algorithm is a value*. A [`plan`] says what one rank does in
//! a collective, as data; it is verified, priced, drawn, chosen, and executed by one engine over
//! any transport. Nothing else in the library knows an algorithm.
//!
//! # Rooms
//!
//! Pure (no clock, no I/O, no threads): [`plan`], [`wire`], [`protocol`]. Fenced unsafe: [`sys`].
//! Effects: [`reduce`], [`transport`], [`engine`], [`bootstrap`], [`comm`], [`launch`], [`sim`].
//! Imports point one way, `launch → comm → bootstrap, engine → transport, reduce → sys`, and a
//! test reads the `use` lines to keep it so.

#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

#[cfg(not(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
compile_error!("ringtree is written for Linux on x86-64 and aarch64");

pub mod bootstrap;
pub mod comm;
pub mod dtype;
pub mod engine;
pub mod error;
pub mod launch;
pub mod limits;
pub mod op;
pub mod plan;
pub mod protocol;
pub mod reduce;
pub mod sim;
pub mod sys;
pub mod transport;
pub mod wire;

pub use comm::Communicator;
pub use dtype::{Dtype, Element};
pub use error::{Error, Result};
pub use op::ReduceOp;
pub use sim::simulate::simulate;
