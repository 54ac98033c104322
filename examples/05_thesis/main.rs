//! Shows that with a logarithmic schedule, the communication time of a training step grows with
//! ⌈log₂ n⌉, not with n.
//!
//! `cargo run --release --example 05_thesis` simulates one data-parallel step of two models on 2 to
//! 1,024 ranks with each algorithm, prints a table, and draws `docs/thesis.svg`. Every rank's
//! engine executes its plans on real bytes, and every sum is checked. Only the network and its
//! clock are simulated. Predictions continue the curves to 100,000 ranks. The example takes minutes
//! and 4 GiB of memory. With `-- --ranks-max 64`, it finishes in seconds.
//!
//! With `-- --sockets`, as root, the example first measures the points that `docs/thesis.csv` does
//! not contain. It runs real processes on 2 to 64 emulated hosts of this machine, each in its own
//! network namespace, over the kernel's TCP. It appends each point to the file immediately, so an
//! interrupted run resumes where it stopped. To repeat a measurement, delete its line.
//!
//! # The step
//!
//! A model has twelve layers. Backward starts an all-reduce after every fourth layer, and the
//! optimizer waits for all three all-reduces. Forward and backward sleep to a fixed timetable.
//! Backward takes 1.8 times as long as a link needs for the gradients. *Exposed* communication is
//! the duration of the step minus forward and backward. It has two parts: the transfer time of the
//! last bucket, and the latency of the messages.
//!
//! A ring sends 2(n − 1) messages, each after the previous one has arrived. The latency of these
//! messages exceeds the time for the bytes once n > bytes · β / α, where α is the latency of a
//! message and β the time per byte of a link. That happens at 6 ranks for the small model (buckets
//! of 32 KiB) and at 82 for the large one (512 KiB). Circulant sends the same number of bytes in
//! 2⌈log₂ n⌉ messages. Binomial trees and recursive doubling send a complete bucket in every round,
//! so they pay for the bytes ⌈log₂ n⌉ times. `auto` is the algorithm that the library chooses for
//! three concurrent all-reduces.
//!
//! # The links
//!
//! Links have a rate of 10 Mbit/s and a latency of 5 ms. TCP achieves 9.4 Mbit/s and 5.5 ms on
//! them. The links are so slow that two cores can carry the traffic of 64 ranks. For each point,
//! `docs/thesis.csv` records the traffic of the emulated switch and the share of a core that the
//! switch used. The picture omits a point if the switch was too slow or lost a packet.
//!
//! In the α-β model, links that are 100 times faster in both respects (1 Gbit/s, 50 µs), with a
//! backward that is 100 times shorter, give the same picture with 1/100 of every time. TCP's
//! constants do not scale with the links, so they are set for slow links: congestion windows
//! survive pauses, and TCP does not retransmit messages that wait in a queue for longer than 200
//! ms.

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

/// Latency and rate of the links, as measured through TCP.
const ALPHA: Duration = Duration::from_micros(5_500);
const RATE_MBIT: f64 = 9.4;
/// Numbers of ranks that are simulated in addition to the measured ones.
const SIMULATED: [usize; 4] = [128, 256, 512, 1_024];
/// Larger numbers of ranks, for which there are only predictions.
const PREDICTED: [usize; 6] = [2_048, 4_096, 10_000, 20_000, 50_000, 100_000];
const MEASURED: &str = "docs/thesis.csv";
const PICTURE: &str = "docs/thesis.svg";

/// Compare a training step with each algorithm on growing numbers of ranks.
#[derive(Parser)]
#[command(name = "05_thesis")]
struct Arguments {
    /// The most ranks to simulate, or to measure with --sockets
    #[arg(long, value_name = "N", default_value_t = 1_024)]
    ranks_max: usize,

    /// First measure the points that the file lacks, with real processes; needs root
    #[arg(long)]
    sockets: bool,

    /// Steps per measured point, after three warm-up steps
    #[arg(long, value_name = "N", default_value_t = 5)]
    steps: usize,

    /// The file of measured points
    #[arg(long, value_name = "FILE", default_value = MEASURED)]
    csv: PathBuf,

    /// The file for the picture
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

/// Simulates one model with each algorithm and prints a table.
fn compare_ways(
    model: &Model,
    link: &Link,
    ranks_max: usize,
    points: &[Point],
) -> Result<Vec<Series>, String> {
    println!(
        "\nThe {} model, buckets of {} KiB: exposed communication per step in milliseconds",
        model.name,
        model.bucket_bytes() >> 10
    );
    println!("ranks  algorithm            measured     (min to max)  simulated  predicted  choice");
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
            let predicted_ms = simulated::predicted_ms(ranks, algorithm, model, link)?;
            let point = points.iter().find(|point| point.is(model, ranks, way));
            let point = point.filter(|point| point.counts());
            let taken = simulated::choice(ranks, algorithm, model, &link.tuning())?.algorithm;
            print_row(
                ranks,
                way,
                point,
                (simulated_ms, predicted_ms),
                &taken.to_string(),
            );
            one.simulated.push((ranks as f64, simulated_ms));
            one.measured
                .extend(point.map(|point| (ranks as f64, point.exposed_ms[0])));
        }
    }
    for ranks in PREDICTED.into_iter().filter(|_| ranks_max >= 1_024) {
        for (one, (_, algorithm)) in series.iter_mut().zip(WAYS) {
            let predicted_ms = simulated::predicted_ms(ranks, algorithm, model, link)?;
            one.priced.push((ranks as f64, predicted_ms));
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
    (simulated_ms, predicted_ms): (f64, f64),
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
        "{ranks:5}  {way:18}{measured:>11}{spread:>17}{simulated_ms:11.1}{predicted_ms:11.1}  \
         {chosen}"
    );
}
