//! The command line, one module a command.
//!
//! *Purpose.* What is typed: `ringtree run`, `bench`, `plan`, `doctor`, `check-gpu`. The program
//! `ringtree` is this library and no more, and so is the command in the package for Python.
//! [`expected`] has the results that `bench` and `check-gpu` compare with.
//!
//! *Invariants.* Exit codes: 0 fine; 1 the work failed, and one line says what and what to do; 2
//! wrong usage. Nothing here ends the process.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod bench;
#[cfg(feature = "cuda")]
mod check_gpu;
mod doctor;
pub mod expected;
#[cfg_attr(not(feature = "cuda"), path = "no_gpu.rs")]
mod gpu;
mod invocation;
mod names;
mod plan;
mod quantity;
mod run;

pub use invocation::{Invocation, Program};

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use ringtree::internal::bootstrap::{check_environment, check_names, listed};
use ringtree::launch::tell;
use std::ffi::OsString;
use std::io::Write;

#[cfg(not(feature = "cuda"))]
use gpu::check as check_gpu;

/// Exit code: fine.
const FINE: u8 = 0;
/// Exit code: the work failed.
const FAILED: u8 = 1;
/// Exit code: wrong usage.
const MISUSED: u8 = 2;

/// Collective communication for data-parallel training.
#[derive(Debug, Parser)]
#[command(name = "ringtree", version, about)]
#[command(after_help = format!("Environment:\n{}", listed()))]
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
    Bench(bench::Arguments),
    /// Explain a collective's plan: prove it, price it, draw it
    Plan(plan::Arguments),
    /// Say what was found on this machine and what is wrong with it
    Doctor(doctor::Arguments),
    /// Check and measure everything that needs a GPU, in at most ten minutes
    CheckGpu(check_gpu::Arguments),
}

/// Carries out one call of the command line; returns the process's exit code.
pub fn execute(invocation: Invocation) -> u8 {
    let code = carried_out(invocation);
    // Flushed here: where the program is an interpreter, nothing does it at the end. A reader that
    // has seen enough (`| head`) is no failure.
    let _ = std::io::stdout().flush();
    code
}

fn carried_out(invocation: Invocation) -> u8 {
    let name = OsString::from("ringtree");
    let words = [&name].into_iter().chain(&invocation.arguments);
    let line = match CommandLine::try_parse_from(words) {
        Ok(line) => line,
        Err(error) => return misread(&error),
    };
    let names = std::env::vars_os().map(|(name, _)| name);
    let setting = |name: &str| std::env::var(name).ok();
    let checked = check_names(names).and_then(|()| check_environment(setting));
    if let Err(error) = checked {
        tell(&error.to_string());
        return MISUSED;
    }
    match line.command {
        Command::Run(arguments) => run::execute(arguments),
        Command::Bench(arguments) => bench::execute(&arguments, invocation),
        Command::Plan(arguments) => plan::execute(&arguments),
        Command::Doctor(arguments) => doctor::execute(&arguments),
        Command::CheckGpu(arguments) => check_gpu::execute(&arguments, &invocation),
    }
}

/// Prints what was asked for (help, version), or in one line what is wrong.
fn misread(error: &clap::Error) -> u8 {
    if !error.use_stderr() {
        // A reader that has seen enough (`| head`) is no failure.
        let _ = error.print();
        return FINE;
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        tell(
            "say what to do: run, bench, plan, doctor or check-gpu; \
             `ringtree --help` tells more",
        );
        return MISUSED;
    }
    let text = error.to_string();
    // The first paragraph says it, a list of what is missing included; the rest is usage and tips.
    let lines = text.lines().take_while(|line| !line.trim().is_empty());
    let what: Vec<&str> = lines.map(str::trim).collect();
    let what = what.join(" ");
    let what = what.strip_prefix("error: ").unwrap_or(&what);
    tell(&format!("{what}; `--help` tells more"));
    MISUSED
}
