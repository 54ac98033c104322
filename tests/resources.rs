//! Tests ranks that have too few file descriptors. Each of these ranks reports this itself before
//! any deadline, and every other rank gets the same report.

#![allow(clippy::unwrap_used)]

#[path = "support/address.rs"]
mod address;

use address::reserved_address;
use ringtree::{Communicator, ReduceOp, Result};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Environment variable that turns a copy of this test binary into a rank.
const ROLE: &str = "RINGTREE_TEST_ROLE";
/// Prefix of a rank's report, which distinguishes it from the lines of the test harness.
const MARK: &str = "says: ";
/// If ranks waited this long for the cause, they would report a different one than the tests
/// expect.
const TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn child_entry() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let limit = std::env::var("LIMITED_TO").ok();
    if let (Some(limit), "limited") = (limit, role.as_str()) {
        limit_files(limit.parse().unwrap());
    }
    match work(&role) {
        Err(error) => eprintln!("{MARK}{error:?}"),
        Ok(sum) => eprintln!("{MARK}sum {sum}"),
    }
    // Returning would let the harness print more lines.
    std::process::exit(0);
}

fn limit_files(limit: u64) {
    let limit = Some(limit);
    let [current, maximum] = [limit; 2];
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
}

/// Runs an all-reduce. A greedy rank first opens files until it has no descriptors left, and
/// waiting ranks wait until it has done so.
fn work(role: &str) -> Result<u64> {
    let comm = Communicator::from_env()?;
    let full = std::env::var("FULL").unwrap();
    let mut open = Vec::new();
    if role == "greedy" {
        limit_files(64);
        while let Ok(file) = File::open("/dev/null") {
            open.push(file);
        }
        // The control thread may take the descriptor that is released here.
        let marker = loop {
            open.pop();
            if let Ok(file) = File::create(&full) {
                break file;
            }
        };
        open.push(marker);
    }
    while role == "waiting" && !Path::new(&full).exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut sum = [comm.rank() as u64];
    comm.all_reduce(&mut sum, ReduceOp::Sum)?;
    Ok(sum[0])
}

/// Prevents ranks from inheriting descriptors that this process was started with, because the ranks
/// count their descriptors.
fn close_descriptors_in_ranks() {
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let number: i32 = entry
            .unwrap()
            .file_name()
            .to_str()
            .unwrap()
            .parse()
            .unwrap();
        if number > 2 {
            // SAFETY: only a flag of the descriptor changes. If it is closed by now, nothing
            // changes.
            let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
            let _ = rustix::io::fcntl_setfd(descriptor, rustix::io::FdFlags::CLOEXEC);
        }
    }
}

/// Starts a rank for each of `roles`. Returns the reports of the ranks after all have exited.
fn reports(transport: &str, limit: u64, roles: &[&str]) -> Vec<String> {
    close_descriptors_in_ranks();
    let rendezvous = reserved_address();
    let folder = tempfile::tempdir().unwrap();
    let full = folder.path().join("full");
    let start = |(rank, role): (usize, &&str)| {
        Command::new(std::env::current_exe().unwrap())
            .args(["child_entry", "--exact", "--nocapture"])
            .env(ROLE, role)
            .env("FULL", &full)
            .env("LIMITED_TO", limit.to_string())
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", roles.len().to_string())
            .env("RINGTREE_RENDEZVOUS", &rendezvous)
            .env("RINGTREE_TRANSPORT", transport)
            .env("RINGTREE_TUNING", "built-in")
            .env("RINGTREE_TIMEOUT_MS", TIMEOUT.as_millis().to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let ranks: Vec<Child> = roles.iter().enumerate().map(start).collect();
    let end = |rank: Child| {
        let output = rank.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let mark = text.rfind(MARK).unwrap_or_else(|| panic!("{text}"));
        text[mark + MARK.len()..].trim_end().to_owned()
    };
    ranks.into_iter().map(end).collect()
}

/// Checks that all ranks report the same system error of `rank`, and that the error names the limit
/// that should be raised.
fn assert_named(said: &[String], rank: usize, limit: u64) {
    for text in said {
        assert_eq!(*text, said[0]);
        for part in [
            "ulimit".to_owned(),
            format!("rank {rank} "),
            format!("`ulimit -n` is {limit}"),
            format!("hard limit {limit}"),
        ] {
            assert!(text.contains(&part), "{part}: {text}");
        }
    }
}

#[test]
fn joining_rank_without_descriptors_is_named_on_all_ranks() {
    for transport in ["shm", "tcp"] {
        for (rank, limit) in [(2, 18), (0, 18)] {
            let mut roles = ["free"; 8];
            roles[rank] = "limited";
            assert_named(&reports(transport, limit, &roles), rank, limit);
        }
    }
}

#[test]
fn rank_that_exhausts_descriptors_is_named_on_all_ranks() {
    // Lower ranks dial higher ranks, so rank 0 only dials and rank 2 only accepts.
    for greedy in [0, 1, 2] {
        let mut roles = ["waiting"; 3];
        roles[greedy] = "greedy";
        assert_named(&reports("tcp", 0, &roles), greedy, 64);
    }
}
