//! `ringtree check-gpu`: what a first day on a machine with GPUs needs to know, in one command. It
//! needs no more than this program, which starts itself as the ranks; whatever fails, hangs or dies
//! there is one line here.

mod cases;
mod endings;
mod group;
mod habits;
mod litmus;
mod machine;
mod parts;
mod probe;
mod rank;
mod report;
mod said;
mod speeds;

use crate::{FAILED, FINE, Invocation, MISUSED};
use parts::Check;
use report::Format;
use said::{Orders, Part};
use std::path::PathBuf;
use std::time::Instant;

/// A section of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Section {
    /// What the machine has.
    Probe,
    /// Every algorithm, type and operator, on every GPU; and whether GPUs read of each other's
    /// memory what was written last.
    Collectives,
    /// What training code does on the GPU behind a collective.
    Habits,
    /// Ranks that are killed or stand still.
    Ends,
    /// How long all-reduces take, and what that consists of.
    Speed,
}

/// The arguments of `ringtree check-gpu`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The most ranks, 2 to 8, on GPU 0, 1, ... and from the first again if there are fewer
    #[arg(long, default_value_t = 8)]
    ranks_max: usize,
    /// It ends within so many minutes; what is left out counts as a failure
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// These sections alone, such as probe,speed
    #[arg(long, value_name = "SECTIONS", value_delimiter = ',')]
    only: Vec<Section>,
    /// Where to write the tables as CSV files
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// table or csv
    #[arg(long, default_value = "table")]
    format: String,
    /// What a process does that the check has started
    #[arg(long, hide = true)]
    part: Option<Part>,
    /// Which lengths that process checks
    #[arg(long, hide = true, default_value_t = 0)]
    turn: usize,
    /// The largest buffer that is measured, in bytes: where the device is slow
    #[arg(long, hide = true, default_value_t = usize::MAX)]
    bytes_max: usize,
    /// Nothing is checked where buffers are not mapped
    #[arg(long, hide = true)]
    mapped: bool,
    /// A part that takes longer is ended
    #[arg(long, hide = true, value_name = "SECONDS", default_value_t = parts::PATIENCE_S)]
    patience: u64,
}

impl Arguments {
    fn has(&self, section: Section) -> bool {
        self.only.is_empty() || self.only.contains(&section)
    }
}

/// Answers `ringtree check-gpu`: 1 if anything is wrong, or there is no GPU.
pub(crate) fn execute(arguments: &Arguments, invocation: &Invocation) -> u8 {
    if let Some(part) = arguments.part {
        let orders = Orders {
            part,
            turn: arguments.turn,
            bytes_max: arguments.bytes_max,
            is_mapped: arguments.mapped,
        };
        orders.follow();
        return FINE;
    }
    let start = Instant::now();
    let refused = |why: String| {
        eprintln!("ringtree check-gpu: {why}");
        MISUSED
    };
    if !(2..=8).contains(&arguments.ranks_max) || !(1..=60).contains(&arguments.minutes) {
        return refused("--ranks-max must be 2 to 8, and --minutes 1 to 60".into());
    }
    let format: Format = match arguments.format.parse() {
        Ok(format) => format,
        Err(why) => return refused(why),
    };
    if let Some(folder) = &arguments.out
        && let Err(error) = std::fs::create_dir_all(folder)
    {
        return refused(format!("--out {}: {error}", folder.display()));
    }
    if let Err(why) = machine::find_gpu() {
        eprintln!("ringtree check-gpu: {why}");
        return FAILED;
    }
    let mut check = Check::new(arguments, invocation, format, start);
    check.all();
    match check.conclude() {
        0 => FINE,
        _ => FAILED,
    }
}
