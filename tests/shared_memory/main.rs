//! The engine over shared memory: ranks are threads with regions of their own.

#![allow(clippy::unwrap_used)]

mod collectives;
mod garbage;
mod links;
mod order;
mod stress;
mod world;
