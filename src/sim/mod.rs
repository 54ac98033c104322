//! Simulated ranks: a network with a virtual clock, its faults, and the order in which ranks run.
//!
//! *Purpose.* The same engine that runs over sockets runs here over [`network::Network`], where a
//! second of traffic costs no second of waiting, thousands of ranks fit in one process, and delays,
//! stalls, short reads and deaths happen on request. [`connector`] makes links of its byte
//! streams, and [`schedule`] lets ordinary blocking code run on up to a few hundred ranks, one at
//! a time.
//!
//! *Invariants.* Everything follows from the configuration and one seed: no real clock, no hash
//! order, no race decides anything. Time moves only when the driver moves it, never backwards.
//! Bytes of a connection arrive in order, each once, also under faults.
//!
//! *May import* `comm`, `runtime`, `engine`, `link`, `sys`, `plan`, `protocol` and the base files.

#![forbid(unsafe_code)]

pub mod connector;
pub mod faults;
pub mod network;
mod pipe;
pub mod schedule;
pub mod simulate;
