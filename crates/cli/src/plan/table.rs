//! Prints the assessments of `ringtree plan` as a table or as comma-separated values.

use super::{Assessment, PlanQuery, subject};
use crate::format::csv;
use ringtree::plan::LinkCost;
use ringtree::plan::internal::topology::{Sharing, sharing};
use ringtree::plan::internal::tuning::between_sites;
use ringtree::plan::internal::units::{Bytes, Rate, Seconds};
use serde_json::Value;

/// The columns of the CSV output. Each is also a field of the JSON objects.
const COLUMNS: &[&str] = &[
    "collective",
    "algorithm",
    "ranks",
    "root",
    "chunks",
    "scratch",
    "rounds",
    "messages",
    "max_bytes_sent_per_rank",
    "time_us",
    "verified",
    "bits_agree",
    "why_not",
];

/// Returns a header line and one line of comma-separated values per algorithm.
pub(super) fn rows(assessments: &[Assessment]) -> Result<String, String> {
    let mut out = csv(COLUMNS);
    for assessment in assessments {
        let fields = serde_json::from_str::<Value>(&assessment.report.to_json());
        let fields = fields.map_err(|error| error.to_string())?;
        let cell = |name: &&str| match &fields[*name] {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        out += &csv(&COLUMNS.iter().map(cell).collect::<Vec<_>>());
    }
    Ok(out)
}

/// Returns the table, with one line per algorithm.
pub(super) fn table(inquiry: &PlanQuery, assessments: &[Assessment]) -> String {
    let mut out = heading(inquiry);
    let mut head = vec![
        "algorithm",
        "pieces",
        "rounds",
        "messages",
        "busiest sends",
        "time",
    ];
    if inquiry.verify {
        head.extend(["verified", "bits agree"]);
    }
    let mut lines = vec![head.into_iter().map(str::to_owned).collect()];
    let (planned, others): (Vec<_>, Vec<_>) = assessments
        .iter()
        .partition(|one| one.report.rounds.is_some());
    lines.extend(planned.iter().map(|one| row(one, inquiry.verify)));
    let columns = lines[0].len();
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            let cells = lines.iter().filter_map(|line| line.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        })
        .collect();
    for line in &lines {
        let mut cells: Vec<String> = line
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:>width$}"))
            .collect();
        cells[0] = format!("{:<width$}", line[0], width = widths[0]);
        out.push_str(cells.join("  ").trim_end());
        out.push('\n');
    }
    let collective = inquiry.collective;
    let (elsewhere, too_long): (Vec<_>, Vec<_>) =
        others.into_iter().partition(|one| one.is_unsupported);
    if !elsewhere.is_empty() {
        let names = elsewhere.iter().map(|one| one.report.algorithm.as_str());
        let names = names.collect::<Vec<_>>().join(", ");
        out += &format!("\nalgorithms that do not implement {collective}: {names}\n");
    }
    let why_not = too_long.iter().filter_map(|one| one.report.why_not.clone());
    why_not.for_each(|why_not| out += &(why_not + "\n"));
    out
}

/// Returns, for example, "broadcast of 1 MiB over 8 ranks, root 0; 6 µs latency, 3 µs overhead,
/// 10 Gbit/s".
fn heading(inquiry: &PlanQuery) -> String {
    let topology = &inquiry.topology;
    let (tcp, shm) = (speed(&inquiry.table.tcp), speed(&inquiry.table.shm));
    let links = match sharing(topology) {
        Sharing::None => tcp,
        Sharing::Some => {
            let ranks: String = match topology.sizes() {
                [least, .., most] => format!("{least} to {most}"),
                same => same.iter().map(usize::to_string).collect(),
            };
            format!("{tcp}; {ranks} per host: {shm}")
        }
        Sharing::All => format!("all on one host: {shm}"),
    };
    let uplinks = match topology.site_count() {
        1 => String::new(),
        sites => {
            let uplink = between_sites(&inquiry.table);
            let rate = Rate(8.0 / uplink.beta_s_per_byte);
            let way = Seconds(uplink.alpha_s);
            format!("; between {sites} sites: {way} latency, {rate} per uplink")
        }
    };
    format!("{}; {links}{uplinks}\n\n", subject(inquiry))
}

/// Returns, for example, "6 µs latency, 3 µs overhead, 10 Gbit/s".
fn speed(link: &LinkCost) -> String {
    format!(
        "{} latency, {} overhead, {}",
        Seconds(link.alpha_s),
        Seconds(link.overhead_s),
        Rate(8.0 / link.beta_s_per_byte)
    )
}

/// Returns one line of the table.
fn row(assessment: &Assessment, with_proof: bool) -> Vec<String> {
    let report = &assessment.report;
    let number = |value: Option<usize>| value.map_or("-".to_owned(), |value| value.to_string());
    let sent = report.max_bytes_sent_per_rank.unwrap_or(0);
    let mut cells = vec![
        report.algorithm.clone(),
        assessment.pieces.to_string(),
        number(report.rounds),
        number(report.messages),
        Bytes(sent as f64).to_string(),
        Seconds(report.time_us.unwrap_or(0.0) / 1e6).to_string(),
    ];
    if with_proof {
        let answer = |value: Option<bool>| match value {
            Some(true) => "yes".to_owned(),
            Some(false) => "NO".to_owned(),
            None => "not run".to_owned(),
        };
        cells.extend([report.verified, report.bits_agree].map(answer));
    }
    cells
}
