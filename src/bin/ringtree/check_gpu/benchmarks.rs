//! What is measured on a GPU once everything was found right.

use super::folds;
use super::probe::{COPY, HAND_OVER};
use super::report::Table;
use crate::bench::report::COLUMNS;
use ringtree::sys::process::bind_to_parent;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Less time than this is not begun with.
pub(super) const SECONDS_MIN: Duration = Duration::from_secs(30);

/// What is reduced, in bytes.
const SIZES: &str = "8,64,1K,8K,64K,512K,1M,4M,25M,64M,256M";

/// A fold moves at least this share of what a copy moves.
const FOLD_RATIO_MIN: f64 = 0.9;
/// A large all-reduce takes at most this multiple of the time that moving its bytes four times
/// takes.
const ALL_REDUCE_FACTOR_MAX: f64 = 1.3;

/// Where the bytes and the time stand among the columns of `bench`.
const BYTES_COLUMN: usize = 4;
const TIME_COLUMN: usize = 10;

/// The speed of folds.
pub(super) fn folds(rows: &[Vec<String>]) -> Table {
    Table {
        name: "folds",
        columns: folds::COLUMNS,
        rows: rows.to_vec(),
    }
}

/// All-reduce of two ranks on this GPU, as `ringtree bench` measures it.
///
/// # Errors
/// One line.
pub(super) fn all_reduce(
    name: &'static str,
    transport: &str,
    patience: Duration,
) -> Result<Table, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command
        .args(["bench", "all-reduce", "--ranks", "2", "--memory", "device"])
        .args(["--transport", transport, "--format", "csv"])
        .args(["--sizes", SIZES])
        .env_remove("RINGTREE_TRANSPORT")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    bind_to_parent(&mut command, None);
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let end = Instant::now() + patience;
    while matches!(child.try_wait(), Ok(None)) {
        if Instant::now() > end {
            let _ = child.kill();
            let _ = child.wait();
            return Err("time was over before it was measured".into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = child
        .wait_with_output()
        .map_err(|error| error.to_string())?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        let last = complaint.lines().last().unwrap_or("it failed").to_owned();
        return Err(last);
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let row = |line: &str| line.split(',').map(str::to_owned).collect();
    Ok(Table {
        name,
        columns: COLUMNS,
        rows: text.lines().skip(1).map(row).collect(),
    })
}

/// What was hoped for, beside what was measured in the same run. It decides nothing.
pub(super) fn goals(
    probed: &[Vec<String>],
    folds: &[Vec<String>],
    by_ipc: &[Vec<String>],
) -> Table {
    let mut rows = Vec::new();
    let mut goal = |what: &str, measured: f64, wanted: String, is_met: bool| {
        let is_met = if is_met { "yes" } else { "no" };
        let measured = format!("{measured:.3}");
        rows.push(vec![what.into(), measured, wanted, is_met.into()]);
    };
    let ratios = folds.iter().filter_map(|row| number(row, 7));
    if let Some(least) = ratios.min_by(f64::total_cmp) {
        let wanted = format!("at least {FOLD_RATIO_MIN}");
        goal(
            "fold, of a copy's bandwidth, least",
            least,
            wanted,
            least >= FOLD_RATIO_MIN,
        );
    }
    let value = |what: &str| probed.iter().find(|row| row[0] == what);
    let copy_gbs = value(COPY).and_then(|row| number(row, 1));
    let hand_over_us = value(HAND_OVER).and_then(|row| number(row, 1));
    let largest = by_ipc.last();
    let bytes = largest.and_then(|row| number(row, BYTES_COLUMN));
    let time_us = largest.and_then(|row| number(row, TIME_COLUMN));
    if let (Some(copy_gbs), Some(hand_over_us), Some(bytes), Some(time_us)) =
        (copy_gbs, hand_over_us, bytes, time_us)
    {
        let ideal_us = 4.0 * bytes / copy_gbs / 1e3;
        let wanted_us = ALL_REDUCE_FACTOR_MAX * ideal_us + hand_over_us;
        let wanted = format!("at most {wanted_us:.1}");
        let what = "all-reduce of the largest buffer by IPC, us";
        goal(what, time_us, wanted, time_us <= wanted_us);
    }
    Table {
        name: "goals",
        columns: &["what", "measured", "wanted", "met"],
        rows,
    }
}

fn number(row: &[String], column: usize) -> Option<f64> {
    row.get(column)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_computed_from_the_tables() {
        assert_eq!(
            (COLUMNS[BYTES_COLUMN], COLUMNS[TIME_COLUMN]),
            ("bytes", "time_us")
        );
        assert_eq!(super::folds::COLUMNS[7], "ratio");
        let row = |cells: &str| cells.split(',').map(str::to_owned).collect::<Vec<_>>();
        let probed = [[HAND_OVER, "10", "us"], [COPY, "4000", "GB/s"]];
        let probed = probed.map(|row| row.map(str::to_owned).to_vec());
        let folds = [row("f32,sum,2,1,1,1,1,0.95"), row("f32,sum,3,1,1,1,1,0.85")];
        let ipc = [row("all-reduce,ring,cuda,2,1000000,1,f32,sum,-1,5,12.0")];
        let table = goals(&probed, &folds, &ipc);
        assert_eq!(table.rows[0][1..], ["0.850", "at least 0.9", "no"]);
        // 1.3 times 1 us, and 10.
        assert_eq!(table.rows[1][1..], ["12.000", "at most 11.3", "no"]);
    }
}
