//! Tests that run the program `ringtree` as a user does.

#![allow(clippy::unwrap_used)]

mod doctor;
mod limits;
#[path = "../../../../tests/support/names.rs"]
mod names;
mod pages;
mod plan;
mod player;
mod traced;
mod tuning;
