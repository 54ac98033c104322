//! The real engine on simulated ranks, and what they write: virtual time, and every failure at
//! every step.

#![allow(clippy::unwrap_used)]

#[path = "../support/checked.rs"]
mod checked;
#[path = "../support/long.rs"]
mod long;
#[path = "../support/many_tests_at_once.rs"]
mod many_tests_at_once;

mod agreement;
mod checkpoints;
mod cluster;
mod ddp;
mod results;
mod trace;
