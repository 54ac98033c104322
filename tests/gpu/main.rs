//! Tests of the GPU code, run on a fake driver.

#![allow(clippy::unwrap_used)]

#[path = "../support/address.rs"]
mod address;
#[path = "device/driver.rs"]
mod driver;

mod collectives;
mod kernels;
