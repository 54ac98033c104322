//! The thesis in one command: with logarithmic scheduling, the communication cost of a training
//! step grows with ⌈log₂ n⌉, not with n.
//!
//! `cargo run --release --example 05_thesis` runs one data-parallel step of two models on 2 to
//! 1,024 ranks by every algorithm, prints a table, and paints `docs/thesis.svg`. Every rank's
//! engine carries out its plans on real bytes, and every sum is checked; the network and its clock
//! are simulated. Prices continue the curves to 100,000 ranks.
//!
//! With `-- --sockets`, as root, it first measures the points that `docs/thesis.csv` lacks: real
//! processes on 2 to 64 emulated hosts of this machine, each in a network namespace of its own,
//! over the kernel's TCP. It appends each point when it has it, so an interrupted run goes on where
//! it stopped. To measure a point again, delete its line.
//!
//! # The step
//!
//! A model has twelve layers. Backward starts an all-reduce after every fourth layer, and the
//! optimizer waits for all three; forward and backward sleep to a timetable. Backward takes 1.8
//! times as long as the bytes of its gradients on one link. What the step takes longer than forward
//! and backward is the *exposed* communication. It has two parts: the bytes of the last bucket, and
//! the latency of the messages.
//!
//! A ring sends 2(n − 1) messages one after the other, so its latencies cost more than its bytes
//! once n exceeds the bytes of a bucket · β / α. That is at 2 ranks for the small model (buckets of
//! 32 KiB) and at 17 for the large one (512 KiB). Circulant sends as few bytes in 2⌈log₂ n⌉
//! messages. Binomial trees and recursive doubling send a whole bucket in every round, so they pay
//! for the bytes ⌈log₂ n⌉ times.
//!
//! # The links
//!
//! 20 Mbit/s and 12.5 ms, of which TCP leaves 18.8 Mbit/s: slow enough that two cores carry the
//! traffic of 64 ranks. `docs/thesis.csv` has, beside each point, the traffic that the emulated
//! switch carried and the part of a core that it took for that; a point for which it took more than
//! half a core, or lost a packet, is not shown. Congestion windows are kept over the pauses
//! (`tcp_slow_start_after_idle` is 0), because backward in slow motion is one.
//!
//! In the α-β model links that are a hundred times faster in both respects (2 Gbit/s, 125 µs), with
//! a backward a hundred times shorter, give the same picture with 1/100 of every time.

#[path = "../drawing/mod.rs"]
mod drawing;
mod growth;
mod measured;
mod picture;
mod real;
mod simulated;
mod step;

use clap::Parser;
use measured::Point;
use picture::Series;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use step::{Link, MODELS, Model, WAYS};

/// What TCP makes of the links: a message's latency, and what a port carries.
const ALPHA: Duration = Duration::from_micros(13_000);
const RATE_MBIT: f64 = 18.8;
/// Simulated beside the numbers of ranks that are measured.
const SIMULATED: [usize; 4] = [128, 256, 512, 1_024];
/// Priced beyond those.
const PRICED: [usize; 6] = [2_048, 4_096, 10_000, 20_000, 50_000, 100_000];
const MEASURED: &str = "docs/thesis.csv";
const PICTURE: &str = "docs/thesis.svg";

/// The same training step on more and more ranks, by every algorithm.
#[derive(Parser)]
#[command(name = "05_thesis")]
struct Arguments {
    /// Up to how many ranks are simulated, and measured with --sockets
    #[arg(long, value_name = "N", default_value_t = 1_024)]
    ranks_max: usize,

    /// First measures the points that the file lacks, between real processes; needs root
    #[arg(long)]
    sockets: bool,

    /// Steps of a measured point, after three that do not count
    #[arg(long, value_name = "N", default_value_t = 7)]
    steps: usize,

    /// The file of measured points
    #[arg(long, value_name = "FILE", default_value = MEASURED)]
    csv: PathBuf,

    /// Where to paint the picture
    #[arg(long, value_name = "FILE", default_value = PICTURE)]
    svg: PathBuf,
}

fn main() -> ExitCode {
    let ended = match std::env::var_os(real::MODEL) {
        Some(_) => real::take_part().map_err(|error| error.to_string()),
        None => compare(&Arguments::parse()),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("05_thesis: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn compare(arguments: &Arguments) -> Result<(), String> {
    if arguments.sockets {
        measured::complete(&arguments.csv, arguments.ranks_max, arguments.steps.max(1))?;
    }
    let points = measured::read(&arguments.csv)?;
    let link = Link::new(ALPHA, RATE_MBIT);
    let mut series = Vec::new();
    for model in &MODELS {
        series.push(compare_ways(model, &link, arguments.ranks_max, &points)?);
    }
    let picture = picture::paint(&series, (ALPHA.as_secs_f64() * 1e3, RATE_MBIT));
    fs::write(&arguments.svg, picture)
        .map_err(|error| format!("cannot write {}: {error}", arguments.svg.display()))
}

/// What every algorithm takes for one model; prints a table of it.
fn compare_ways(
    model: &Model,
    link: &Link,
    ranks_max: usize,
    points: &[Point],
) -> Result<Vec<Series>, String> {
    println!(
        "\nThe {} model, buckets of {} KiB: milliseconds of a step in which it only communicates",
        model.name,
        model.bucket_bytes() >> 10
    );
    println!("ranks  algorithm            measured  (least to most)  simulated     priced  took");
    let mut series: Vec<Series> = WAYS
        .map(|(way, _)| Series {
            way,
            ..Series::default()
        })
        .into();
    let simulated = measured::RANKS.into_iter().chain(SIMULATED);
    for ranks in simulated.filter(|ranks| *ranks <= ranks_max) {
        for (one, (way, algorithm)) in series.iter_mut().zip(WAYS) {
            let simulated_ms = simulated::exposed_ms(ranks, algorithm, model, link)?;
            let priced_ms = simulated::priced_ms(ranks, algorithm, model, link)?;
            let point = points.iter().find(|point| point.is(model, ranks, way));
            let point = point.filter(|point| point.counts());
            let taken = simulated::choice(ranks, algorithm, model, &link.tuning())?.algorithm;
            print_row(
                ranks,
                way,
                point,
                (simulated_ms, priced_ms),
                &taken.to_string(),
            );
            one.simulated.push((ranks as f64, simulated_ms));
            one.measured
                .extend(point.map(|point| (ranks as f64, point.exposed_ms[0])));
        }
    }
    for ranks in PRICED.into_iter().filter(|_| ranks_max >= 1_024) {
        for (one, (_, algorithm)) in series.iter_mut().zip(WAYS) {
            let priced_ms = simulated::priced_ms(ranks, algorithm, model, link)?;
            one.priced.push((ranks as f64, priced_ms));
        }
    }
    println!("\ngrowth, measured; simulated");
    for one in &series {
        let measured = match one.measured.len() {
            0..3 => "too few points".into(),
            _ => growth::describe(&one.measured),
        };
        println!(
            "{:20} {measured}; {}",
            one.way,
            growth::describe(&one.simulated)
        );
    }
    Ok(series)
}

fn print_row(
    ranks: usize,
    way: &str,
    point: Option<&Point>,
    (simulated_ms, priced_ms): (f64, f64),
    taken: &str,
) {
    let (mut measured, mut spread, mut chosen) = (String::new(), String::new(), String::new());
    if let Some(point) = point {
        let [median, least, most] = point.exposed_ms;
        measured = format!("{median:.1}");
        spread = format!("{least:.0} to {most:.0}");
        chosen = point.chosen.clone();
    }
    if way == "auto" && chosen != taken {
        chosen = format!("{chosen} (simulated: {taken})");
    }
    let chosen = if way == "auto" { chosen } else { String::new() };
    println!(
        "{ranks:5}  {way:18}{measured:>11}{spread:>17}{simulated_ms:11.1}{priced_ms:11.1}  {chosen}"
    );
}
