//! The command `ringtree check-gpu`, and `bench` on device buffers, on a pretended driver: every
//! part of them has run before it meets a real one.

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

/// A folder with nothing but the program, where nothing else is found: no cargo, no repository, no
/// home.
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

    /// The check, on the pretended driver as the settings make it.
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

/// Nothing wrong, and something checked, in each part.
fn assert_all_is_well(table: &Path) -> usize {
    let checks = std::fs::read_to_string(table).unwrap();
    let mut lines = checks.lines();
    assert_eq!(lines.next(), Some("part,ranks,checked,wrong,seconds"));
    let well = |line: &str| {
        let cells: Vec<_> = line.rsplit(',').collect();
        assert_eq!(cells[1], "0", "{line}");
        assert_ne!(cells[2], "0", "nothing was checked: {line}");
    };
    lines.map(well).count()
}

#[test]
fn every_section_runs_on_a_strict_pretended_driver() {
    let here = Elsewhere::new();
    // Those that reach each other's memory.
    let settings = [("STRICT", "1"), ("VISIBLE_GPUS", "2")];
    let output = here.check(&["--out", "tables"], &settings);
    let (said, complaints) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{said}\n{complaints}");
    assert!(complaints.is_empty(), "{complaints}");
    assert!(said.ends_with("all GPU checks passed\n"), "{said}");
    let parts = assert_all_is_well(&here.path("tables/checks.csv"));
    // The litmus is of the mapped path alone.
    assert_eq!(parts, 1 + 3 * (7 + 2 + 1 + 1) + 1, "{said}");
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

/// A toolkit's stub, which opens but does not work, stands before the driver on the search path.
#[test]
fn a_stub_does_not_hide_the_driver() {
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
    // Where there is no other, the line says what is wrong.
    let stub = here.path(driver::NAME).join("stubs");
    std::os::unix::fs::symlink(driver::NAME, stub.join(driver::TOOLKIT_NAME)).unwrap();
    let stub = stub.display().to_string();
    let output = here.check(&["--only", "probe"], &[("LD_LIBRARY_PATH", &stub)]);
    let complaints = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{complaints}");
    assert!(
        complaints.contains("libcuda.so.1: it is a stub"),
        "{complaints}"
    );
}

/// The check reports an unavailable path in one message and does not count it as a failure.
#[test]
fn where_memory_cannot_be_mapped_the_check_says_so_once_and_goes_on() {
    let here = Elsewhere::new();
    let arguments = ["--only", "speed,collectives", "--out", "tables"];
    let output = here.check(&arguments, &[("NO_IPC", "1")]);
    let (said, complaints) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{said}\n{complaints}");
    let end = "all GPU checks passed; the mapped path was not checked with 2 or more ranks\n";
    assert!(said.ends_with(end), "{said}");
    let checks = std::fs::read_to_string(here.path("tables/checks.csv")).unwrap();
    let why = "mapped: unavailable: rank 0: cuMemExportToShareableHandle";
    assert_eq!(checks.matches(why).count(), 1, "{checks}");
    for path in ["staged over shm", "staged over tcp"] {
        assert_eq!(checks.matches(path).count(), 2, "{checks}");
    }
    assert!(!here.path("tables/all_reduce_mapped.csv").exists());
}

/// A driver that fails is a failure of the check, in each part that meets it.
#[test]
fn what_goes_wrong_is_a_failure() {
    let here = Elsewhere::new();
    let output = here.check(&["--only", "collectives"], &[("STRANGE_CODE", "12345")]);
    assert_eq!(output.status.code(), Some(1));
    let complaints = text(&output.stderr);
    let is_it = |line: &str| {
        line.starts_with("ringtree check-gpu: FAILED: collectives, ") && line.contains("12345")
    };
    assert!(complaints.lines().any(is_it), "{complaints}");
}

/// Slices of real GPUs come from pools, which wait for nothing: the habits of freeing and
/// allocating make the calls that may wait.
#[test]
fn the_habits_free_and_allocate_by_calls_that_may_wait() {
    let here = Elsewhere::new();
    let settings = [("POOLS", "1"), ("STRANGE_CODE", "12345")];
    let output = here.check(&["--only", "habits"], &settings);
    let complaints = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{complaints}");
    let habits = ["frees memory", "allocates memory"];
    let begin = habits.map(|habit| format!("ringtree check-gpu: FAILED: habit: {habit}, "));
    for begin in &begin {
        let is_it = |line: &str| line.starts_with(begin) && line.contains("12345");
        assert!(complaints.lines().any(is_it), "{complaints}");
    }
    let is_known = |line: &str| begin.iter().any(|begin| line.starts_with(begin));
    assert!(complaints.lines().all(is_known), "{complaints}");
}

#[test]
fn a_part_that_hangs_is_ended() {
    let here = Elsewhere::new();
    let arguments = ["--only", "ends", "--patience", "1"];
    let output = here.check(&arguments, &[]);
    // The other ranks wait longer than that for the stopped rank.
    assert_eq!(output.status.code(), Some(1));
    let complaints = text(&output.stderr);
    let what = "FAILED: one rank suspended, staged over shm, 3 ranks: did not finish within 1 s";
    assert!(complaints.contains(what), "{complaints}");
}

#[test]
fn wrong_usage_is_refused() {
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

/// Where there is a GPU, this is not the place to check it for minutes.
#[test]
fn without_a_gpu_there_is_one_line() {
    if ringtree::cuda::count().is_ok() {
        return;
    }
    let output = program().arg("check-gpu").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let complaints = text(&output.stderr);
    assert_eq!(complaints.lines().count(), 1, "{complaints}");
    assert!(
        complaints.contains("CUDA is not available: "),
        "{complaints}"
    );
    assert!(output.stdout.is_empty());
}

#[test]
fn device_buffers_are_measured_over_what_was_asked_for() {
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
        let (said, complaints) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{complaints}");
        assert_eq!(
            complaints.matches("device buffers are ").count(),
            1,
            "{complaints}"
        );
        assert_eq!(said.lines().count(), 3, "{said}");
        for line in said.lines().skip(1) {
            let cells: Vec<_> = line.split(',').collect();
            assert_eq!((cells[2], cells[13]), (over, "0"), "{line}");
        }
    }
}
