//! Settings and metrics as values: types that derive serde's traits, without a buffer in sight.
//!
//! ```text
//! cargo run --example 12_metrics                      # four simulated ranks
//! cargo build --release --example 12_metrics && \
//!     cargo run --release -- run --nproc-per-node 4 -- target/release/examples/12_metrics
//! ```
//!
//! Rank 0 has read the settings; every rank gets them by `broadcast_value`. After the work rank 0
//! gathers what each rank has to report by `gather_value` and prints a table; and all ranks take
//! the same decision from `all_gather_value`, so that none goes on alone.

use ringtree::{Communicator, Error, Result};
use serde::{Deserialize, Serialize};

/// What rank 0 has read from a file or a command line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Settings {
    run: String,
    learning_rate: f64,
    steps: u32,
}

/// What a rank reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Report {
    host: String,
    loss: f64,
    slowest_layer: Option<(String, f64)>,
}

/// Returns what there is to tell of this rank; checks that all ranks decide alike.
pub(crate) fn program(comm: &Communicator) -> Result<String> {
    let read = (comm.rank() == 0).then(|| Settings {
        run: "first light".into(),
        learning_rate: 0.1,
        steps: 40,
    });
    let settings = comm.broadcast_value(read, 0)?;

    // Each rank goes down its own slope; rank 2's diverges.
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
    // Rank 2's weight is known to grow, and the others' to shrink.
    if diverged.iter().any(|rank| *rank != 2) || diverged.is_empty() != (losses.len() < 3) {
        return Err(Error::system(format!(
            "other losses were expected: {losses:?}"
        )));
    }
    Ok(table + &format!("rank {} stops: ranks {diverged:?} diverge", comm.rank()))
}

fn main() -> Result<()> {
    if std::env::var_os("RANK").is_some() {
        println!("{}", program(&Communicator::from_env()?)?);
        return Ok(());
    }
    for said in ringtree::simulate(4, program) {
        println!("{}", said?);
    }
    Ok(())
}
