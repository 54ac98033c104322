//! Simulates ranks on a network with a virtual clock.
//!
//! *Purpose.* The engine that runs over sockets also runs over [`network::Network`]. A second of
//! virtual traffic does not take a second of real time, thousands of ranks fit into one process,
//! and [`faults`] injects delays, stalls, short reads and deaths. [`connector`] creates links from
//! the network's byte streams. [`schedule`] runs ordinary blocking code on up to a few hundred
//! ranks, one at a time.
//!
//! *Invariants.*
//! - The configuration and one seed determine every result. No result depends on a real clock, on
//!   hash order or on a race.
//! - Time advances only when the code that drives the network advances it. It never goes backwards.
//! - The bytes of a connection arrive in order and exactly once, even if faults are injected.
//!
//! *May import* `comm`, `runtime`, `engine`, `link`, `sys`, `plan`, `protocol` and the base files.

#![forbid(unsafe_code)]

pub mod connector;
pub mod faults;
pub mod network;
mod pipe;
pub mod schedule;
pub mod simulate;
