//! Tests the engine over shared memory. Ranks are threads with separate regions.

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
