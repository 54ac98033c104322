//! `ringtree check-gpu`: everything that only a GPU can show, in one command. It needs no more than
//! this program, which starts itself as the ranks; whatever fails, hangs or dies there is one line
//! here.

mod benchmarks;
mod cases;
mod endings;
mod folds;
mod group;
mod kernels;
mod machine;
mod parts;
mod probe;
mod rank;
mod report;

use parts::Check;
use rank::{Orders, Part};
use report::Format;
use ringtree::device::cuda;
use std::path::PathBuf;
use std::process::ExitCode;

/// What is made wrong on purpose, on the pretended device, so that the check is seen to find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Plant {
    /// Each device leaves its first fold out.
    SkippedFold,
    /// Each device's second wait does not wait.
    EarlyRelease,
    /// What a killed or stopped rank was part of is taken for well ended.
    FailedReportedGood,
}

impl Plant {
    fn name(self) -> &'static str {
        match self {
            Plant::SkippedFold => "skipped-fold",
            Plant::EarlyRelease => "early-release",
            Plant::FailedReportedGood => "failed-reported-good",
        }
    }
}

/// The arguments of `ringtree check-gpu`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Check on a device pretended in host memory: correctness alone, no times
    #[arg(long)]
    fake: bool,
    /// The most ranks that share the GPU, 2 to 8
    #[arg(long, default_value_t = 8)]
    ranks_max: usize,
    /// When this many minutes are over, what is left out counts as a failure
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// Where to write the tables as CSV files
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// table or csv
    #[arg(long, default_value = "table")]
    format: String,
    /// With --fake: make this go wrong, which the check must find
    #[arg(long, requires = "fake")]
    plant: Option<Plant>,
    /// What a process does that the check has started
    #[arg(long, hide = true)]
    part: Option<Part>,
    /// Which lengths that process checks
    #[arg(long, hide = true, default_value_t = 0)]
    turn: usize,
}

/// Answers `ringtree check-gpu`: 1 if anything is wrong, or there is no GPU.
pub(crate) fn execute(arguments: &Arguments) -> ExitCode {
    if let Some(part) = arguments.part {
        let orders = Orders {
            part,
            is_fake: arguments.fake,
            plant: arguments.plant,
            ranks: arguments.ranks_max,
            turn: arguments.turn,
        };
        orders.follow();
        return ExitCode::SUCCESS;
    }
    let refused = |why: String| {
        eprintln!("ringtree check-gpu: {why}");
        ExitCode::from(2)
    };
    if !(2..=8).contains(&arguments.ranks_max) || arguments.minutes == 0 {
        return refused("--ranks-max must be 2 to 8, and --minutes at least 1".into());
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
    if !arguments.fake
        && let Err(error) = cuda::count()
    {
        eprintln!("ringtree check-gpu: {error}; --fake checks all but the GPU");
        return ExitCode::FAILURE;
    }
    let mut check = Check::new(arguments, format);
    check.all();
    let failures = check.conclude();
    if failures == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
