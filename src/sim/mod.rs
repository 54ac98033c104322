//! Simulated ranks: a network with a virtual clock, its faults, and the order in which ranks run.
//!
//! *Purpose.* The same engine that runs over sockets runs here over [`network::Network`], where a
//! second of traffic costs no second of waiting, thousands of ranks fit in one process, and delays,
//! stalls, short reads and deaths happen on request. [`connector`] makes links of its byte
//! streams. Two ways to run ranks: [`schedule`] lets ordinary blocking code run on up to a few
//! hundred, one at a time; [`cluster`] drives a [`script`] on thousands, in one thread, and
//! [`checkers`] say whether what came out is right. [`promise`] says what a collective leaves in
//! buffers of known content.
//!
//! *Invariants.* Everything follows from the configuration and one seed: no real clock, no hash
//! order, no race decides anything. Time moves only when the driver moves it, never backwards.
//! Bytes of a connection arrive in order, each once, also under faults.
//!
//! *May import* `comm`, `runtime`, `engine`, `link`, `reduce`, `sys`, `plan`, `protocol` and the
//! base files.

#![forbid(unsafe_code)]

pub mod checkers;
pub mod cluster;
pub mod connector;
pub mod faults;
pub mod network;
mod pipe;
pub mod promise;
pub mod schedule;
pub mod script;
pub mod simulate;
