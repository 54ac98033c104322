//! The thesis in one command: with logarithmic scheduling, the communication cost of a training
//! step grows with ⌈log₂ n⌉, not with n.
//!
//! `cargo run --release --example 05_thesis` runs one data-parallel step on 2, 4, 8, …, 1,024
//! ranks by every algorithm, prints a table and paints `docs/thesis.svg`. Nothing is only priced:
//! every rank's engine carries out its plans on real bytes, and every sum is checked. Only the
//! network and its clock are simulated. (What the closed forms expect stands beside it.)
//!
//! # The step
//!
//! Twelve layers of 128 KiB. Forward takes 80 ms, backward 20 ms a layer; a bucket of four layers
//! starts its all-reduce as soon as its last gradient is there, and the optimizer, which takes no
//! time, waits for all three. Backward is about as long as an all-reduce that paid for bytes alone.
//! So what is *exposed*, the step less forward and backward, is the last bucket's bytes (up to
//! 90 ms) and, growing with the ranks, the price of messages. Binomial trees and recursive doubling
//! send whole buckets in every round: they pay the bytes, too, ⌈log₂ n⌉ times.
//!
//! The step of 1,024 ranks needs 4.3 GiB of memory; `--ranks-max 64` is over in a second or two.
//!
//! # The links
//!
//! α = 2.6 ms a message and 94 Mbit/s a port: what TCP gets out of links of 100 Mbit/s and 2.5 ms.
//! Those can be had for real between network namespaces of one machine, slow enough that eight
//! ranks on two cores do not disturb the measurement, and the points at 2, 4 and 8 ranks were.
//! But it is a picture of faster networks too: in the α-β model, links that are a hundred times
//! faster in both respects (10 Gbit/s, 26 µs) with a backward a hundred times shorter give it
//! again, with 1/100 of every time.
//!
//! Where the ring starts to lose depends on α against the bytes of a bucket: its 2(n − 1) messages
//! cost more than its bytes once n exceeds bytes · β / α, here 17. With buckets of 25 MiB the
//! curves would be the same with that point at about 860 ranks; n copies of such a model fit no
//! machine's memory, which is why the buckets here are small.
//!
//! # For real
//!
//! `05_thesis --real STEPS` takes part in the same step as one of several processes (started by
//! `ringtree run`, or with RANK, WORLD_SIZE and the rest in the environment): forward and backward
//! sleep to the timetable, and rank 0 prints the medians as CSV. `RINGTREE_TUNING` should name the
//! links' own table, `{"tcp": {"alpha_s": 2.6e-3, "overhead_s": 0,
//! "beta_s_per_byte": 85e-9, "gamma_s_per_byte": 0}}`, so that `auto` chooses as in the simulation.
//!
//! `docs/thesis.csv` is the median of three runs of eleven steps, each rank in a network namespace
//! behind its shaped link, with real-time priority, no packet lost, and congestion windows kept
//! over idle times (`tcp_slow_start_after_idle` 0): in slow motion backward is one.

#[path = "../drawing/mod.rs"]
mod drawing;
mod picture;
mod real;
mod simulated;
mod step;

use clap::Parser;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use step::{BUCKET_BYTES, BUCKETS, Link, Point, WAYS, compute};

/// The ranks of the whole picture.
const RANKS_MAX: usize = 1024;
/// The links that the measured points were taken on, as TCP sees them.
const ALPHA_US: f64 = 2_600.0;
const RATE_MBIT: f64 = 94.0;
/// What the whole picture is made from and where it goes.
const MEASURED: &str = "docs/thesis.csv";
const PICTURE: &str = "docs/thesis.svg";
/// What measured points look like in a file.
const COLUMNS: &str = "ranks,algorithm,step_ms,exposed_ms";

/// The same training step on more and more simulated ranks, by every algorithm.
///
/// Without options: the whole picture, docs/thesis.svg, with the measured points of
/// docs/thesis.csv.
#[derive(Parser)]
#[command(name = "05_thesis")]
struct Arguments {
    /// Doubles the ranks from 2 up to this many [default: 1024]
    #[arg(long, value_name = "N")]
    ranks_max: Option<usize>,

    /// Microseconds a message [default: 2600]
    #[arg(long, value_name = "MICROSECONDS")]
    alpha_us: Option<f64>,

    /// Megabits per second that a port carries [default: 94]
    #[arg(long, value_name = "MBIT")]
    rate_mbit: Option<f64>,

    /// Lays measured points over the curves: lines of ranks,algorithm,step_ms,exposed_ms
    #[arg(long, value_name = "CSV")]
    measured: Option<PathBuf>,

    /// Where to paint the picture
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Takes part in so many steps for real, as one of the ranks it was launched among
    #[arg(long, value_name = "STEPS")]
    real: Option<usize>,
}

fn main() -> ExitCode {
    let mut arguments = Arguments::parse();
    let is_whole = arguments.ranks_max.is_none()
        && arguments.alpha_us.is_none()
        && arguments.rate_mbit.is_none();
    if is_whole {
        arguments.measured.get_or_insert_with(|| MEASURED.into());
        arguments.svg.get_or_insert_with(|| PICTURE.into());
    }
    let ended = match arguments.real {
        Some(steps) => take_part(steps),
        None => compare(&arguments),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::FAILURE
        }
    }
}

fn take_part(steps: usize) -> Result<(), String> {
    let medians = real::take_part(steps.max(1)).map_err(|error| error.to_string())?;
    if let Some(points) = medians {
        println!("{COLUMNS}");
        for point in points {
            println!(
                "{},{},{:.3},{:.3}",
                point.ranks, point.way, point.step_ms, point.exposed_ms
            );
        }
    }
    Ok(())
}

fn compare(arguments: &Arguments) -> Result<(), String> {
    let alpha_us = arguments.alpha_us.unwrap_or(ALPHA_US);
    let rate_mbit = arguments.rate_mbit.unwrap_or(RATE_MBIT);
    if !(0.0..=1e9).contains(&alpha_us) || rate_mbit <= 0.0 {
        return Err("--alpha-us must be at least 0 and --rate-mbit above it".into());
    }
    let link = Link {
        alpha: Duration::from_secs_f64(alpha_us * 1e-6),
        bytes_per_s: rate_mbit * 1e6 / 8.0,
    };
    let measured = match &arguments.measured {
        Some(path) => read_points(path)?,
        None => Vec::new(),
    };
    println!(
        "links of {} ms a message and {rate_mbit} Mbit/s; {BUCKETS} buckets of {} KiB; forward and \
         backward take {} ms\n",
        alpha_us / 1e3,
        BUCKET_BYTES >> 10,
        compute().as_millis()
    );
    println!("ranks  algorithm              step ms  exposed ms   priced ms  measured ms   took s");
    let mut points = Vec::new();
    let ranks_max = arguments.ranks_max.unwrap_or(RANKS_MAX);
    let doublings = std::iter::successors(Some(2), |ranks| Some(ranks * 2));
    for ranks in doublings.take_while(|ranks| *ranks <= ranks_max) {
        for (way, algorithm) in WAYS {
            let start = Instant::now();
            let point = simulated::execute(ranks, (way, algorithm), &link)?;
            let priced_ms = simulated::priced_ms(ranks, algorithm, &link)?;
            print_row(&point, priced_ms, &measured, start.elapsed());
            points.push(point);
        }
        println!("       auto took {}\n", simulated::chosen(ranks, &link)?);
    }
    let Some(path) = &arguments.svg else {
        return Ok(());
    };
    fs::write(
        path,
        picture::paint(&points, &measured, (alpha_us, rate_mbit)),
    )
    .map_err(|error| format!("cannot write {}: {error}", path.display()))
}

fn print_row(point: &Point, priced_ms: f64, measured: &[Point], took: Duration) {
    let twin = measured
        .iter()
        .find(|one| (one.ranks, &one.way) == (point.ranks, &point.way));
    let measured = twin.map_or(String::new(), |one| format!("{:.1}", one.exposed_ms));
    println!(
        "{:5}  {:18}{:12.1}{:12.1}{priced_ms:12.1}{measured:>13}{:9.2}",
        point.ranks,
        point.way,
        point.step_ms,
        point.exposed_ms,
        took.as_secs_f64()
    );
}

/// The points of a file as `--real` prints it, perhaps several times over.
fn read_points(path: &PathBuf) -> Result<Vec<Point>, String> {
    let text = fs::read_to_string(path)
        .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let parse = |line: &str| {
        let [ranks, way, step_ms, exposed_ms] = line.split(',').collect::<Vec<_>>()[..] else {
            return None;
        };
        Some(Point {
            ranks: ranks.parse().ok()?,
            way: way.into(),
            step_ms: step_ms.parse().ok()?,
            exposed_ms: exposed_ms.parse().ok()?,
        })
    };
    text.lines()
        .filter(|line| !line.is_empty() && *line != COLUMNS)
        .map(|line| parse(line).ok_or_else(|| format!("'{line}' is not of the form {COLUMNS}")))
        .collect()
}
