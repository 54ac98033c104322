//! Collective algorithms as data.
//!
//! *Purpose.* A plan describes what one rank does in a collective. It is a plain value that
//! contains no bytes, pointers, sockets or dtypes.
//!
//! - [`ir`]: plans and the steps that they consist of.
//! - [`spec`]: the collectives and the result that each one must produce.
//! - [`algorithms`]: the algorithms, one per file, and the registry that lists them.
//! - [`layout`]: how a buffer's elements are split into chunks.
//! - [`topology`]: which ranks share a host, and which hosts share a site.
//! - [`verify`]: verification of plans by symbolic execution.
//! - [`cost`] and [`price`]: how times are predicted. [`parts`]: the components of a predicted
//!   time.
//! - [`tuning`]: the table of link costs. [`calibration`]: how the table is computed from
//!   measurements. [`record`]: how the table is saved.
//! - [`select`]: how an algorithm is chosen. [`reproducible`]: which algorithms always produce the
//!   same bits.
//! - [`draw`]: diagrams of plans. [`export`]: plans as JSON. [`units`]: human-readable times and
//!   sizes.
//!
//! *Invariants.* A plan is a pure function of its [`ir::Request`]. In each round, a rank's sends
//! precede its receives, so the steps can be executed in list order.
//!
//! *May import* nothing of the library: no clock, no I/O, no threads.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

#[macro_use]
mod named;

pub mod algorithms;
pub mod calibration;
mod choice;
pub mod cost;
#[cfg(feature = "draw")]
pub mod draw;
pub mod export;
pub mod ir;
pub mod layout;
pub mod limits;
pub mod parts;
pub mod price;
pub mod record;
pub mod reproducible;
pub mod select;
pub mod spec;
pub mod topology;
pub mod tuning;
pub mod units;
pub mod verify;

pub use algorithms::{REGISTRY, plan};
pub use ir::{ChunkRange, Plan, Request, Round, Source, Step};
pub use spec::{Algorithm, Collective};
pub use topology::{Hosts, Topology};

/// Compiles the README's example as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
