//! Ranks that wait for each other in different communicators: simulated ones, and processes over
//! TCP and shared memory. Calls that are slow, or come from another thread, are not taken for that.

#![allow(clippy::unwrap_used)]

#[allow(dead_code)] // no rank is killed here
#[path = "../support/ranks.rs"]
mod ranks;

mod end;
mod go_on;
mod mistakes;
mod processes;
mod simulated;
mod soak;

#[test]
fn child_entry() {
    processes::play();
}
