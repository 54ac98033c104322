//! The command `ringtree check-gpu`, on the fake device: it finds nothing wrong where nothing is,
//! and finds what was planted.

#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

fn check(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ringtree"))
        .arg("check-gpu")
        .args(arguments)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn all_is_well_on_the_fake_device() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("tables");
    let output = check(&["--fake", "--out", out.to_str().unwrap(), "--format", "csv"]);
    let (said, complaints) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{said}\n{complaints}");
    assert!(said.starts_with("# probe\nwhat,value,unit\n"), "{said}");
    assert_eq!(
        complaints,
        "ringtree check-gpu: all is well on the fake device\n"
    );
    let checks = std::fs::read_to_string(out.join("checks.csv")).unwrap();
    let mut lines = checks.lines();
    assert_eq!(lines.next(), Some("part,ranks,checked,wrong,seconds"));
    for line in lines {
        let cells: Vec<_> = line.rsplit(',').collect();
        assert_eq!(cells[1], "0", "{line}");
        assert_ne!(cells[2], "0", "nothing was checked: {line}");
    }
    assert!(out.join("probe.csv").exists());
}

#[test]
fn what_is_planted_is_found() {
    for (plant, places) in [
        (
            "skipped-fold",
            [
                ("kernels: ", "folds differ from the CPU's"),
                ("collectives, processes, IPC, 2 ranks: ", "wrong elements: "),
                ("collectives, processes, TCP, 2 ranks: ", "wrong elements: "),
            ],
        ),
        (
            "early-release",
            [
                ("a rank is killed, IPC", "went on before the ranks had met"),
                (
                    "a rank stands still, TCP",
                    "went on before the ranks had met",
                ),
                ("collectives, ", "wrong elements: "),
            ],
        ),
        (
            "failed-reported-good",
            [
                (
                    "a rank is killed, IPC",
                    "was reported good although rank 2 was killed in it",
                ),
                (
                    "a rank is killed, TCP",
                    "was reported good although rank 2 was killed in it",
                ),
                (
                    "a rank stands still",
                    "was reported good although rank 2 stood still in it",
                ),
            ],
        ),
    ] {
        let output = check(&["--fake", "--ranks-max", "2", "--plant", plant]);
        assert_eq!(output.status.code(), Some(1), "{plant}");
        let complaints = text(&output.stderr);
        for (place, what) in places {
            let is_it =
                |line: &str| line.contains(&format!("FAILED: {place}")) && line.contains(what);
            assert!(
                complaints.lines().any(is_it),
                "{plant}, {place}: {complaints}"
            );
        }
    }
}

#[test]
fn nothing_is_planted_on_a_gpu() {
    let output = check(&["--plant", "skipped-fold"]);
    assert_eq!(output.status.code(), Some(2));
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
    for (transport, over) in [("cuda", "fake"), ("tcp", "tcp")] {
        let output = Command::new(env!("CARGO_BIN_EXE_ringtree"))
            .args([
                "bench",
                "all-reduce",
                "--memory",
                "device",
                "--format",
                "csv",
            ])
            .args([
                "--sizes",
                "8,100K",
                "--iters",
                "3",
                "--transport",
                transport,
            ])
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
