//! Tests ranks over real links. The ranks are processes (copies of this binary) or threads of one
//! process.

#![allow(clippy::unwrap_used)]

#[path = "../support/checked.rs"]
mod checked;
#[path = "../support/long.rs"]
mod long;
#[path = "../support/more_test_threads.rs"]
mod more_test_threads;
#[path = "../support/names.rs"]
mod names;
#[path = "../support/ranks.rs"]
mod ranks;
#[allow(dead_code)]
#[path = "../support/threads.rs"]
mod threads;

mod blocks;
mod calls;
mod deadlock;
mod deaths;
mod departures;
mod events;
mod groups;
mod inference;
mod messages_traced;
mod programs;
mod reproducible;
mod start;
mod tuning;
mod waiting;
