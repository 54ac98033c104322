//! Tests `ringtree check-gpu`, and `bench` on device buffers, with a fake driver, so that all of
//! this code has run before it is used with a real driver.

#![allow(clippy::unwrap_used)]

#[path = "../../../tests/gpu/device/driver.rs"]
mod driver;

use std::path::Path;
use std::process::{Command, Output};
use tempfile::TempDir;

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_ringtree"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A directory that contains only the program. No cargo, repository or home directory is reachable.
struct Elsewhere(TempDir);

impl Elsewhere {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("ringtree");
        std::fs::copy(env!("CARGO_BIN_EXE_ringtree"), program).unwrap();
        Self(folder)
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    /// Runs the check on the fake driver with the given settings.
    fn check(&self, arguments: &[&str], settings: &[(&str, &str)]) -> Output {
        Command::new(self.path("ringtree"))
            .args(["check-gpu", "--bytes-max", "70000", "--ranks-max", "2"])
            .args(arguments)
            .current_dir(self.0.path())
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("LD_LIBRARY_PATH", driver::folder())
            // Variables of a different job, which the check must ignore.
            .env("RANK", "7")
            .env("RINGTREE_TRANSPORT", "tcp")
            .envs(settings.iter().copied())
            .output()
            .unwrap()
    }
}

/// Asserts that every part checked something and found nothing wrong. Returns the number of parts.
fn assert_all_parts_passed(table: &Path) -> usize {
    let checks = std::fs::read_to_string(table).unwrap();
    let mut lines = checks.lines();
    assert_eq!(lines.next(), Some("part,ranks,checked,wrong,seconds"));
    let check = |line: &str| {
        let cells: Vec<_> = line.rsplit(',').collect();
        assert_eq!(cells[1], "0", "{line}");
        assert_ne!(cells[2], "0", "nothing was checked: {line}");
    };
    lines.map(check).count()
}

#[test]
fn every_section_runs_on_strict_fake_driver() {
    let here = Elsewhere::new();
    // Make visible only the two GPUs that can access each other's memory.
    let settings = [("STRICT", "1"), ("VISIBLE_GPUS", "2")];
    let output = here.check(&["--out", "tables"], &settings);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{stdout}\n{stderr}");
    assert!(stderr.is_empty(), "{stderr}");
    assert!(stdout.ends_with("all GPU checks passed\n"), "{stdout}");
    let parts = assert_all_parts_passed(&here.path("tables/checks.csv"));
    // The litmus test is counted once, because only the mapped path runs it.
    assert_eq!(parts, 1 + 3 * (7 + 2 + 1 + 1) + 1, "{stdout}");
    let probe = std::fs::read_to_string(here.path("tables/probe.csv")).unwrap();
    for found in ["GPU 0", "GPU 1", "mapped: "] {
        assert!(probe.contains(found), "{probe}");
    }
    for path in ["mapped", "staged_over_shm", "staged_over_tcp"] {
        let table = here.path(&format!("tables/all_reduce_{path}.csv"));
        let rows = std::fs::read_to_string(table).unwrap();
        let sizes: Vec<_> = rows
            .lines()
            .map(|row| row.split(',').next().unwrap())
            .collect();
        assert_eq!(sizes, ["bytes", "8", "1024", "65536"]);
    }
    assert_eq!(
        std::fs::read_to_string(here.path("tables/failures.csv")).unwrap(),
        "failure\n"
    );
}

/// A toolkit's stub precedes the driver on the search path. It can be opened, but its functions do
/// not work.
#[test]
fn stub_does_not_hide_driver() {
    let here = Elsewhere::new();
    let drivers = driver::folder();
    for name in [driver::NAME, driver::TOOLKIT_NAME] {
        let stubs = here.path(name).join("stubs");
        std::fs::create_dir_all(&stubs).unwrap();
        std::fs::copy(drivers.join(driver::NAME), stubs.join(name)).unwrap();
        let both = format!("{}:{}", stubs.display(), drivers.display());
        let check = |path: &str| {
            let output = here.check(&["--only", "probe"], &[("LD_LIBRARY_PATH", path)]);
            (output.status.code(), text(&output.stderr))
        };
        assert_eq!(check(&both), (Some(0), String::new()), "{name}");
    }
    // If only a stub is found, the error names the cause.
    let stub = here.path(driver::NAME).join("stubs");
    std::os::unix::fs::symlink(driver::NAME, stub.join(driver::TOOLKIT_NAME)).unwrap();
    let stub = stub.display().to_string();
    let output = here.check(&["--only", "probe"], &[("LD_LIBRARY_PATH", &stub)]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("libcuda.so.1: it is a stub"), "{stderr}");
}

/// The check reports an unavailable path in one message and does not count it as a failure.
#[test]
fn unavailable_mapped_path_is_reported_once_and_skipped() {
    let here = Elsewhere::new();
    let arguments = ["--only", "speed,collectives", "--out", "tables"];
    let output = here.check(&arguments, &[("NO_IPC", "1")]);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{stdout}\n{stderr}");
    let end = "all GPU checks passed; the mapped path was not checked with 2 or more ranks\n";
    assert!(stdout.ends_with(end), "{stdout}");
    let checks = std::fs::read_to_string(here.path("tables/checks.csv")).unwrap();
    let why = "mapped: unavailable: rank 0: cuMemExportToShareableHandle";
    assert_eq!(checks.matches(why).count(), 1, "{checks}");
    for path in ["staged over shm", "staged over tcp"] {
        assert_eq!(checks.matches(path).count(), 2, "{checks}");
    }
    assert!(!here.path("tables/all_reduce_mapped.csv").exists());
}

/// The check counts a driver error as a failure of every part in which it occurs.
#[test]
fn driver_error_is_a_failure_of_the_check() {
    let here = Elsewhere::new();
    let output = here.check(&["--only", "collectives"], &[("STRANGE_CODE", "12345")]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = text(&output.stderr);
    let is_it = |line: &str| {
        line.starts_with("ringtree check-gpu: FAILED: collectives, ") && line.contains("12345")
    };
    assert!(stderr.lines().any(is_it), "{stderr}");
}

/// On real GPUs, cudarc allocates its slices from memory pools, whose calls never wait. The habits
/// that free and allocate memory must use the calls that may wait.
#[test]
fn habits_free_and_allocate_with_calls_that_may_wait() {
    let here = Elsewhere::new();
    let settings = [("POOLS", "1"), ("STRANGE_CODE", "12345")];
    let output = here.check(&["--only", "habits"], &settings);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let habits = ["frees memory", "allocates memory"];
    let begin = habits.map(|habit| format!("ringtree check-gpu: FAILED: habit: {habit}, "));
    for begin in &begin {
        let is_it = |line: &str| line.starts_with(begin) && line.contains("12345");
        assert!(stderr.lines().any(is_it), "{stderr}");
    }
    let is_known = |line: &str| begin.iter().any(|begin| line.starts_with(begin));
    assert!(stderr.lines().all(is_known), "{stderr}");
}

#[test]
fn hanging_part_is_stopped() {
    let here = Elsewhere::new();
    let arguments = ["--only", "ends", "--patience", "1"];
    let output = here.check(&arguments, &[]);
    // The other ranks wait for the suspended rank longer than the limit of 1 s.
    assert_eq!(output.status.code(), Some(1));
    let stderr = text(&output.stderr);
    let what = "FAILED: one rank suspended, staged over shm, 3 ranks: did not finish within 1 s";
    assert!(stderr.contains(what), "{stderr}");
}

#[test]
fn invalid_arguments_exit_with_code_2() {
    for arguments in [
        &["--only", "everything"][..],
        &["--ranks-max", "9"],
        &["--minutes", "0"],
        &["--format", "xml"],
    ] {
        let output = program().arg("check-gpu").args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty());
    }
}

/// Skipped on machines with a GPU, because the check would run for minutes.
#[test]
fn missing_gpu_is_reported_in_one_line() {
    if ringtree::cuda::count().is_ok() {
        return;
    }
    let output = program().arg("check-gpu").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = text(&output.stderr);
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.contains("CUDA is not available: "), "{stderr}");
    assert!(output.stdout.is_empty());
}

#[test]
fn bench_measures_device_buffers_on_requested_path() {
    for (transport, device_path, over) in [
        ("shm", "mapped", "mapped"),
        ("shm", "staged", "shm"),
        ("tcp", "auto", "tcp"),
    ] {
        let output = program()
            .args(["bench", "all-reduce", "--format", "csv"])
            .args(["--memory", "device", "--transport", transport])
            .args(["--sizes", "8,100K", "--iters", "3"])
            .env("LD_LIBRARY_PATH", driver::folder())
            .env("RINGTREE_DEVICE_PATH", device_path)
            .output()
            .unwrap();
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{stderr}");
        assert_eq!(stderr.matches("device buffers are ").count(), 1, "{stderr}");
        assert_eq!(stdout.lines().count(), 3, "{stdout}");
        for line in stdout.lines().skip(1) {
            let cells: Vec<_> = line.split(',').collect();
            assert_eq!((cells[2], cells[13]), (over, "0"), "{line}");
        }
    }
}
