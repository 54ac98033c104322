//! Reads the rows that `measure` printed, and computes medians of repeated measurements.

use crate::measure::HEADER;
use std::path::Path;

/// The medians of all rows that have the same settings.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    pub(crate) implementation: String,
    pub(crate) ranks: usize,
    /// The requested algorithm, or `auto`.
    pub(crate) algorithm: String,
    /// The algorithm for the largest bucket.
    pub(crate) chosen: String,
    /// The requested bucket size.
    pub(crate) size: String,
    pub(crate) bucket_bytes: usize,
    pub(crate) buckets: usize,
    pub(crate) forward_ms: f64,
    pub(crate) backward_ms: f64,
    pub(crate) step_ms: f64,
    pub(crate) exposed_ms: f64,
    pub(crate) communication_ms: f64,
    /// Number of rows that were combined.
    pub(crate) lines: usize,
}

/// Reads a table. The result is in the order in which the settings first occur.
pub(crate) fn read(path: &Path) -> Result<Vec<Row>, String> {
    let wrong = |what: String| format!("{}: {what}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let mut lines = text.lines();
    if lines.next() != Some(HEADER) {
        return Err(wrong(format!("the first line is not {HEADER}")));
    }
    let mut groups: Vec<Vec<Row>> = Vec::new();
    for line in lines {
        let row = parse(line).ok_or_else(|| wrong(format!("invalid row: {line}")))?;
        match groups.iter_mut().find(|group| same(&group[0], &row)) {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    Ok(groups.iter().map(|group| median(group)).collect())
}

fn parse(line: &str) -> Option<Row> {
    let fields: Vec<&str> = line.split(',').collect();
    let number = |at: usize| fields.get(at)?.parse::<f64>().ok();
    let whole = |at: usize| fields.get(at)?.parse::<usize>().ok();
    let algorithm = *fields.get(2)?;
    let chosen = algorithm.strip_prefix("auto (");
    Some(Row {
        implementation: (*fields.first()?).to_owned(),
        ranks: whole(1)?,
        algorithm: chosen.map_or(algorithm, |_| "auto").to_owned(),
        chosen: chosen
            .map_or(algorithm, |name| name.trim_end_matches(')'))
            .to_owned(),
        size: (*fields.get(3)?).to_owned(),
        bucket_bytes: whole(4)?,
        buckets: whole(5)?,
        forward_ms: number(7)?,
        backward_ms: number(8)?,
        step_ms: number(9)?,
        exposed_ms: number(10)?,
        communication_ms: number(11)?,
        lines: 1,
    })
}

fn same(one: &Row, other: &Row) -> bool {
    let key = |row: &Row| {
        (
            row.implementation.clone(),
            row.ranks,
            row.algorithm.clone(),
            row.size.clone(),
            row.backward_ms.to_bits(),
        )
    };
    key(one) == key(other)
}

fn median(group: &[Row]) -> Row {
    let of = |field: fn(&Row) -> f64| {
        let mut values: Vec<f64> = group.iter().map(field).collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let below = values[(values.len() - 1) / 2];
        f64::midpoint(below, values[middle])
    };
    Row {
        step_ms: of(|row| row.step_ms),
        exposed_ms: of(|row| row.exposed_ms),
        communication_ms: of(|row| row.communication_ms),
        lines: group.len(),
        ..group[0].clone()
    }
}

/// Returns the minimum time of a step, which is forward plus the longer of backward and
/// communication. The communication time is the shortest in the table for the same number of ranks.
pub(crate) fn bound_ms(row: &Row, rows: &[Row]) -> f64 {
    let alike = |other: &&Row| other.ranks == row.ranks && other.backward_ms == row.backward_ms;
    let times = rows
        .iter()
        .filter(alike)
        .map(|other| other.communication_ms);
    row.forward_ms + times.fold(f64::INFINITY, f64::min).max(row.backward_ms)
}

/// Prints the rows as a Markdown table.
pub(crate) fn summarize(path: &Path) -> Result<(), String> {
    let rows = read(path)?;
    println!(
        "| | ranks | algorithm | buckets | communication alone | step | exposed | bound | step to \
         bound |\n|---|--:|---|--:|--:|--:|--:|--:|--:|"
    );
    for row in &rows {
        let bound_ms = bound_ms(row, &rows);
        let algorithm = if row.algorithm == row.chosen {
            row.algorithm.clone()
        } else {
            format!("{} ({})", row.algorithm, row.chosen)
        };
        println!(
            "| {} | {} | {algorithm} | {} of {:.2} MB ({}) | {:.0} | {:.0} | {:.0} | {bound_ms:.0} \
             | {:.2} |",
            row.implementation,
            row.ranks,
            row.buckets,
            row.bucket_bytes as f64 / 1e6,
            row.size,
            row.communication_ms,
            row.step_ms,
            row.exposed_ms,
            row.step_ms / bound_ms,
        );
    }
    println!(
        "\nMilliseconds; medians of {} runs or more.",
        least_lines(&rows)
    );
    Ok(())
}

fn least_lines(rows: &[Row]) -> usize {
    rows.iter().map(|row| row.lines).min().unwrap_or_default()
}
