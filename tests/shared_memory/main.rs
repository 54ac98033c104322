//! The engine over shared memory: ranks are threads with regions of their own.

#![allow(clippy::unwrap_used)]

mod collectives;
mod garbage;
mod into;
mod links;
#[path = "../support/long.rs"]
mod long;
mod order;
mod shares;
mod stingy;
mod stress;
mod world;
