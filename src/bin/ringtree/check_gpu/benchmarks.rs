//! What is measured on a GPU once everything was found right.

use super::folds;
use super::report::Table;
use crate::bench::report::COLUMNS;
use ringtree::sys::process::bind_to_parent;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Less time than this is not begun with.
pub(super) const SECONDS_MIN: Duration = Duration::from_secs(30);

/// What is reduced, in bytes.
const SIZES: &str = "8,64,1K,8K,64K,512K,1M,4M,25M,64M,256M";

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
