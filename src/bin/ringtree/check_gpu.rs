//! `ringtree check-gpu`: everything that only a GPU can show, in one command. It needs no more than
//! this program, which starts itself as the ranks; whatever fails, hangs or dies there is one line
//! here.

mod benchmarks;
mod cases;
mod endings;
mod folds;
mod group;
mod kernels;
mod latency;
mod machine;
mod parts;
mod probe;
mod rank;
mod report;

use parts::Check;
use rank::{Orders, Part};
use report::Format;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

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

/// A section of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Section {
    /// What the machine has, and what each hand-over costs.
    Probe,
    /// Kernels against those of the CPU.
    Kernels,
    /// Kernels under compute-sanitizer.
    Sanitizer,
    /// Ranks that are killed or stand still.
    Ends,
    /// Every algorithm, type and operator.
    Collectives,
    /// Folds and all-reduces, and the goals beside them.
    Speed,
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
    /// It ends within so many minutes, a quarter of them kept for the speeds; what is left out
    /// counts as a failure
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
    /// With --fake: make this go wrong, which the check must find
    #[arg(long, requires = "fake")]
    plant: Option<Plant>,
    /// What a process does that the check has started
    #[arg(long, hide = true)]
    part: Option<Part>,
    /// Which lengths that process checks
    #[arg(long, hide = true, default_value_t = 0)]
    turn: usize,
    /// The largest buffer that is measured, in bytes: where the device is slow
    #[arg(long, hide = true)]
    bytes_max: Option<usize>,
    /// A part that takes longer is ended
    #[arg(long, hide = true, value_name = "SECONDS", default_value_t = parts::PATIENCE_S)]
    patience: u64,
}

impl Arguments {
    /// Whether a section was asked for, and can be done.
    fn has(&self, section: Section) -> bool {
        let is_for_gpu = matches!(section, Section::Sanitizer | Section::Speed);
        let is_asked = self.only.is_empty() || self.only.contains(&section);
        is_asked && !(self.fake && is_for_gpu)
    }

    /// The largest buffer that is measured.
    fn bytes_max(&self) -> usize {
        let largest = if self.fake {
            FAKE_BYTES_MAX
        } else {
            usize::MAX
        };
        self.bytes_max.unwrap_or(largest)
    }

    /// What is wrong with them.
    fn complaint(&self) -> Option<&'static str> {
        const SECTIONS: [Section; 6] = [
            Section::Probe,
            Section::Kernels,
            Section::Sanitizer,
            Section::Ends,
            Section::Collectives,
            Section::Speed,
        ];
        if !(2..=8).contains(&self.ranks_max) || !(1..=60).contains(&self.minutes) {
            return Some("--ranks-max must be 2 to 8, and --minutes 1 to 60");
        }
        if !SECTIONS.iter().any(|section| self.has(*section)) {
            return Some("--fake leaves out sanitizer and speed, so nothing is left to do");
        }
        None
    }
}

/// The largest buffer that is measured on the pretended device, whose times say nothing.
const FAKE_BYTES_MAX: usize = 1 << 20;

/// Answers `ringtree check-gpu`: 1 if anything is wrong, or there is no GPU.
pub(crate) fn execute(arguments: &Arguments) -> ExitCode {
    if let Some(part) = arguments.part {
        let orders = Orders {
            part,
            is_fake: arguments.fake,
            plant: arguments.plant,
            ranks: arguments.ranks_max,
            turn: arguments.turn,
            bytes_max: arguments.bytes_max(),
        };
        orders.follow();
        return ExitCode::SUCCESS;
    }
    let start = Instant::now();
    let refused = |why: String| {
        eprintln!("ringtree check-gpu: {why}");
        ExitCode::from(2)
    };
    if let Some(why) = arguments.complaint() {
        return refused(why.into());
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
        && let Err(why) = machine::find_gpu()
    {
        eprintln!("ringtree check-gpu: {why}; --fake checks all but the GPU");
        return ExitCode::FAILURE;
    }
    let mut check = Check::new(arguments, format, start);
    check.all();
    let failures = check.conclude();
    if failures == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
