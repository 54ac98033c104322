//! The program `ringtree`, driven as a user drives it.

#![allow(clippy::unwrap_used)]

mod limits;
#[path = "../../../../tests/support/names.rs"]
mod names;
mod pages;
mod plan;
mod player;
mod traced;
mod tuning;
