//! Simulates ranks on a network that has a virtual clock.
//!
//! [`simulate`](crate::simulate()) runs a function on several ranks. [`World`] does the same on a
//! network whose latency, bandwidth and faults you choose. The simulated ranks run the same code as
//! real ones, and every result is determined by the settings and a seed.

// For contributors.
//
// *Purpose.* The engine that runs over sockets also runs over `network::Network`. Simulating a
// second of traffic does not take a second of real time, thousands of ranks fit into one process,
// and `faults` injects delays, stalls, short reads and deaths. `connector` creates links from
// the network's byte streams. `schedule` runs ordinary blocking code on up to a few hundred
// ranks, one rank at a time.
//
// *Invariants.*
// - Every result is determined by the configuration and a single seed. No result depends on a real
//   clock, on hash order or on a race.
// - Time advances only when the code that drives the network advances it. It never goes backward.
// - The bytes of a connection arrive in order and exactly once, even if faults are injected.
//
// *May import* `comm`, `runtime`, `engine`, `link`, `sys`, `plan`, `protocol` and the base files.

#![forbid(unsafe_code)]

pub(crate) mod connector;
pub(crate) mod faults;
pub(crate) mod network;
mod pipe;
pub(crate) mod schedule;
pub(crate) mod world;

pub use faults::Faults;
pub use network::{NetworkConfig, Transfer};
pub use world::{World, simulate, sleep};
