//! Collectives as data.
//!
//! *Purpose.* What each rank does in a collective, as a value: no bytes, no pointers, no sockets,
//! no dtype. [`ir`] is the value, [`spec`] what a collective demands, [`algorithms`] one file an
//! algorithm and the registry of them all, [`layout`] how elements are split over chunks,
//! [`topology`] which ranks share a host, [`verify`] the proof by symbolic execution, [`price`]
//! and [`cost`] the price, [`parts`] what that is made of, [`tuning`] what links cost, [`record`]
//! how that is kept, [`select`] the choice, [`reproducible`] which choices change no bit, [`draw`]
//! the picture, [`export`] the plan as JSON, [`units`] times and sizes for people.
//!
//! *Invariants.* A plan is a pure function of its [`ir::Request`]. A rank's sends come before its
//! receives in each round, so executing the steps in list order is the meaning of the plan.
//!
//! *May import* nothing of the library: no clock, no I/O, no threads.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

#[macro_use]
mod named;

pub mod algorithms;
pub mod calibration;
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

/// The program of the README is compiled with the documentation's.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
