//! The output formats that all commands share.

use clap::ValueEnum;
use serde_json::{Map, Number, Value};

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Aligned columns
    Table,
    /// Comma-separated values
    Csv,
    /// JSON, with one object per line
    Json,
}

/// Returns a line of comma-separated values.
pub(crate) fn csv(cells: &[impl AsRef<str>]) -> String {
    let quoted = |cell: &str| match cell.contains([',', '"']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.to_owned(),
    };
    let cells = cells.iter().map(|cell| quoted(cell.as_ref()));
    cells.collect::<Vec<_>>().join(",") + "\n"
}

/// Returns a JSON object with the `cells` of the columns `names`. Cells that are numbers become
/// numbers.
pub(crate) fn object(names: &[&str], cells: &[String]) -> Map<String, Value> {
    let value = |cell: &String| {
        let number = serde_json::from_str::<Number>(cell);
        number.map_or_else(|_| cell.clone().into(), Value::Number)
    };
    let cells = names.iter().zip(cells);
    cells
        .map(|(name, cell)| ((*name).to_owned(), value(cell)))
        .collect()
}
