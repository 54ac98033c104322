//! Sends settings and metrics as values of types that derive serde's traits, without buffers.
//!
//! ```text
//! cargo run --example 12_metrics                      # four simulated ranks
//! cargo build --release --example 12_metrics && \
//!     cargo run --release -- run --nproc-per-node 4 -- target/release/examples/12_metrics
//! ```
//!
//! Rank 0 reads the settings and sends them to every rank with `broadcast_value`. After the work,
//! rank 0 collects a report from each rank with `gather_value` and prints a table. All ranks make
//! the same decision from the result of `all_gather_value`, so that no rank continues alone.

use ringtree::{Communicator, Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// Settings that rank 0 has read from a file or a command line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Settings {
    run: String,
    learning_rate: f64,
    steps: u32,
}

/// Report of a rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Report {
    host: String,
    loss: f64,
    slowest_layer: Option<(String, f64)>,
}

/// Returns the text that this rank prints. Checks that the losses are as expected.
pub(crate) fn program(comm: &Communicator) -> Result<String> {
    let read = (comm.rank() == 0).then(|| Settings {
        run: "first light".into(),
        learning_rate: 0.1,
        steps: 40,
    });
    let settings = comm.broadcast_value(read, 0)?;

    // Each rank descends a parabola. The parabola of rank 2 is so steep that rank 2 diverges.
    let slope = if comm.rank() == 2 { 25.0 } else { 1.0 };
    let mut weight = 1.0f64;
    for _ in 0..settings.steps {
        weight -= settings.learning_rate * slope * weight;
    }
    let report = Report {
        host: format!("host-{}", comm.rank() / 2),
        loss: weight * weight,
        slowest_layer: (comm.rank() == 1).then(|| ("head".into(), 0.012)),
    };

    let mut table = String::new();
    if let Some(reports) = comm.gather_value(&report, 0)? {
        table = format!("run '{}', {} ranks\n", settings.run, reports.len());
        for (rank, report) in reports.iter().enumerate() {
            let slowest = match &report.slowest_layer {
                Some((layer, seconds)) => format!("  slowest: {layer}, {seconds} s"),
                None => String::new(),
            };
            let Report { host, loss, .. } = report;
            table += &format!("  rank {rank} on {host}: loss {loss:.3e}{slowest}\n");
        }
    }
    let losses = comm.all_gather_value(&report.loss)?;
    let diverged: Vec<_> = (0..losses.len())
        .filter(|rank| losses[*rank] > 1e6)
        .collect();
    // The weight of rank 2 must grow, and those of the others must shrink.
    if diverged.iter().any(|rank| *rank != 2) || diverged.is_empty() != (losses.len() < 3) {
        return Err(Error::new(
            ErrorKind::System,
            format!("unexpected losses: {losses:?}"),
        ));
    }
    Ok(table + &format!("rank {} stops: ranks {diverged:?} diverge", comm.rank()))
}

fn main() -> Result<()> {
    if ringtree::launch::is_rank() {
        println!("{}", program(&Communicator::from_env()?)?);
        return Ok(());
    }
    for said in ringtree::simulate(4, program) {
        println!("{}", said?);
    }
    Ok(())
}
