//! The command `ringtree check-gpu`, on the fake device: it finds nothing wrong where nothing is,
//! and finds what was planted. And what it does on a GPU alone, on a pretended driver: every part
//! of it has run before it meets a real one.
//!
//! With `RINGTREE_LONG=1` up to 8 ranks, and everything on the pretended driver too.

#![allow(clippy::unwrap_used)]

#[path = "device/driver.rs"]
mod driver;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// What runs the program in compute-sanitizer's place: notes what it was told, and obeys.
const SANITIZER: &str = r#"#!/bin/sh
echo "$@" >> "${0%/*}/told"
while [ "$1" != "${1#--}" ]; do shift 2; done
echo "========= COMPUTE-SANITIZER"
"$@"
echo "========= ERROR SUMMARY: 0 errors"
"#;

/// The same that has found something.
const WITH_AN_ERROR: &str = r#"#!/bin/sh
while [ "$1" != "${1#--}" ]; do
    [ "$1" = --error-exitcode ] && code=$2
    shift 2
done
echo "========= COMPUTE-SANITIZER"
"$@"
echo "========= Invalid __global__ write of size 4 bytes"
echo "========= ERROR SUMMARY: 1 error"
exit $code
"#;

/// One that hangs, as does what it has started, which holds on to its output.
const HANGING: &str = r#"#!/bin/sh
sleep 1000 &
echo $! > "${0%/*}/started"
wait
"#;

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringtree"));
    command.arg("check-gpu");
    command
}

fn check(arguments: &[&str]) -> Output {
    program().args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn is_long() -> bool {
    std::env::var_os("RINGTREE_LONG").is_some()
}

/// Nothing wrong, and something checked, in each part.
fn assert_all_is_well(table: &Path) {
    let checks = std::fs::read_to_string(table).unwrap();
    let mut lines = checks.lines();
    assert_eq!(lines.next(), Some("part,ranks,checked,wrong,seconds"));
    for line in lines {
        let cells: Vec<_> = line.rsplit(',').collect();
        assert_eq!(cells[1], "0", "{line}");
        assert_ne!(cells[2], "0", "nothing was checked: {line}");
    }
}

/// A folder with nothing but the program and what stands in for compute-sanitizer, where nothing
/// else is found: no cargo, no repository, no home.
struct Elsewhere(TempDir);

impl Elsewhere {
    fn new(sanitizer: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["tools", "home", "work"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        let tool = folder.path().join("tools/compute-sanitizer");
        std::fs::write(&tool, sanitizer).unwrap();
        std::fs::set_permissions(&tool, Permissions::from_mode(0o755)).unwrap();
        std::fs::copy(
            env!("CARGO_BIN_EXE_ringtree"),
            folder.path().join("ringtree"),
        )
        .unwrap();
        Self(folder)
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    /// The check, on the pretended driver.
    fn check(&self, arguments: &[&str]) -> Output {
        let tools = self.path("tools");
        Command::new(self.path("ringtree"))
            .args(["check-gpu", "--bytes-max", "4096"])
            .args(arguments)
            .current_dir(self.path("work"))
            .env_clear()
            .env("HOME", self.path("home"))
            .env("PATH", format!("{}:/usr/bin:/bin", tools.display()))
            .env("LD_LIBRARY_PATH", driver::folder())
            // Of a job that has nothing to do with the check.
            .env("RANK", "7")
            .env("RINGTREE_TRANSPORT", "tcp")
            .output()
            .unwrap()
    }
}

#[test]
fn all_is_well_on_the_fake_device() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("tables");
    let ranks = if is_long() { "8" } else { "2" };
    let arguments = ["--fake", "--format", "csv", "--ranks-max", ranks];
    let output = check(&[&arguments[..], &["--out", out.to_str().unwrap()]].concat());
    let (said, complaints) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{said}\n{complaints}");
    assert!(said.starts_with("# probe\nwhat,value,unit\n"), "{said}");
    assert_eq!(
        complaints,
        "ringtree check-gpu: all is well on the fake device\n"
    );
    assert_all_is_well(&out.join("checks.csv"));
    let failures = std::fs::read_to_string(out.join("failures.csv")).unwrap();
    assert_eq!(failures, "failure\n");
    assert!(out.join("probe.csv").exists() && out.join("latency.csv").exists());
}

#[test]
fn what_a_gpu_alone_is_asked_runs_on_a_pretended_driver() {
    let here = Elsewhere::new(SANITIZER);
    let sections = match is_long() {
        true => "probe,kernels,sanitizer,ends,collectives,speed",
        false => "probe,sanitizer,speed",
    };
    let output = here.check(&["--only", sections, "--out", "tables"]);
    let (said, complaints) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{said}\n{complaints}");
    assert!(complaints.is_empty(), "{complaints}");
    assert!(said.ends_with("all is well on the GPU\n"), "{said}");
    let table = |name: &str| {
        let file = here.path(&format!("work/tables/{name}.csv"));
        let text = std::fs::read_to_string(&file).unwrap();
        let rows = text.lines().map(|line| line.split(',').map(str::to_owned));
        rows.map(Iterator::collect).collect::<Vec<Vec<_>>>()
    };
    assert_all_is_well(&here.path("work/tables/checks.csv"));
    for (name, transport) in [
        ("all_reduce_ipc", "cuda"),
        ("all_reduce_registered", "cuda"),
        ("all_reduce_tcp", "tcp"),
    ] {
        let rows = table(name);
        assert_eq!(rows[0].len(), 15);
        let sizes: Vec<_> = rows[1..].iter().map(|row| row[4].as_str()).collect();
        assert_eq!(sizes, ["8", "64", "1024"], "{name}");
        let is_right = |row: &Vec<String>| row[2] == transport && row[13] == "0";
        assert!(rows[1..].iter().all(is_right), "{name}: {rows:?}");
    }
    assert!(table("folds").len() > 5);
    // Each goal has its line, whatever came of it; what was measured has figures.
    let goals = table("goals");
    assert_eq!(goals.len(), 5);
    assert!(goals.iter().all(|row| row.last().unwrap() != ""));
    // What a call consists of, added up.
    let latency = table("latency");
    let figures = |row: &Vec<String>| row[row.len() - 2..].to_vec();
    let figures: Vec<_> = latency[1..].iter().map(figures).collect();
    let (steps, totals) = figures.split_at(figures.len() - 3);
    for way in [0, 1] {
        let figure = |row: &Vec<String>| row[way].parse::<f64>().unwrap_or(0.0);
        let sum: f64 = steps.iter().map(figure).sum();
        assert!((sum - figure(&totals[0])).abs() < 1.0, "{latency:?}");
        assert!(figure(&totals[1]) > 0.0, "{latency:?}");
    }
    let told = std::fs::read_to_string(here.path("tools/told")).unwrap();
    let expected = "--error-exitcode 99 --report-api-errors no ";
    assert!(told.starts_with(expected), "{told}");
    assert!(
        told.contains("ringtree check-gpu --part few-kernels"),
        "{told}"
    );
    assert_eq!(told.lines().count(), 1);
}

#[test]
fn what_compute_sanitizer_finds_is_a_failure() {
    let here = Elsewhere::new(WITH_AN_ERROR);
    let output = here.check(&["--only", "sanitizer"]);
    assert_eq!(output.status.code(), Some(1));
    let complaints = text(&output.stderr);
    assert!(
        complaints.starts_with("ringtree check-gpu: FAILED: kernels under compute-sanitizer: "),
        "{complaints}"
    );
    assert!(complaints.contains("exit status: 99"), "{complaints}");
    assert_eq!(complaints.lines().count(), 1, "{complaints}");
    let said = text(&output.stdout);
    assert!(
        said.contains("Invalid __global__ write of size 4 bytes"),
        "{said}"
    );
}

#[test]
fn a_part_that_hangs_is_ended_with_whom_it_has_started() {
    let here = Elsewhere::new(HANGING);
    let output = here.check(&["--only", "sanitizer", "--patience", "2"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        text(&output.stderr),
        "ringtree check-gpu: FAILED: kernels under compute-sanitizer: there was no end within 2 s\n"
    );
    let started = std::fs::read_to_string(here.path("tools/started")).unwrap();
    let process = Path::new("/proc").join(started.trim());
    let is_there = || {
        let state = std::fs::read_to_string(process.join("stat")).unwrap_or_default();
        // Dead, if nobody has taken note of it yet.
        !state.is_empty() && !state.contains(") Z ")
    };
    let start = Instant::now();
    while is_there() {
        assert!(start.elapsed() < Duration::from_secs(20), "it is left over");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Each of `places`, a part and what is said of it, is among the failures.
fn assert_is_found(plant: &str, sections: &str, places: &[(&str, &str)]) {
    let arguments = ["--fake", "--ranks-max", "2", "--plant", plant];
    let output = check(&[&arguments[..], &["--only", sections]].concat());
    assert_eq!(output.status.code(), Some(1), "{plant}");
    let complaints = text(&output.stderr);
    for (place, what) in places {
        let is_it = |line: &str| line.contains(&format!("FAILED: {place}")) && line.contains(what);
        assert!(
            complaints.lines().any(is_it),
            "{plant}, {place}: {complaints}"
        );
    }
}

#[test]
fn a_skipped_fold_is_found() {
    assert_is_found(
        "skipped-fold",
        "kernels,collectives",
        &[
            ("kernels: ", "folds differ from the CPU's"),
            ("collectives, processes, IPC, 2 ranks: ", "wrong elements: "),
            ("collectives, processes, TCP, 2 ranks: ", "wrong elements: "),
        ],
    );
}

#[test]
fn a_wait_that_is_released_early_is_found() {
    let early = "went on before the ranks had met";
    assert_is_found(
        "early-release",
        "ends,collectives",
        &[
            ("a rank is killed, IPC", early),
            ("a rank stands still, TCP", early),
            ("collectives, ", "wrong elements: "),
        ],
    );
}

#[test]
fn a_failed_operation_that_is_reported_good_is_found() {
    let killed = "was reported good although rank 2 was killed in it";
    let stopped = "was reported good although rank 2 stood still in it";
    assert_is_found(
        "failed-reported-good",
        "ends",
        &[
            ("a rank is killed, IPC", killed),
            ("a rank is killed, TCP", killed),
            ("a rank stands still", stopped),
        ],
    );
}

#[test]
fn wrong_usage_is_refused() {
    for arguments in [
        &["--plant", "skipped-fold"][..],
        &["--fake", "--only", "speed"],
        &["--only", "everything"],
        &["--ranks-max", "9"],
        &["--minutes", "0"],
        &["--format", "xml"],
    ] {
        let output = check(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty());
    }
}

/// Where there is a GPU, this is not the place to check it for minutes.
#[test]
fn without_a_gpu_there_is_one_line() {
    if ringtree::device::cuda::count().is_ok() {
        return;
    }
    let output = check(&[]);
    assert_eq!(output.status.code(), Some(1));
    let complaints = text(&output.stderr);
    assert_eq!(complaints.lines().count(), 1, "{complaints}");
    assert!(complaints.contains("no CUDA here: "), "{complaints}");
    assert!(output.stdout.is_empty());
}

#[test]
fn device_buffers_are_measured_over_what_was_asked_for() {
    for (memory, transport, over) in [
        ("device", "cuda", "fake"),
        ("registered", "cuda", "fake"),
        ("device", "tcp", "tcp"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_ringtree"))
            .args(["bench", "all-reduce", "--format", "csv"])
            .args(["--memory", memory, "--transport", transport])
            .args(["--sizes", "8,100K", "--iters", "3"])
            .env("RINGTREE_FAKE_DEVICE", "1")
            .output()
            .unwrap();
        let (said, complaints) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{complaints}");
        assert_eq!(said.lines().count(), 3, "{said}");
        for line in said.lines().skip(1) {
            let cells: Vec<_> = line.split(',').collect();
            assert_eq!((cells[2], cells[13]), (over, "0"), "{line}");
        }
    }
}
