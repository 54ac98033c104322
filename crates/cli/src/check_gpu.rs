//! Implements `ringtree check-gpu`, which checks and measures everything that needs a GPU.
//!
//! For each part of the check, the program starts itself again as several ranks. If a rank fails,
//! hangs or dies, the report says so in one line.

mod cases;
mod failures;
mod group;
mod litmus;
mod machine;
mod messages;
mod parts;
mod probe;
mod rank;
mod report;
mod speeds;
mod usage_patterns;

use crate::format::Format;
use crate::quantity::count;
use crate::{EXIT_OK, EXIT_USAGE, FAILED, Invocation};
use messages::Part;
use parts::Check;
use std::path::PathBuf;
use std::time::Instant;

/// A section of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Section {
    /// Properties of the machine.
    Probe,
    /// The results of every algorithm, type and operator, and the order of writes to peers' memory.
    Collectives,
    /// GPU operations that training code performs during a collective.
    Habits,
    /// Ranks that are killed or suspended.
    Ends,
    /// Times of all-reduces and of the parts of an all-reduce.
    Speed,
}

/// The arguments of `ringtree check-gpu`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Maximum number of ranks, from 2 to 8; rank K uses GPU K modulo the number of GPUs
    #[arg(long, value_name = "N", default_value = "8", value_parser = count(2, 8))]
    ranks_max: usize,
    /// Time limit in minutes, from 1 to 60; skipped checks count as failures
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=60))]
    minutes: u64,
    /// Run only these sections, for example probe,speed
    #[arg(long, value_name = "SECTIONS", value_delimiter = ',')]
    only: Vec<Section>,
    /// Also write the tables to DIR as CSV files
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Output format
    #[arg(long, default_value = "table")]
    format: Format,
    /// The part of the check to run, if this process is one of its ranks
    #[arg(long, hide = true)]
    part: Option<Part>,
    /// Index of the buffer lengths or of the habit that this process checks
    #[arg(long, hide = true, default_value_t = 0)]
    turn: usize,
    /// Largest buffer in bytes, for slow devices
    #[arg(long, hide = true, default_value_t = usize::MAX)]
    bytes_max: usize,
    /// Check nothing if buffers are not mapped
    #[arg(long, hide = true)]
    mapped: bool,
    /// Time limit for each part
    #[arg(long, hide = true, value_name = "SECONDS", default_value_t = parts::PART_LIMIT_S)]
    patience: u64,
}

impl Arguments {
    fn has(&self, section: Section) -> bool {
        self.only.is_empty() || self.only.contains(&section)
    }
}

/// Runs `ringtree check-gpu` and returns its exit code, which is 1 if a check failed or if there is
/// no GPU.
pub(crate) fn execute(arguments: &Arguments, invocation: &Invocation) -> u8 {
    if let Some(part) = arguments.part {
        rank::run_part(part, arguments);
        return EXIT_OK;
    }
    let start = Instant::now();
    if let Some(folder) = &arguments.out
        && let Err(error) = std::fs::create_dir_all(folder)
    {
        eprintln!("ringtree check-gpu: --out {}: {error}", folder.display());
        return EXIT_USAGE;
    }
    if let Err(why) = machine::find_gpu() {
        eprintln!("ringtree check-gpu: {why}");
        return FAILED;
    }
    let mut check = Check::new(arguments, invocation, start);
    check.all();
    match check.conclude() {
        0 => EXIT_OK,
        _ => FAILED,
    }
}
