//! The command line.

#![deny(unsafe_code)]

mod names;
mod plan;
mod quantity;

use clap::Parser;
use std::process::ExitCode;

/// Collective communication for data-parallel training.
#[derive(Parser)]
#[command(name = "ringtree", version)]
enum Arguments {
    /// Show, price, verify, draw and export the plans of a collective.
    Plan(plan::PlanArguments),
}

fn main() -> ExitCode {
    match Arguments::parse() {
        Arguments::Plan(arguments) => plan::run(arguments),
    }
}
