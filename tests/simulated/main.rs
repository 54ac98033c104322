//! The real engine on simulated ranks, and what they write: virtual time, and every failure at
//! every step.

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
