//! Whole runs of `mingpt` on real processes, small enough to be quick.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A model and a run that take little time.
const SMALL: &[&str] = &[
    "--steps",
    "8",
    "--batch",
    "8",
    "--layers",
    "1",
    "--heads",
    "2",
    "--width",
    "16",
    "--block",
    "16",
    "--every",
    "2",
    "--validate-every",
    "4",
    "--validation-sequences",
    "8",
    "--warmup",
    "2",
];
/// How long a run may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn mingpt() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mingpt"));
    for name in [
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "RAYON_NUM_THREADS",
    ] {
        command.env_remove(name);
    }
    // Bits are compared: whatever is measured must not choose the order of a sum.
    command.env("RINGTREE_TUNING", "built-in");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The small run's settings, and before them `own` ones.
fn settings<'a>(own: &[&'a str]) -> Vec<&'a str> {
    let is_open = |pair: &&[&str]| !own.contains(&pair[0]);
    let rest = SMALL.chunks(2).filter(is_open).flatten().copied();
    rest.chain(own.iter().copied()).collect()
}

/// Starts a small run on `ranks` processes.
fn start(ranks: usize, arguments: &[&str]) -> Vec<Child> {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port().to_string();
    drop(free);
    let rank = |rank: usize| {
        let numbers = [("RANK", rank), ("LOCAL_RANK", rank)];
        let sizes = [("WORLD_SIZE", ranks), ("LOCAL_WORLD_SIZE", ranks)];
        let numbers = numbers.iter().chain(&sizes);
        mingpt()
            .args(settings(arguments))
            .envs(numbers.map(|(name, number)| (*name, number.to_string())))
            .envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &port)])
            .spawn()
            .unwrap()
    };
    (0..ranks).map(rank).collect()
}

/// The standard output of rank 0 of a run that goes well.
fn finish(ranks: Vec<Child>) -> String {
    let ends: Vec<Output> = ranks
        .into_iter()
        .map(|rank| rank.wait_with_output().unwrap())
        .collect();
    for end in &ends {
        assert!(
            end.status.success(),
            "{}",
            String::from_utf8_lossy(&end.stderr)
        );
    }
    String::from_utf8_lossy(&ends[0].stdout).into_owned()
}

fn last_line(ranks: usize, arguments: &[&str]) -> String {
    finish(start(ranks, arguments))
        .lines()
        .last()
        .unwrap()
        .to_owned()
}

/// The loss in a last line.
fn loss(line: &str) -> f64 {
    line.split(' ').nth(3).unwrap().parse().unwrap()
}

/// Checkpoints are written beside the training.
fn wait_for_file(path: &Path) {
    let started = Instant::now();
    while !path.exists() {
        let waited = started.elapsed();
        assert!(waited < PATIENCE, "{} does not come", path.display());
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn one_rank_and_two_learn_the_same() {
    let (one, two) = (last_line(1, &[]), last_line(2, &[]));
    assert!(
        one.starts_with("step 8 loss ") && one.contains(" weights "),
        "{one}"
    );
    assert!((loss(&one) - loss(&two)).abs() < 2e-3, "{one}\n{two}");
    assert_eq!(two, last_line(2, &[]), "equal runs end alike");
}

/// The loss of every step of a run of `ranks` processes.
fn curve(ranks: usize) -> Vec<f64> {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().to_str().unwrap();
    finish(start(ranks, &["--steps", "30", "--checkpoint", place]));
    let metrics = fs::read_to_string(directory.path().join("metrics.jsonl")).unwrap();
    let loss = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        line["loss"].as_f64().unwrap()
    };
    metrics.lines().map(loss).collect()
}

#[test]
fn one_two_and_four_ranks_follow_the_same_curve() {
    let one = curve(1);
    assert_eq!(one.len(), 30);
    assert!(one[29] < one[0], "{one:?}");
    for ranks in [2, 4] {
        // Every checkpoint on the way has compared the replicas' hashes.
        let many = curve(ranks);
        let differs = |(one, many): (&f64, &f64)| (one - many).abs() > 2e-3;
        assert!(!one.iter().zip(&many).any(differs), "{one:?}\n{many:?}");
    }
}

#[test]
fn parts_of_a_batch_are_the_batch() {
    let (whole, parts) = (last_line(2, &[]), last_line(2, &["--accumulate", "2"]));
    assert!(
        (loss(&whole) - loss(&parts)).abs() < 2e-3,
        "{whole}\n{parts}"
    );
}

#[test]
fn gradients_of_16_bits_on_the_wire_teach_nearly_the_same() {
    let (whole, half) = (last_line(2, &[]), last_line(2, &["--wire", "bf16"]));
    assert!((loss(&whole) - loss(&half)).abs() < 0.02, "{whole}\n{half}");
    assert_ne!(whole, half);
}

#[test]
fn a_killed_run_goes_on_and_ends_as_an_undisturbed_one() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("run");
    let steps = ["--steps", "80", "--every", "7"];
    let arguments = [&steps[..], &["--checkpoint", place.to_str().unwrap()]].concat();
    let mut ranks = start(2, &arguments);
    wait_for_file(&place.join("step-00000007.json"));
    for rank in &mut ranks {
        rank.kill().unwrap();
        rank.wait().unwrap();
    }
    let output = finish(start(2, &arguments));
    let word = |line: &str| line.strip_prefix("resumed at step ").map(str::to_owned);
    let resumed: u64 = output.lines().find_map(word).unwrap().parse().unwrap();
    assert!(
        (7..80).contains(&resumed),
        "killed too late, or resumed at {resumed}"
    );
    assert_eq!(output.lines().last().unwrap(), last_line(2, &steps));

    let metrics = fs::read_to_string(place.join("metrics.jsonl")).unwrap();
    let field = |line: &str, name: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        line[name].to_string()
    };
    let told: Vec<_> = metrics.lines().map(|line| field(line, "step")).collect();
    let all: Vec<_> = (1..=80).map(|step: u64| step.to_string()).collect();
    assert_eq!(told, all);
    let run = field(metrics.lines().next().unwrap(), "run");
    assert!(
        metrics.lines().all(|line| field(line, "run") == run),
        "{metrics}"
    );
    assert!(
        fs::read_to_string(place.join("loss.svg"))
            .unwrap()
            .contains("</svg>")
    );

    // The checkpoint holds the model whose loss the training has told.
    let mut validation = mingpt();
    validation
        .args(["validate", "--once", "--validation-sequences", "8"])
        .args(arguments);
    let validation = validation.output().unwrap();
    let told = String::from_utf8_lossy(&validation.stdout).into_owned();
    let expected = format!(
        "step 80 validation {:.4}\n",
        loss(output.lines().last().unwrap())
    );
    assert_eq!(
        told,
        expected,
        "{}",
        String::from_utf8_lossy(&validation.stderr)
    );
}

#[test]
fn a_validator_says_what_is_in_the_place_of_its_checkpoints() {
    let directory = tempfile::tempdir().unwrap();
    let (file, nothing) = (
        directory.path().join("file"),
        directory.path().join("misspelt"),
    );
    fs::write(&file, "no folder").unwrap();
    for (place, words) in [
        (&file, "is no folder"),
        (&nothing, "there is no checkpoint in "),
    ] {
        let mut validation = mingpt();
        validation
            .args(["validate", "--once", "--checkpoint"])
            .arg(place);
        let end = validation.output().unwrap();
        let message = String::from_utf8_lossy(&end.stderr).into_owned();
        assert_eq!(end.status.code(), Some(1), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(message.contains(words), "{message}");
        assert!(message.contains(place.to_str().unwrap()), "{message}");
    }
    let mut validation = mingpt();
    validation.args(["validate", "--checkpoint"]).arg(&nothing);
    let mut waiting = validation.spawn().unwrap();
    let mut line = String::new();
    let errors = waiting.stderr.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(errors), &mut line).unwrap();
    waiting.kill().unwrap();
    waiting.wait().unwrap();
    assert!(
        line.contains("misspelt yet; waiting for the first"),
        "{line}"
    );
}

#[test]
fn a_batch_that_does_not_divide_is_one_clear_line() {
    let ranks = start(3, &[]);
    for rank in ranks {
        let end = rank.wait_with_output().unwrap();
        let message = String::from_utf8_lossy(&end.stderr).into_owned();
        assert_eq!(end.status.code(), Some(2), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(
            message.contains("--batch 8 must be a multiple of 3"),
            "{message}"
        );
    }
}

#[test]
fn a_checkpoint_of_another_model_is_one_clear_line() {
    let directory = tempfile::tempdir().unwrap();
    let arguments = ["--checkpoint", directory.path().to_str().unwrap()];
    finish(start(1, &arguments));
    let mut other = start(1, &[&arguments[..], &["--width", "32"]].concat());
    let end = other.remove(0).wait_with_output().unwrap();
    let message = String::from_utf8_lossy(&end.stderr).into_owned();
    assert_eq!(end.status.code(), Some(2), "{message}");
    assert!(
        message.contains("was made with --width 16, not 32"),
        "{message}"
    );
}

#[test]
fn a_checkpoint_of_another_text_seed_or_batch_is_one_clear_line() {
    let directory = tempfile::tempdir().unwrap();
    let other_text = directory.path().join("text");
    fs::write(&other_text, "another text\n".repeat(500)).unwrap();
    let place = directory.path().join("run");
    let arguments = ["--checkpoint", place.to_str().unwrap()];
    finish(start(1, &arguments));
    let others = [
        (
            ["--text", other_text.to_str().unwrap()],
            "was made on a text of ",
        ),
        (["--seed", "2"], "was made with --seed 1, not 2"),
        (["--batch", "4"], "was made with --batch 8, not 4"),
    ];
    for (other, expected) in others {
        let mut rank = start(1, &[&arguments[..], &other[..]].concat());
        let end = rank.remove(0).wait_with_output().unwrap();
        let message = String::from_utf8_lossy(&end.stderr).into_owned();
        assert_eq!(end.status.code(), Some(2), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(message.contains(expected), "{message}");
    }
}
