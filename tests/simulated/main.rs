//! Tests of the production engine, and of the files that it writes, on simulated ranks in virtual
//! time. Failures can occur at any step.

#![allow(clippy::unwrap_used)]

#[path = "../support/checked.rs"]
mod checked;
#[path = "../support/long.rs"]
mod long;
#[path = "../support/more_test_threads.rs"]
mod more_test_threads;

mod agreement;
mod checkpoints;
mod cluster;
mod ddp;
mod results;
mod trace;
