//! Formats the measurements as a table and as CSV. Has no side effects.

use super::arrangement::{Case, Gpus, Path, RANKS};
use ringtree::plan::Collective;
use std::fmt::Write as _;

/// The measurement of one case with one library.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Timed {
    /// Mean time per call on the slowest rank, in the median batch.
    pub(crate) time_s: f64,
    /// Number of wrong elements on all ranks, in the checked calls before and after the batches.
    pub(crate) wrong: usize,
}

/// One case, measured with both libraries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) case: Case,
    pub(crate) nccl: Option<Timed>,
    pub(crate) ringtree: Option<Timed>,
}

/// All cases in one arrangement.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) path: Path,
    pub(crate) gpus: Gpus,
    /// The name of the arrangement, such as `sockets, a GPU each`.
    pub(crate) title: String,
    /// The version of NCCL, such as `NCCL 2.30.7`.
    pub(crate) nccl: String,
    /// The path that ringtree's device buffers take, as reported by ringtree.
    pub(crate) ringtree: String,
    pub(crate) rows: Vec<Row>,
}

/// Returns the middle value, or the mean of the two values in the middle.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = values[(values.len() - 1) / 2];
    Some(f64::midpoint(lower, upper))
}

/// Returns the bus bandwidth in GB per second, as defined by nccl-tests.
fn bus_gbs(case: Case, time_s: f64) -> f64 {
    let ranks = RANKS as f64;
    let factor = match case.collective {
        Collective::AllReduce => 2.0 * (ranks - 1.0) / ranks,
        Collective::AllGather | Collective::ReduceScatter => (ranks - 1.0) / ranks,
        _ => 1.0,
    };
    factor * (case.count() * size_of::<f32>()) as f64 / time_s / 1e9
}

impl Row {
    /// Returns ringtree's time divided by NCCL's. If the ratio is below 1, ringtree is faster.
    pub(crate) fn ratio(&self) -> Option<f64> {
        Some(self.ringtree?.time_s / self.nccl?.time_s)
    }

    fn wrong(&self) -> usize {
        let both = [self.nccl, self.ringtree].into_iter().flatten();
        both.map(|timed| timed.wrong).sum()
    }
}

/// Formats a number, or returns an empty string if there is none.
fn cell(value: Option<f64>, decimals: usize) -> String {
    value.map_or(String::new(), |value| format!("{value:.decimals$}"))
}

impl Table {
    /// Returns whether the row meets its goal, as text, or an empty string if it has no goal.
    fn verdict(&self, row: &Row) -> &'static str {
        let is_met = row
            .ratio()
            .map(|ratio| self.path.meets_goal(row.case, ratio));
        match is_met.flatten() {
            Some(true) => "met",
            Some(false) => "missed",
            None => "",
        }
    }

    pub(crate) fn wrong(&self) -> usize {
        self.rows.iter().map(Row::wrong).sum()
    }

    /// Returns the table in human-readable form.
    pub(crate) fn text(&self) -> String {
        let Self {
            title,
            nccl,
            ringtree,
            rows,
            ..
        } = self;
        let mut text = format!(
            "\n{title}: {nccl} compared with {ringtree}\n\
             {RANKS} ranks, f32, sum; microseconds per call; ratio = ringtree's time / NCCL's\n\
             {:<14} {:>9} {:>12} {:>12} {:>6}\n",
            "collective", "bytes", "NCCL", "ringtree", "ratio"
        );
        for row in rows {
            let us = |timed: Option<Timed>| match timed {
                Some(timed) => cell(Some(timed.time_s * 1e6), 1),
                None => "-".into(),
            };
            let mut remark = String::new();
            if row.ratio().is_some() {
                let _ = write!(remark, "  {}", self.gpus.remark());
            }
            match self.verdict(row) {
                "" => {}
                verdict => remark.push_str(&format!("; goal of at most NCCL's time: {verdict}")),
            }
            if row.wrong() > 0 {
                let _ = write!(remark, "  {} elements WRONG", row.wrong());
            }
            let collective = row.case.collective.to_string();
            let ratio = row.ratio().map_or("-".into(), |one| cell(Some(one), 2));
            let _ = writeln!(
                text,
                "{collective:<14} {:>9} {:>12} {:>12} {ratio:>6}{remark}",
                row.case.bytes,
                us(row.nccl),
                us(row.ringtree),
            );
        }
        text
    }

    /// The header line with the names of the columns.
    pub(crate) const CSV_HEADER: &str = "arrangement,collective,ranks,bytes,count,dtype,op,\
        nccl,nccl_time_us,nccl_busbw_gbs,nccl_wrong,\
        ringtree,ringtree_time_us,ringtree_busbw_gbs,ringtree_wrong,ratio,goal,remark\n";

    /// Returns the table as CSV, without the header line.
    pub(crate) fn csv(&self) -> String {
        let mut text = String::new();
        for row in &self.rows {
            let three = |timed: Option<Timed>| {
                [
                    cell(timed.map(|timed| timed.time_s * 1e6), 4),
                    cell(timed.map(|timed| bus_gbs(row.case, timed.time_s)), 4),
                    timed.map_or(String::new(), |timed| timed.wrong.to_string()),
                ]
                .join(",")
            };
            let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
            let cells = [
                quoted(&self.title),
                row.case.collective.to_string(),
                RANKS.to_string(),
                row.case.bytes.to_string(),
                row.case.count().to_string(),
                "f32,sum".into(),
                quoted(&self.nccl),
                three(row.nccl),
                quoted(&self.ringtree),
                three(row.ringtree),
                cell(row.ratio(), 4),
                self.verdict(row).into(),
                quoted(self.gpus.remark()),
            ];
            text.push_str(&cells.join(","));
            text.push('\n');
        }
        text
    }
}
