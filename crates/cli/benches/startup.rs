//! Measures the startup of many ranks on one host: the time until the first barrier completes, and
//! each rank's number of connections and memory use at that point.
//!
//! ```console
//! $ cargo bench --bench startup                # 256 ranks
//! $ cargo bench --bench startup -- 64 tcp      # 64 ranks, over TCP
//! ```
//!
//! `ringtree run` starts this program once per rank. The connections are the established TCP
//! connections of a process: one to rank 0, the coordinator, and those that the barrier needed. PSS
//! is the memory that a process uses, with each page divided by the number of processes that map
//! it.

use ringtree::{Communicator, Result};
use std::collections::HashSet;
use std::fs;
use std::process::{Command, ExitCode};
use std::time::{SystemTime, UNIX_EPOCH};

/// Default number of ranks.
const RANKS: usize = 256;
/// Environment variable with the time at which the launcher started, in microseconds since the Unix
/// epoch.
const STARTED_US: &str = "STARTUP_STARTED_US";

/// Results of a rank after the first barrier: microseconds since the start, connections, RSS and
/// PSS in KiB.
type Seen = [u64; 4];
const NAMES: [&str; 4] = [
    "ms to the end of the barrier",
    "connections",
    "RSS in KiB",
    "PSS in KiB",
];

fn main() -> ExitCode {
    if std::env::var_os(STARTED_US).is_some() {
        return match rank() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("startup: {error}");
                ExitCode::FAILURE
            }
        };
    }
    // `cargo bench` adds options, so ignore all words that begin with `--`.
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|one| !one.starts_with("--"))
        .collect();
    let ranks = words
        .iter()
        .find_map(|word| word.parse().ok())
        .unwrap_or(RANKS);
    let transport = words.iter().find(|word| word.parse::<usize>().is_err());
    let program = std::env::current_exe().expect("the path of this program must be known");
    let mut launcher = Command::new(env!("CARGO_BIN_EXE_ringtree"));
    launcher.args([
        "run",
        "--output",
        "rank0",
        "--nproc-per-node",
        &ranks.to_string(),
        "--",
    ]);
    launcher.arg(program).env(STARTED_US, now_us().to_string());
    if let Some(transport) = transport {
        launcher.env("RINGTREE_TRANSPORT", transport);
    }
    match launcher.status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("startup: the launcher does not start: {error}");
            ExitCode::FAILURE
        }
    }
}

fn rank() -> Result<()> {
    let comm = Communicator::from_env()?;
    comm.barrier()?;
    let started_us = std::env::var(STARTED_US)
        .ok()
        .and_then(|text| text.parse().ok());
    let seen: Seen = [
        now_us().saturating_sub(started_us.unwrap_or(0)),
        connections() as u64,
        memory_kib("Rss:"),
        memory_kib("Pss:"),
    ];
    // Without this barrier, a rank could open more connections or exit before all ranks have
    // measured.
    comm.barrier()?;
    if let Some(all) = comm.gather_value(&seen, 0)? {
        report(&comm, &all);
    }
    Ok(())
}

fn report(comm: &Communicator, all: &[Seen]) {
    let ranks = comm.world_size();
    println!("{ranks} ranks on one host, {}", comm.info().transport);
    println!(
        "{:<30} {:>10} {:>10} {:>10}",
        "", "rank 0", "median", "most"
    );
    for (at, name) in NAMES.iter().enumerate() {
        let mut others: Vec<u64> = all[1..].iter().map(|seen| seen[at]).collect();
        others.sort_unstable();
        let unit = if at == 0 { 1000 } else { 1 };
        let [median, most] = [others.get(others.len() / 2), others.last()];
        let shown = [Some(&all[0][at]), median, most].map(|one| one.map_or(0, |one| one / unit));
        println!(
            "{name:<30} {:>10} {:>10} {:>10}",
            shown[0], shown[1], shown[2]
        );
    }
    let most = 2 * ranks.next_power_of_two().trailing_zeros() + 2;
    println!(
        "a full mesh has {} connections a rank, 2 ⌈log₂ n⌉ + 2 are {most}",
        ranks - 1
    );
}

fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as u64)
}

/// Returns the number of established TCP connections of this process.
fn connections() -> usize {
    let mut established = HashSet::new();
    for table in ["/proc/self/net/tcp", "/proc/self/net/tcp6"] {
        for line in fs::read_to_string(table).unwrap_or_default().lines() {
            let fields: Vec<&str> = line.split_whitespace().collect();
            if let [_, _, _, "01", _, _, _, _, _, inode, ..] = fields[..] {
                established.insert(format!("socket:[{inode}]"));
            }
        }
    }
    let descriptors = fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .flatten();
    let names = descriptors.filter_map(|one| fs::read_link(one.path()).ok());
    names
        .filter(|name| established.contains(&*name.to_string_lossy()))
        .count()
}

/// Returns a value of this process's memory statistics, in KiB.
fn memory_kib(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(name));
    let number = lines.next().and_then(|rest| rest.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}
