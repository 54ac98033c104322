//! Tests the training examples: their parts, and complete runs in real processes.

#[allow(dead_code)]
#[path = "../../../../examples/03_accumulation.rs"]
mod accumulation;
#[allow(dead_code)]
#[path = "../../../../examples/train_text/data.rs"]
mod data;
#[path = "../../../../examples/train_text/matrix.rs"]
mod matrix;
#[allow(dead_code)]
#[path = "../../../../examples/train_text/model.rs"]
mod model;
#[allow(dead_code)]
#[path = "../../../../examples/train_text/optimizer.rs"]
mod optimizer;
#[allow(dead_code)]
#[path = "../../../../examples/progress/mod.rs"]
mod progress;
#[allow(dead_code)]
#[path = "../../../../examples/train_text/random.rs"]
mod random;
#[allow(dead_code)]
#[path = "../../../../examples/train_text/replicas.rs"]
mod replicas;
#[allow(dead_code)]
#[path = "../../../../examples/15_training.rs"]
mod training;

use ringtree::ddp::Line;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Returns the path of an example in this test's target directory, after building it from these
/// sources.
pub(crate) fn program(example: &str) -> PathBuf {
    static PROGRAMS: OnceLock<PathBuf> = OnceLock::new();
    let programs = PROGRAMS.get_or_init(|| {
        let test = std::env::current_exe().unwrap();
        let target = test.parent().and_then(|deps| deps.parent()).unwrap();
        let profile = match target.file_name().and_then(|name| name.to_str()) {
            Some("debug") | None => "test",
            Some(profile) => profile,
        };
        // After a full `cargo test`, which builds the examples first, there is nothing to build.
        // But `cargo test --test launch` does not build them, and stale programs must not be
        // tested.
        let built = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--profile", profile])
            .args(["--example", "train_text", "--example", "15_training"])
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
            .status()
            .unwrap();
        assert!(built.success(), "the examples must build");
        target.join("examples")
    });
    programs.join(example)
}

fn train(arguments: &[&str]) -> Output {
    example(arguments).output().unwrap()
}

fn example(arguments: &[&str]) -> Command {
    let mut command = Command::new(program("train_text"));
    for name in ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"] {
        command.env_remove(name);
    }
    // The test compares runs, so measured values must not affect the order in which sums are added.
    command.env("RINGTREE_TUNING", "built-in");
    command.args(arguments);
    command
}

fn standard_output(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The values that a run printed for a step, as in "step 3  loss 2.3456  gradient 0.1234".
#[derive(Debug)]
struct Step {
    number: usize,
    loss: f64,
    gradient: f64,
}

fn steps(arguments: &[&str]) -> Vec<Step> {
    let output = train(arguments);
    assert!(output.status.success(), "{output:?}");
    let text = standard_output(&output);
    let verdicts = text.matches("replicas identical: yes (weights ").count();
    assert_eq!(verdicts, 1, "{text}");
    let step_of = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["step", number, "loss", loss, "gradient", gradient] = words[..] else {
            return None;
        };
        Some(Step {
            number: number.parse().unwrap(),
            loss: loss.parse().unwrap(),
            gradient: gradient.parse().unwrap(),
        })
    };
    text.lines().filter_map(step_of).collect()
}

/// With the same seed and global batch, a run does not depend on how the batch is split, except for
/// the rounding of sums that are added in a different order. The test also compares the gradient
/// norm: Adam takes nearly the same steps if all gradients are multiplied by a factor, so the
/// losses would not distinguish a sum from a mean.
#[test]
fn run_is_the_same_however_the_batch_is_split() {
    let run = ["--steps", "30", "--batch", "48"];
    let alone = steps(&[&run[..], &["--ranks", "1"]].concat());
    assert_eq!(alone.len(), 30, "expected one line per step");
    assert!(
        alone[29].loss < alone[0].loss - 0.5,
        "the loss must fall: {alone:?}"
    );
    let splits: [&[&str]; 3] = [
        &["--ranks", "4"],
        &["--ranks", "3", "--accumulate", "2"],
        &["--ranks", "1", "--accumulate", "4"],
    ];
    for split in splits {
        let shared = steps(&[&run[..], split].concat());
        assert_eq!(shared.len(), alone.len());
        for (alone, shared) in alone.iter().zip(&shared) {
            assert_eq!(alone.number, shared.number);
            let distance = (alone.loss - shared.loss).abs();
            let difference = (alone.gradient - shared.gradient).abs();
            assert!(
                distance.max(difference) < 2e-3,
                "{split:?}: {alone:?} {shared:?}"
            );
        }
    }
}

/// The outputs are 5.347 and 4.574, so the errors are −9.653 and −7.426. The expected gradients are
/// the means of 2 × error × (6, 2, 1) and 2 × error × (5, 2, 1), calculated by hand.
#[test]
fn accumulation_example_matches_hand_calculation() {
    let expected = [-95.048, -34.158, -17.079];
    let ways = accumulation::averaged().unwrap();
    assert_eq!(ways.len(), 2);
    for gradients in ways.iter().chain([&accumulation::accumulated().unwrap()]) {
        for (gradient, expected) in gradients.iter().zip(expected) {
            assert!((gradient - expected).abs() < 1e-9, "{gradients:?}");
        }
    }
}

/// A stream that records each write separately.
#[derive(Default)]
struct Writes(Vec<String>);

impl Write for &mut Writes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.push(String::from_utf8_lossy(bytes).into_owned());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Progress goes to standard error and results go to standard output. If both go to one file,
/// output of one stream could appear within a line that the other writes in two parts.
#[test]
fn progress_line_is_one_write_without_terminal() {
    let mut writes = Writes::default();
    progress::write_line(&mut writes, "progress: 1 of 5 steps");
    assert_eq!(writes.0, ["progress: 1 of 5 steps\n"]);

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("output");
    let stream = || {
        File::options()
            .create(true)
            .append(true)
            .open(&path)
            .unwrap()
    };
    let ended = example(&["--ranks", "2", "--steps", "10", "--batch", "8"])
        .stdout(stream())
        .stderr(stream())
        .status()
        .unwrap();
    assert!(ended.success());
    let text = std::fs::read_to_string(&path).unwrap();
    let of_progress: Vec<_> = text
        .lines()
        .filter(|line| line.contains("progress:"))
        .collect();
    assert_eq!(of_progress.len(), 5, "{text}");
    let is_whole = |line: &&str| line.starts_with("progress: ") && line.ends_with(" s left");
    assert!(of_progress.iter().all(is_whole), "{text}");
}

#[test]
fn one_changed_weight_on_one_rank_is_detected() {
    let output = train(&[
        "--ranks",
        "3",
        "--steps",
        "2",
        "--batch",
        "6",
        "--corrupt-rank",
        "1",
    ]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = standard_output(&output);
    let verdict: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("replicas"))
        .collect();
    assert_eq!(verdict.len(), 1, "{text}");
    assert!(verdict[0].starts_with("replicas identical: no ("), "{text}");
    assert!(verdict[0].ends_with("not the same on rank 1)"), "{text}");
}

#[test]
fn wrong_usage_prints_one_line_and_exits_with_2() {
    let cases: [&[&str]; 5] = [
        &["--ranks", "4", "--batch", "10"],
        &["--ranks", "0"],
        &["--steps", "many"],
        &["--learning-rate", "-1"],
        &["--ranks", "2", "--corrupt-rank", "2"],
    ];
    for arguments in cases {
        let output = train(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}: {output:?}");
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(message.lines().count(), 1, "{arguments:?}: {message}");
        let option = arguments
            .iter()
            .rfind(|word| word.starts_with("--"))
            .unwrap();
        assert!(message.contains(option), "{arguments:?}: {message}");
    }
}

#[test]
fn unreadable_text_is_named() {
    let output = train(&["--text", "/no/such/file"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(message.contains("/no/such/file"), "{message}");
}

#[test]
fn training_is_independent_of_ranks_and_interruptions() {
    let scratch = tempfile::tempdir().unwrap();
    let place = |name: String| scratch.path().join(name);
    // Trains with the checkpoints of each rank in the directory `name(rank)`.
    let train_at = |ranks, name: &(dyn Fn(usize) -> String + Sync), steps: u64| {
        let ends = ringtree::simulate(ranks, |comm| {
            let folder = place(name(comm.rank())).display().to_string();
            training::train(comm, &folder, steps / 30)
        });
        let ends: Vec<_> = ends.into_iter().map(Result::unwrap).collect();
        assert!(
            ends.iter().all(|end| *end == ends[0]),
            "the replicas must be equal"
        );
        ends.into_iter().next().unwrap()
    };
    let train = |ranks, name: &str, steps| train_at(ranks, &|_| format!("{name} {ranks}"), steps);
    let metrics = |name: &str| {
        let text = std::fs::read_to_string(place(name.into()).join("metrics.jsonl")).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        lines.collect::<Vec<Line>>()
    };
    let mut losses = Vec::new();
    for ranks in [1, 2, 4] {
        let (loss, weights) = train(ranks, "uninterrupted", 300);
        assert!(loss < 0.005, "the final loss is too high: {loss}");
        losses.push(loss);
        // The run is interrupted between two checkpoints, and not in the epoch of the last
        // checkpoint.
        train(ranks, "interrupted", 150);
        assert_eq!(train(ranks, "interrupted", 300), (loss, weights.clone()));
        let lines = |name: &str| metrics(&format!("{name} {ranks}")).len();
        assert_eq!((lines("uninterrupted"), lines("interrupted")), (300, 300));

        // When the run resumes, rank 0 uses another host's directory, which contains no checkpoint.
        train_at(ranks, &|rank| format!("host {rank} of {ranks}"), 150);
        let moved = |rank| format!("host {} of {ranks}", (rank + ranks - 1) % ranks);
        assert_eq!(train_at(ranks, &moved, 300), (loss, weights));
        let [before, after] =
            [0, ranks - 1].map(|host| metrics(&format!("host {host} of {ranks}")));
        assert_eq!(after.last().map(|line| line.step), Some(300));
        assert!(after.iter().all(|line| line.run == before[0].run));
    }
    // Compare only about four digits, because different splits of the batch round sums differently.
    let is_same = |loss: &f64| (loss / losses[0] - 1.0).abs() < 5e-4;
    assert!(losses.iter().all(is_same), "{losses:?}");
}
