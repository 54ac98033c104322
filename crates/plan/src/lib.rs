//! Collective algorithms as data.
//!
//! A [`Plan`] describes what one rank does in a collective. It is a plain value that contains no
//! bytes, pointers, sockets or dtypes.
//!
//! - [`plan()`] builds the plan of one rank, and [`plans`] the plans of all ranks.
//! - [`verify()`] checks that plans produce the result of their [`Collective`].
//! - [`predicted_s`] predicts how long plans take, given a [`TuningTable`] of link costs.
//!   [`choose`] returns the fastest algorithm.
//! - [`draw`] draws plans.
//! - [`REGISTRY`] lists the algorithms. [`Algorithm::register`] adds your own.

// For contributors.
//
// *Purpose.* A plan describes what one rank does in a collective. It is a plain value that
// contains no bytes, pointers, sockets or dtypes.
//
// - `error`: errors. `ir`: plans and the steps that they consist of.
// - `spec`: the collectives and the result that each one must produce.
// - `algorithms`: the algorithms, one per file, and the registry that lists them.
// - `layout`: how a buffer's elements are split into chunks.
// - `topology`: which ranks share a host, and which hosts share a site.
// - `verify`: verification of plans by symbolic execution.
// - `cost` and `price`: how times are predicted. `parts`: the components of a predicted time.
// - `tuning`: the table of link costs. `calibration`: how the table is computed from measurements.
//   `record`: how the table is saved.
// - `select`: how an algorithm is chosen. `reproducible`: which algorithms always produce the
//   same bits.
// - `draw`: diagrams of plans. `export`: the transfers in plans, for other programs. `units`:
//   human-readable times and sizes.
//
// *Invariants.* A plan is a pure function of its `Request`. In each round, a rank's sends
// precede its receives, so the steps can be executed in list order.
//
// *May import* nothing of the library: no clock, no I/O, no threads.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

#[macro_use]
mod error;
#[macro_use]
mod named;

mod algorithms;
mod calibration;
mod choice;
mod cost;
#[cfg(feature = "draw")]
pub mod draw;
mod export;
#[doc(hidden)]
pub mod internal;
mod ir;
mod layout;
mod limits;
mod parts;
mod price;
mod record;
mod reproducible;
mod select;
mod spec;
mod topology;
mod tuning;
mod units;
mod verify;

pub use algorithms::{Entry, Offer, REGISTRY, plan, plans, prove, required};
pub use choice::Choice;
pub use cost::Traffic;
pub use error::{PlanError, PlanErrorKind};
pub use ir::{ChunkRange, Plan, Request, Source, Step};
pub use layout::{Blocks, Layout};
pub use parts::Parts;
pub use price::{Cost, LinkCost, UplinkCost};
pub use record::{TuningMismatch, TuningRecord};
pub use select::{choose, choose_concurrent, predicted_s};
pub use spec::{Algorithm, Collective};
pub use topology::{Hosts, Topology};
pub use tuning::TuningTable;
pub use units::Seconds;
pub use verify::{Fault, Proof, verify};

/// Compiles the README's example as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
