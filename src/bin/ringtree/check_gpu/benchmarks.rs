//! What is measured on a GPU once everything was found right, and what was hoped for.

use super::rank::{Orders, Rank, Said};
use super::report::Table;
use super::{folds, latency, probe};
use crate::bench::case::{Case, Memory};
use crate::bench::measure::measure;
use crate::bench::report::cells;
use ringtree::plan::Collective;
use ringtree::{Dtype, ReduceOp, Result};
use std::sync::Arc;

/// What is reduced, in bytes.
const SIZES: &[usize] = &[
    8,
    64,
    1 << 10,
    8 << 10,
    64 << 10,
    512 << 10,
    1 << 20,
    4 << 20,
    25 << 20,
    64 << 20,
    256 << 20,
];

/// A fold moves at least this share of what a copy moves, from so many bytes an operand on.
const FOLD_RATIO_MIN: f64 = 0.9;
const FOLD_BYTES_MIN: f64 = (64 << 20) as f64;
/// An all-reduce of so many bytes takes at most this multiple of the time that a copy takes to
/// move its bytes four times, and one hand-over.
const ALL_REDUCE_FACTOR_MAX: f64 = 1.3;
const ALL_REDUCE_BYTES: f64 = (256 << 20) as f64;

/// Where the bytes and the time stand among the columns of `bench`.
const BYTES_COLUMN: usize = 4;
const TIME_COLUMN: usize = 10;

/// All-reduce of the ranks, as `ringtree bench` measures it: a row a size.
pub(super) fn all_reduce(orders: &Orders, rank: &Rank, is_registered: bool) -> Result<()> {
    let Rank {
        comm,
        device,
        stream,
    } = rank;
    let place = (Arc::clone(device), Arc::clone(stream));
    let memory = match is_registered {
        true => Memory::Registered(place),
        false => Memory::Device(place),
    };
    let sizes = orders.sizes(SIZES);
    for bytes in &sizes {
        let case = Case {
            collective: Collective::AllReduce,
            dtype: Dtype::F32,
            op: ReduceOp::Sum,
            root: 0,
            bytes: *bytes,
            iterations: None,
            in_place: true,
            memory: memory.clone(),
            algorithm: None,
        };
        let measured = measure(comm, &case)?;
        if comm.rank() > 0 {
            continue;
        }
        if measured.wrong > 0 {
            let wrong = measured.wrong;
            Said::Found(format!(
                "{wrong} wrong elements in all-reduces of {bytes} B"
            ))
            .say();
        }
        Said::Row(cells(&case, comm, &measured)).say();
        Said::Checked(1).say();
    }
    Ok(())
}

/// What was measured before the goals are looked at.
#[derive(Debug, Default)]
pub(super) struct Measured {
    pub(super) probe: Vec<Vec<String>>,
    pub(super) latency: Vec<Vec<String>>,
    pub(super) folds: Vec<Vec<String>>,
    /// All-reduces on registered memory.
    pub(super) registered: Vec<Vec<String>>,
}

/// What was hoped for, beside what was measured in the same run. It decides nothing.
pub(super) fn goals(measured: &Measured) -> Table {
    Table {
        name: "goals",
        columns: &[
            "goal",
            "measured",
            "reference",
            "ratio",
            "wanted",
            "verdict",
        ],
        rows: vec![
            fold_goal(measured),
            all_reduce_goal(measured),
            latency_goal(measured),
            row("all-reduce by TCP beside NCCL's over sockets, from 1 MiB up").missing(
                "at most 1.0",
                "not measured here: the NCCL benchmark says it",
            ),
        ],
    }
}

fn fold_goal(measured: &Measured) -> Vec<String> {
    let goal = row("fold beside copies, the slowest from 64 MiB up, GB/s");
    let wanted = format!("at least {FOLD_RATIO_MIN}");
    let large = measured.folds.iter();
    let large = large.filter(|row| number(row, 3).is_some_and(|bytes| bytes >= FOLD_BYTES_MIN));
    let ratio = |row: &&Vec<String>| number(row, 7).unwrap_or(f64::NAN);
    let slowest = large.min_by(|a, b| ratio(a).total_cmp(&ratio(b)));
    match slowest.map(|row| (number(row, 5), number(row, 6))) {
        Some((Some(fold_gbs), Some(copy_gbs))) => {
            let is_met = fold_gbs / copy_gbs >= FOLD_RATIO_MIN;
            goal.measured(fold_gbs, copy_gbs, fold_gbs / copy_gbs, &wanted, is_met)
        }
        _ => goal.missing(&wanted, "not measured"),
    }
}

/// Beside the time of four times its bytes at the speed of a copy; the hand-over is taken off.
fn all_reduce_goal(measured: &Measured) -> Vec<String> {
    let goal = row("all-reduce of 256 MiB on registered memory, us; 4 x its bytes copied");
    let wanted = format!("at most {ALL_REDUCE_FACTOR_MAX}, less a hand-over");
    let probed = |what: &str| {
        let mut rows = measured.probe.iter();
        rows.find(|row| row[0] == what)
            .and_then(|row| number(row, 1))
    };
    let mut rows = measured.registered.iter();
    let largest = rows.find(|row| number(row, BYTES_COLUMN) == Some(ALL_REDUCE_BYTES));
    let time_us = largest.and_then(|row| number(row, TIME_COLUMN));
    let copied = measured.folds.iter().rev();
    let mut copied = copied.filter_map(|row| number(row, 6));
    let copy_gbs = probed(probe::COPY).or_else(|| copied.next());
    match (time_us, copy_gbs, probed(probe::HAND_OVER)) {
        (Some(time_us), Some(copy_gbs), Some(hand_over_us)) => {
            let ideal_us = 4.0 * ALL_REDUCE_BYTES / copy_gbs / 1e3;
            let ratio = (time_us - hand_over_us) / ideal_us;
            let is_met = ratio <= ALL_REDUCE_FACTOR_MAX;
            let wanted = format!("{wanted} of {hand_over_us:.1} us");
            goal.measured(time_us, ideal_us, ratio, &wanted, is_met)
        }
        _ => goal.missing(&wanted, "not measured"),
    }
}

fn latency_goal(measured: &Measured) -> Vec<String> {
    let goal = row("all-reduce of 8 B, us; the sum of its steps (table latency)");
    let of = |what: &str| {
        let mut rows = measured.latency.iter();
        rows.find(|row| row[0] == what)
            .and_then(|row| number(row, 1))
    };
    match (of(latency::WHOLE), of(latency::SUM)) {
        (Some(whole_us), Some(sum_us)) => {
            let mut row = goal.measured(whole_us, sum_us, whole_us / sum_us, "a breakdown", true);
            row[5] = "no bound".into();
            row
        }
        _ => goal.missing("a breakdown", "not measured"),
    }
}

/// A row under way.
struct Goal(&'static str);

fn row(what: &'static str) -> Goal {
    Goal(what)
}

impl Goal {
    fn measured(
        self,
        measured: f64,
        reference: f64,
        ratio: f64,
        wanted: &str,
        is_met: bool,
    ) -> Vec<String> {
        let verdict = if is_met { "met" } else { "missed" };
        vec![
            self.0.into(),
            format!("{measured:.1}"),
            format!("{reference:.1}"),
            format!("{ratio:.3}"),
            wanted.into(),
            verdict.into(),
        ]
    }

    fn missing(self, wanted: &str, why: &str) -> Vec<String> {
        [self.0, "-", "-", "-", wanted, why]
            .map(str::to_owned)
            .to_vec()
    }
}

/// The speed of folds.
pub(super) fn folds(rows: &[Vec<String>]) -> Table {
    Table {
        name: "folds",
        columns: folds::COLUMNS,
        rows: rows.to_vec(),
    }
}

fn number(row: &[String], column: usize) -> Option<f64> {
    row.get(column)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::report::COLUMNS;

    fn table(rows: &[&str]) -> Vec<Vec<String>> {
        let row = |row: &&str| row.split(';').map(str::to_owned).collect();
        rows.iter().map(row).collect()
    }

    #[test]
    fn goals_are_computed_from_the_tables() {
        assert_eq!(
            (COLUMNS[BYTES_COLUMN], COLUMNS[TIME_COLUMN]),
            ("bytes", "time_us")
        );
        let columns = super::folds::COLUMNS;
        assert_eq!(
            (columns[3], &columns[5..]),
            ("bytes", &["fold_gbs", "copy_gbs", "ratio"][..])
        );
        let mut measured = Measured {
            probe: table(&[
                &format!("{};10;us", probe::HAND_OVER),
                &format!("{};4000;GB/s", probe::COPY),
            ]),
            latency: table(&[
                &format!("{};30;40", latency::SUM),
                &format!("{};45;50", latency::WHOLE),
            ]),
            folds: table(&[
                "f32;sum;2;67108864;1;3800;4000;0.950",
                "f32;sum;3;67108864;1;3400;4000;0.850",
                "f32;sum;3;1024;1;4;4000;0.001",
            ]),
            registered: table(&[
                "all-reduce;flat;cuda;2;8;2;f32;sum;-1;5;12.0",
                "all-reduce;ring;cuda;2;268435456;1;f32;sum;-1;5;350.0",
            ]),
        };
        let rows = goals(&measured).rows;
        assert_eq!(
            rows[0][1..],
            ["3400.0", "4000.0", "0.850", "at least 0.9", "missed"]
        );
        // Four times 268.4 MB at 4000 GB/s; 340 us are 1.267 of it.
        assert_eq!(rows[1][1..4], ["350.0", "268.4", "1.267"]);
        assert_eq!(rows[1][5], "met");
        assert_eq!(
            rows[2][1..],
            ["45.0", "30.0", "1.500", "a breakdown", "no bound"]
        );
        assert!(rows[3][5].starts_with("not measured here"));
        measured.registered[1][TIME_COLUMN] = "360.0".into();
        assert_eq!(goals(&measured).rows[1][5], "missed");
        let rows = goals(&Measured::default()).rows;
        let is_missing = |row: &Vec<String>| row[1] == "-" && row[5].starts_with("not measured");
        assert!(rows.len() == 4 && rows.iter().all(is_missing));
    }
}
