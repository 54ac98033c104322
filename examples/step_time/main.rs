//! Measures how long a data-parallel step takes, and how much of its communication is exposed.
//!
//! ```text
//! cargo run --release --example step_time -- measure            # two ranks on this host
//! cargo run --release --example step_time -- compare            # with bare all-reduces
//! cargo run --release --example step_time -- overlap --ranks 4  # gain or cost of overlap
//! cargo run --release --example step_time -- plot docs/buckets.csv docs/buckets.svg
//! cargo run --release --example step_time -- losses docs/local_steps.csv docs/local_steps.svg
//! ```
//!
//! The model is synthetic. Forward and backward sleep to a fixed timetable, so the rest of a step
//! is communication. In `overlap`, backward computes instead. There is no optimizer. All averages
//! are checked, outside the measured time. `benches/peers/step.sh` measures this example and the
//! same model in PyTorch on given hosts.

mod compare;
#[path = "../drawing/mod.rs"]
mod drawing;
mod losses;
mod measure;
mod model;
mod options;
mod overlap;
mod picture;
mod rows;

use clap::Parser;
use options::{Command, Job, Measure, Options};
use ringtree::plan::LinkCost;
use ringtree::sim::World;
use ringtree::tuning::TuningTable;
use ringtree::{Communicator, Error};
use std::process::ExitCode;
use std::time::Duration;

/// The simulated links: 1 Gbit/s and 0.25 ms.
const LINK: LinkCost = LinkCost {
    alpha_s: 0.25e-3,
    overhead_s: 0.0,
    beta_s_per_byte: 8e-9,
    gamma_s_per_byte: 0.0,
};

/// Default number of ranks to start.
const DEFAULT_RANKS: usize = 2;

fn main() -> ExitCode {
    let options = Options::parse();
    let result = match &options.command {
        Command::Measure(measure) if measure.simulated => simulated(measure),
        Command::Measure(measure) => ranks(&measure.job, |comm| measure::measure(comm, measure)),
        Command::Compare(job) => ranks(job, |comm| compare::compare(comm, job)),
        Command::Overlap { job, backward_ms } => {
            ranks(job, |comm| overlap::overlap(comm, job, *backward_ms))
        }
        Command::Header => {
            println!("{}", measure::HEADER);
            Ok(0)
        }
        Command::Summary { table } => rows::summarize(table).map(|()| 0),
        Command::Plot {
            table,
            picture,
            note,
        } => picture::plot(table, picture, note).map(|()| 0),
        Command::Losses {
            table,
            picture,
            note,
        } => losses::plot(table, picture, note).map(|()| 0),
    };
    result.map_or_else(
        |message| {
            eprintln!("step_time: {message}");
            ExitCode::FAILURE
        },
        |code| ExitCode::from(u8::try_from(code).unwrap_or(1)),
    )
}

/// Starts the ranks, or runs `work` if this process is one of them.
fn ranks(job: &Job, work: impl FnOnce(&Communicator) -> Result<(), Error>) -> Result<i32, String> {
    job.check()?;
    if !ringtree::launch::is_rank() {
        let count = job.ranks.unwrap_or(DEFAULT_RANKS);
        return ringtree::launch::spawn_self(count).map_err(|error| error.to_string());
    }
    let done = Communicator::from_env().and_then(|comm| work(&comm));
    done.map(|()| 0).map_err(|error| error.to_string())
}

/// Measures within this process. The engine, the data-parallel layer and all bytes are real. Only
/// the clock and the network are simulated.
fn simulated(measure: &Measure) -> Result<i32, String> {
    measure.job.check()?;
    let mut world = World::new(measure.job.ranks.unwrap_or(DEFAULT_RANKS));
    world.network.bandwidth_bytes_per_s = 1.0 / LINK.beta_s_per_byte;
    world.network.latency = Duration::from_secs_f64(LINK.alpha_s);
    world.tuning = TuningTable {
        tcp: LINK,
        ..TuningTable::default()
    };
    let ends = world.run(|comm| measure::measure(comm, measure));
    let first_failure = ends.into_iter().find_map(Result::err);
    first_failure.map_or(Ok(0), |error| Err(error.to_string()))
}
