//! Groups of a communicator's ranks: simulated ones, with deaths at every step, and real processes
//! over TCP, shared memory and both.

#![allow(clippy::unwrap_used)]

#[path = "../support/ranks.rs"]
mod ranks;

mod deaths;
mod processes;
mod simulated;

#[test]
fn child_entry() {
    processes::play();
}
