//! Ranks that the system gives too little: descriptors, files, memory. Each says so itself, before
//! any deadline, and every other rank hears the same.

#![allow(clippy::unwrap_used)]

#[path = "support/address.rs"]
mod address;

use address::own_address;
use ringtree::{Communicator, ReduceOp, Result};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The environment turns a copy of this test binary into a rank.
const ROLE: &str = "RINGTREE_TEST_ROLE";
/// What a rank says stands behind this, among the lines of the test harness.
const MARK: &str = "says: ";
/// Ranks that wait for a cause wait for this long, and then say another one than what is expected.
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
    // The harness would only print more.
    std::process::exit(0);
}

fn limit_files(limit: u64) {
    let limit = Some(limit);
    let [current, maximum] = [limit; 2];
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
}

/// A sum over all ranks. A greedy rank opens files, once it has joined, until no more can be open;
/// ranks beside it wait for that.
fn work(role: &str) -> Result<u64> {
    let comm = Communicator::from_env()?;
    let full = std::env::var("FULL").unwrap();
    let mut open = Vec::new();
    if role == "greedy" {
        limit_files(64);
        while let Ok(file) = File::open("/dev/null") {
            open.push(file);
        }
        // The control thread may take what is given back here.
        let said = loop {
            open.pop();
            if let Ok(file) = File::create(&full) {
                break file;
            }
        };
        open.push(said);
    }
    while role == "beside" && !Path::new(&full).exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut sum = [comm.rank() as u64];
    comm.all_reduce(&mut sum, ReduceOp::Sum)?;
    Ok(sum[0])
}

/// Keeps descriptors that this process was started with from the ranks, which count theirs.
fn keep_descriptors_from_ranks() {
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let number: i32 = entry
            .unwrap()
            .file_name()
            .to_str()
            .unwrap()
            .parse()
            .unwrap();
        if number > 2 {
            // SAFETY: only a flag of the descriptor changes. If it is closed by now, nothing does.
            let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
            let _ = rustix::io::fcntl_setfd(descriptor, rustix::io::FdFlags::CLOEXEC);
        }
    }
}

/// Starts a rank for each of `roles`; what they say, when all have ended.
fn said(transport: &str, limit: u64, roles: &[&str]) -> Vec<String> {
    keep_descriptors_from_ranks();
    let rendezvous = own_address();
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

/// All ranks have the same error: the system's, of `rank`, with the limit to raise.
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
fn a_rank_that_joins_with_too_few_descriptors_is_named_on_every_rank() {
    for transport in ["shm", "tcp"] {
        for (rank, limit) in [(2, 18), (0, 18)] {
            let mut roles = ["free"; 8];
            roles[rank] = "limited";
            assert_named(&said(transport, limit, &roles), rank, limit);
        }
    }
}

#[test]
fn a_rank_that_runs_out_of_descriptors_is_named_on_every_rank() {
    // Lower ranks dial higher ones, so rank 0 dials only and rank 2 accepts only.
    for greedy in [0, 1, 2] {
        let mut roles = ["beside"; 3];
        roles[greedy] = "greedy";
        assert_named(&said("tcp", 0, &roles), greedy, 64);
    }
}
