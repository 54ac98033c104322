//! Prints measurements.

use super::case::Case;
#[cfg(feature = "cuda")]
use super::case::Memory;
use super::measure::Measurement;
use crate::format::{Format, csv, object};
use ringtree::Communicator;
use ringtree::plan::Collective;
use ringtree::plan::internal::spec::reduces;
use serde_json::Value;
use std::io::{self, Write};

/// The columns of a measurement.
pub(crate) const COLUMNS: &[&str] = &[
    "collective",
    "algorithm",
    "transport",
    "ranks",
    "bytes",
    "count",
    "dtype",
    "op",
    "root",
    "iters",
    "time_us",
    "algbw_gbs",
    "busbw_gbs",
    "wrong",
    "predicted_us",
];

/// The width of each column in the table.
const WIDTHS: &[usize] = &[14, 18, 9, 5, 10, 10, 5, 4, 4, 7, 12, 9, 9, 5, 12];
const _: () = assert!(WIDTHS.len() == COLUMNS.len());

/// Prints a measurement. If it is the first one, prints the heading before it.
pub(super) fn print(
    format: Format,
    case: &Case,
    comm: &Communicator,
    measurement: &Measurement,
    is_first: bool,
) -> io::Result<()> {
    let cells = cells(case, comm, measurement);
    let (heading, line) = match format {
        Format::Csv => (csv(COLUMNS), csv(&cells)),
        Format::Table => (aligned(COLUMNS), aligned(&cells)),
        Format::Json => (
            String::new(),
            Value::from(object(COLUMNS, &cells)).to_string() + "\n",
        ),
    };
    let heading = if is_first { heading } else { String::new() };
    io::stdout().lock().write_all((heading + &line).as_bytes())
}

fn aligned(cells: &[impl AsRef<str>]) -> String {
    let pad = |(cell, width): (_, &usize)| {
        let cell: &str = cell;
        format!("{cell:>width$}")
    };
    let cells = cells.iter().map(AsRef::as_ref);
    cells.zip(WIDTHS).map(pad).collect::<Vec<_>>().join(" ") + "\n"
}

/// Returns the cells of a measurement, one per column in [`COLUMNS`].
pub(crate) fn cells(case: &Case, comm: &Communicator, measurement: &Measurement) -> Vec<String> {
    let Measurement {
        algorithm,
        count,
        iterations,
        time_s,
        predicted_s,
        wrong,
    } = measurement;
    let world_size = comm.world_size();
    // A barrier does not move any elements.
    let (count, dtype) = match case.collective {
        Collective::Barrier => (0, "none".to_owned()),
        _ => (*count, case.dtype.to_string()),
    };
    let moved_bytes = count * case.dtype.size();
    let algorithm_gbs = moved_bytes as f64 / time_s / 1e9;
    let bus_gbs = algorithm_gbs * bus_factor(case.collective, world_size);
    vec![
        case.collective.to_string(),
        algorithm.to_string(),
        case.transport(comm),
        world_size.to_string(),
        moved_bytes.to_string(),
        count.to_string(),
        dtype,
        if reduces(case.collective) {
            case.op.to_string()
        } else {
            "none".into()
        },
        if case.collective.is_rooted() {
            case.root.to_string()
        } else {
            "-1".into()
        },
        iterations.to_string(),
        format!("{:.4}", time_s * 1e6),
        format!("{algorithm_gbs:.4}"),
        format!("{bus_gbs:.4}"),
        wrong.to_string(),
        format!("{:.4}", predicted_s * 1e6),
    ]
}

impl Case {
    /// Returns the transport that the call used.
    fn transport(&self, comm: &Communicator) -> String {
        #[cfg_attr(not(feature = "cuda"), allow(clippy::match_single_binding))]
        match &self.memory {
            #[cfg(feature = "cuda")]
            Memory::Device(_) if self.collective != Collective::Barrier => {
                let info = comm.info();
                match info.device_path {
                    Some(path) if path == "mapped" => path.to_owned(),
                    _ => info.transport.to_owned(),
                }
            }
            _ => comm.info().transport.to_owned(),
        }
    }
}

/// Returns the minimum fraction of the buffer that crosses each rank's link, as counted by
/// nccl-tests.
fn bus_factor(collective: Collective, world_size: usize) -> f64 {
    let ranks = world_size as f64;
    match collective {
        Collective::AllReduce => 2.0 * (ranks - 1.0) / ranks,
        Collective::ReduceScatter
        | Collective::AllGather
        | Collective::Gather
        | Collective::Scatter
        | Collective::AllToAll => (ranks - 1.0) / ranks,
        Collective::Broadcast | Collective::Reduce => 1.0,
        Collective::Barrier => 0.0,
    }
}
