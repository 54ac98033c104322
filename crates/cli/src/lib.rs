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
const EXIT_OK: u8 = 0;
/// Exit code if the work failed.
const FAILED: u8 = 1;
/// Exit code after a usage error.
const EXIT_USAGE: u8 = 2;

/// Returns the exit code after an error.
fn exit_code(error: &ringtree::Error) -> u8 {
    match error.kind() {
        ringtree::ErrorKind::Usage | ringtree::ErrorKind::Configuration => EXIT_USAGE,
        _ => FAILED,
    }
}

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
    let code = run_command(invocation);
    // If the program is an interpreter, nothing else flushes standard output. A reader that has
    // closed it (`| head`) is not an error.
    let _ = std::io::stdout().flush();
    code
}

fn run_command(invocation: Invocation) -> u8 {
    let name = OsString::from("ringtree");
    let words = [&name].into_iter().chain(&invocation.arguments);
    let line = match read(words.cloned().collect()) {
        Ok(line) => line,
        Err(error) => return report_usage_error(&error, &invocation),
    };
    let names = std::env::vars_os().map(|(name, _)| name);
    let setting = |name: &str| std::env::var(name).ok();
    let checked = check_names(names).and_then(|()| check_environment(setting));
    if let Err(error) = checked {
        tell(&error.to_string());
        return EXIT_USAGE;
    }
    match line.command {
        Command::Run(arguments) => run::execute(arguments),
        Command::Bench(arguments) => bench::execute(&arguments, invocation),
        Command::Plan(arguments) => plan::execute(&arguments),
        Command::Doctor(arguments) => doctor::execute(&arguments),
        Command::CheckGpu(arguments) => check_gpu::execute(&arguments, &invocation),
    }
}

/// mpirun options that clap reads as several short options, and the options that replace them.
const MPIRUN: &[(&str, &str)] = &[
    ("-np", "-n"),
    ("-host", "--host"),
    ("-hostfile", "--hostfile"),
    ("-machinefile", "--machinefile"),
];

/// Parses the command line. Also accepts `-np 4`, as mpirun does.
fn read(mut words: Vec<OsString>) -> Result<CommandLine, clap::Error> {
    // Read negative numbers, times and rates as values, so that the error says that they are out of
    // range and not that an option is unknown.
    let mut command = CommandLine::command().mut_subcommands(|command| {
        command.mut_args(|arg| {
            let takes_values = arg.get_action().takes_values();
            let unit = arg.get_value_names().and_then(|names| names.first());
            let has_unit = unit.is_some_and(|unit| unit == "TIME" || unit == "RATE");
            let takes_hyphens = has_unit || arg.is_allow_hyphen_values_set();
            arg.allow_negative_numbers(takes_values)
                .allow_hyphen_values(takes_hyphens)
        })
    });
    let of_mpirun = |word: &OsString| {
        let found = MPIRUN.iter().find(|(option, _)| word == option);
        found.map(|(_, instead)| *instead)
    };
    loop {
        let matches = command.try_get_matches_from_mut(&words);
        let mut words_left = words.iter_mut();
        match words_left.find_map(|word| Some((of_mpirun(word)?, word))) {
            Some((instead, word)) if matches.is_err() => *word = instead.into(),
            _ => return CommandLine::from_arg_matches(&matches?),
        }
    }
}

/// Prints the requested help or version, or reports a usage error in one line. Returns the exit
/// code.
fn report_usage_error(error: &clap::Error, invocation: &Invocation) -> u8 {
    if !error.use_stderr() {
        // A reader that has closed standard output (`| head`) is not an error.
        let _ = error.print();
        return EXIT_OK;
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        tell(
            "missing command: use run, bench, plan, doctor or check-gpu; \
             see `ringtree --help`",
        );
        return EXIT_USAGE;
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
    EXIT_USAGE
}
