//! The command line, one module a command.
//!
//! Exit codes: 0 fine; 1 the work failed, and one line says what and what to do; 2 wrong usage.

mod bench;
mod doctor;
mod names;
mod plan;
mod quantity;
mod run;

use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::process::ExitCode;

/// Collective communication for data-parallel training.
#[derive(Debug, Parser)]
#[command(name = "ringtree", version, about)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
enum Command {
    /// Start a program as several ranks and stand by them; the same line on every machine
    Run(run::Arguments),
    /// Measure a collective
    #[command(disable_help_flag = true)]
    Bench {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Explain a collective's plan: prove it, price it, draw it
    Plan(plan::Arguments),
    /// Say what was found on this machine and what is wrong with it
    #[command(disable_help_flag = true)]
    Doctor {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

fn main() -> ExitCode {
    match CommandLine::parse().command {
        Command::Run(arguments) => run::execute(arguments),
        Command::Bench { arguments } => bench::execute(&arguments),
        Command::Plan(arguments) => plan::execute(&arguments),
        Command::Doctor { arguments } => doctor::execute(&arguments),
    }
}
