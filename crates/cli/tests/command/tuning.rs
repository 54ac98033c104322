//! Tests the file, set by `RINGTREE_TUNING`, in which ranks store the tuning table.

use ringtree::plan::TuningTable;
use std::path::Path;
use std::process::{Command, Output};

/// Runs `ringtree` without the settings of this process's environment.
fn ringtree(arguments: &[&str], tuning: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringtree"));
    for name in ["RANK", "RINGTREE_TRANSPORT", "RINGTREE_HOST_ID"] {
        command.env_remove(name);
    }
    command.args(arguments).env("RINGTREE_TUNING", tuning);
    command.output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns the predicted time of a barrier of two ranks with this tuning setting, in microseconds.
fn predicted_us(tuning: &Path) -> f64 {
    let line = "bench barrier --ranks 2 --algorithm dissemination --iters 3 --format csv --explain";
    let output = ringtree(&line.split(' ').collect::<Vec<_>>(), tuning);
    assert!(output.status.success(), "{}", stderr(&output));
    let why = "barrier over 2 ranks: dissemination, as requested; predicted";
    assert!(stderr(&output).contains(why), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    let last = text.trim().rsplit(',').next().unwrap();
    last.parse().unwrap()
}

#[test]
fn measured_table_is_stored_and_reused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tuning.json");
    predicted_us(&path);
    let text = std::fs::read_to_string(&path).unwrap();
    let table = TuningTable::parse(&text).unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);

    let mut slower = table;
    slower.shm.alpha_s = 1.0;
    slower.tcp.alpha_s = 1.0;
    std::fs::write(&path, slower.to_string()).unwrap();
    assert!(predicted_us(&path) >= 1e6);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), slower.to_string());

    // The prediction is the cost of 1.25 transfers in shared memory, or of one message over TCP.
    let built_in = TuningTable::default();
    let usual = [1.25 * built_in.shm.alpha_s, built_in.tcp.alpha_s];
    let found = predicted_us(Path::new("built-in"));
    assert!(
        usual.iter().any(|one| (one * 1e6 - found).abs() < 1e-3),
        "{found}"
    );
}

/// Runs a barrier of two ranks. Each rank first runs `script`, which can give ranks different
/// settings. Returns the exit code and standard error.
fn run_two(script: &str, tuning: &Path) -> (Option<i32>, String) {
    let program = env!("CARGO_BIN_EXE_ringtree");
    let script = format!("{script} exec \"$0\" bench barrier --iters 1");
    let line = [
        "run",
        "--nproc-per-node",
        "2",
        "--",
        "sh",
        "-c",
        &script,
        program,
    ];
    let output = ringtree(&line, tuning);
    (output.status.code(), stderr(&output))
}

#[test]
fn ranks_with_and_without_tuning_file_fail() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tuning.json");
    std::fs::write(&path, TuningTable::default().to_string()).unwrap();
    let script = "[ $RANK = 0 ] || export RINGTREE_TUNING=$RINGTREE_TUNING.other;";
    let (code, message) = run_two(script, &path);
    assert_ne!(code, Some(0));
    assert!(
        message.contains("RINGTREE_TUNING differs") && message.contains("does not exist yet"),
        "{message}"
    );
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn each_host_has_its_own_tuning_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tuning.json");
    let script = "export RINGTREE_HOST_ID=$RANK RINGTREE_TUNING=$RINGTREE_TUNING.$RANK;";
    let (code, message) = run_two(script, &path);
    assert_eq!(code, Some(0), "{message}");
    let kept = |rank: usize| {
        let path = folder.path().join(format!("tuning.json.{rank}"));
        TuningTable::parse(&std::fs::read_to_string(path).unwrap()).unwrap()
    };
    assert_eq!(kept(0), kept(1));
    assert_eq!(kept(0).shm, TuningTable::default().shm);
    assert_ne!(kept(0).tcp, TuningTable::default().tcp);
}

#[test]
fn unwritable_tuning_file_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let (code, message) = run_two("", &folder.path().join("none/tuning.json"));
    assert_ne!(code, Some(0));
    assert!(message.contains("rank 0 cannot write"), "{message}");
}

#[test]
fn doctor_reports_source_of_tuning_table() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tuning.json");
    let doctor = |tuning: &Path| {
        let output = ringtree(&["doctor"], tuning);
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(doctor(Path::new("")).contains("otherwise measured at startup (the default)"));
    assert!(doctor(Path::new("built-in")).contains("built-in (RINGTREE_TUNING)"));
    assert!(doctor(&path).contains("then written to"));
    std::fs::write(&path, TuningTable::default().to_string()).unwrap();
    assert!(doctor(&path).contains("read from"));
    std::fs::write(&path, "nonsense").unwrap();
    assert!(doctor(&path).contains("malformed"));
}

#[test]
fn variable_selects_algorithm_of_bench() {
    let bench = |algorithm: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringtree"));
        let line = "bench all-reduce --ranks 2 --sizes 64 --iters 3 --format csv";
        command.args(line.split(' ')).env_remove("RANK");
        command.env("RINGTREE_ALGORITHM", algorithm);
        command.output().unwrap()
    };
    let output = bench("recursive-doubling");
    assert!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(",recursive-doubling,"), "{text}");

    let output = bench("ribg");
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    let line = "RINGTREE_ALGORITHM: unknown algorithm 'ribg'; use one of";
    assert_eq!(
        stderr(&output).matches(line).count(),
        1,
        "{}",
        stderr(&output)
    );
}
