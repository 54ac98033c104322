//! Implements the `ringtree` command line, with one module per command.
//!
//! *Purpose.* Implements the `run`, `bench`, `plan`, `doctor` and `check-gpu` commands for the
//! `ringtree` program and for the Python package's command. [`expected`] computes the results
//! against which `bench` and `check-gpu` compare theirs.
//!
//! *Invariants.* The exit code is 0 on success, 1 if the work failed, and 2 after a usage error. On
//! failure, a single line states the cause and the next step. No function in this crate terminates
//! the process.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod bench;
#[cfg(feature = "cuda")]
mod check_gpu;
mod doctor;
pub mod expected;
mod format;
#[cfg_attr(not(feature = "cuda"), path = "no_gpu.rs")]
mod gpu;
mod invocation;
mod names;
mod plan;
mod quantity;
mod run;

pub use invocation::{Invocation, Program};

use clap::error::{ContextKind, ErrorKind};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use ringtree::internal::bootstrap::{check_environment, check_names, listed};
use ringtree::internal::launch::tell;
use std::ffi::OsString;
use std::io::Write;

#[cfg(not(feature = "cuda"))]
use gpu::check as check_gpu;

/// Exit code on success.
const FINE: u8 = 0;
/// Exit code if the work failed.
const FAILED: u8 = 1;
/// Exit code after a usage error.
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
    /// Start a program as several ranks and supervise them; run the same command on every host
    Run(run::Arguments),
    /// Measure a collective and check its results
    Bench(bench::Arguments),
    /// Show the plan for a collective, predict its time, verify it or draw it
    Plan(plan::Arguments),
    /// Check this machine and show the settings that are in effect
    Doctor(doctor::Arguments),
    /// Check and measure everything that needs a GPU, within ten minutes
    CheckGpu(check_gpu::Arguments),
}

/// Runs an invocation of the command line and returns the exit code for the process.
pub fn execute(invocation: Invocation) -> u8 {
    let code = carried_out(invocation);
    // If the program is an interpreter, nothing else flushes standard output. A reader that has
    // closed it (`| head`) is not an error.
    let _ = std::io::stdout().flush();
    code
}

fn carried_out(invocation: Invocation) -> u8 {
    let name = OsString::from("ringtree");
    let words = [&name].into_iter().chain(&invocation.arguments);
    let line = match read(words.cloned().collect()) {
        Ok(line) => line,
        Err(error) => return misread(&error, &invocation),
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

/// Parses the command line. Also accepts `-np 4`, as mpirun does.
fn read(mut words: Vec<OsString>) -> Result<CommandLine, clap::Error> {
    // Negative numbers are values that are out of range, not unknown options.
    let mut command = CommandLine::command().mut_subcommands(|command| {
        command.mut_args(|arg| {
            let takes_values = arg.get_action().takes_values();
            arg.allow_negative_numbers(takes_values)
        })
    });
    let mut matches = command.try_get_matches_from_mut(&words);
    // clap reads `-np` as `-n p`.
    let is_np = matches.as_ref().is_err_and(|error| {
        let value = error.get(ContextKind::InvalidValue);
        value.is_some_and(|value| value.to_string() == "p")
    });
    if is_np && let Some(word) = words.iter_mut().find(|word| *word == "-np") {
        *word = "-n".into();
        matches = command.try_get_matches_from_mut(&words);
    }
    CommandLine::from_arg_matches(&matches?)
}

/// Prints the requested help or version, or reports a usage error in one line. Returns the exit
/// code.
fn misread(error: &clap::Error, invocation: &Invocation) -> u8 {
    if !error.use_stderr() {
        // A reader that has closed standard output (`| head`) is not an error.
        let _ = error.print();
        return FINE;
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        tell(
            "missing command: use run, bench, plan, doctor or check-gpu; \
             see `ringtree --help`",
        );
        return MISUSED;
    }
    let text = error.to_string();
    // The first paragraph contains the error and any missing arguments. The rest consists of usage
    // and tips.
    let lines = text.lines().take_while(|line| !line.trim().is_empty());
    let what: Vec<&str> = lines.map(str::trim).collect();
    let what = what.join(" ");
    let what = what.strip_prefix("error: ").unwrap_or(&what);
    let unknown = error.get(ContextKind::InvalidArg).map(ToString::to_string);
    let is_run = invocation
        .arguments
        .first()
        .is_some_and(|word| word == "run");
    let instead = unknown.filter(|_| is_run);
    let instead = instead.and_then(|option| run::instead_of(&option));
    let nearest = [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand];
    let nearest = nearest.into_iter().find_map(|kind| error.get(kind));
    match (instead, nearest) {
        (Some(instead), _) => tell(&format!("{what}: {instead}")),
        (None, Some(nearest)) => tell(&format!(
            "{what}; the closest match is {nearest}; see `--help`"
        )),
        (None, None) => tell(&format!("{what}; see `--help`")),
    }
    MISUSED
}
