//! End-to-end tests: small runs of `mingpt` in real processes.

#![allow(clippy::unwrap_used)]

#[path = "../../../tests/support/address.rs"]
mod address;
#[path = "../../../tests/support/pty.rs"]
#[allow(dead_code)]
mod pty;

use pty::{Terminal, positions};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Settings of a small model and a short run.
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
/// Maximum time of a run on a busy machine.
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
    // The test compares bits, so measured times must not determine the order in which values are
    // summed.
    command.env("RINGTREE_TUNING", "built-in");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Returns the settings of the small run, except that those in `own` take precedence.
fn settings<'a>(own: &[&'a str]) -> Vec<&'a str> {
    let is_open = |pair: &&[&str]| !own.contains(&pair[0]);
    let rest = SMALL.chunks(2).filter(is_open).flatten().copied();
    rest.chain(own.iter().copied()).collect()
}

/// Starts a small run on `ranks` processes.
fn start(ranks: usize, arguments: &[&str]) -> Vec<Child> {
    start_on(1, ranks, arguments, |_, _| {})
}

/// Starts a small run of `ranks` ranks on `hosts` hosts. `own` sets up the command of each rank.
fn start_on(
    hosts: usize,
    ranks: usize,
    arguments: &[&str],
    own: impl Fn(usize, &mut Command),
) -> Vec<Child> {
    let meeting = address::reserved_address();
    let rank = |rank: usize| {
        let (host, local) = (rank / (ranks / hosts), rank % (ranks / hosts));
        let numbers = [("RANK", rank), ("LOCAL_RANK", local)];
        let sizes = [("WORLD_SIZE", ranks), ("LOCAL_WORLD_SIZE", ranks / hosts)];
        let numbers = numbers.iter().chain(&sizes);
        let mut command = mingpt();
        command
            .args(settings(arguments))
            .envs(numbers.map(|(name, number)| (*name, number.to_string())))
            .env("RINGTREE_RENDEZVOUS", &meeting)
            .env("RINGTREE_HOST_ID", format!("host {host}"));
        own(host, &mut command);
        command.spawn().unwrap()
    };
    (0..ranks).map(rank).collect()
}

/// Checks that the run succeeds, and returns rank 0's standard output.
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

/// Returns the loss that the last line of output shows.
fn loss(line: &str) -> f64 {
    line.split(' ').nth(3).unwrap().parse().unwrap()
}

/// Waits for a file, because checkpoints are written in the background.
fn wait_for_file(path: &Path) {
    let started = Instant::now();
    while !path.exists() {
        let waited = started.elapsed();
        assert!(
            waited < PATIENCE,
            "{} was not written in time",
            path.display()
        );
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn one_and_two_ranks_learn_the_same() {
    let (one, two) = (last_line(1, &[]), last_line(2, &[]));
    assert!(
        one.starts_with("step 8 loss ") && one.contains(" weights "),
        "{one}"
    );
    assert!((loss(&one) - loss(&two)).abs() < 2e-3, "{one}\n{two}");
    assert_eq!(
        two,
        last_line(2, &[]),
        "equal runs must print the same last line"
    );
}

#[test]
fn each_host_shows_one_moving_bar() {
    let (terminals, programs): (Vec<_>, Vec<_>) = (0..2).map(|_| Terminal::open()).unzip();
    let ranks = start_on(2, 4, &["--steps", "30"], |host, command| {
        command.stdout(programs[host].try_clone().unwrap());
    });
    drop(programs);
    // A terminal buffers only a few bytes, so read each terminal while the ranks write.
    let readers: Vec<_> = terminals
        .into_iter()
        .map(|mut terminal| std::thread::spawn(move || terminal.rest()))
        .collect();
    finish(ranks);
    let texts: Vec<_> = readers.into_iter().map(|one| one.join().unwrap()).collect();
    for text in &texts {
        let shown = positions(text, " of 30 steps");
        let is_one = shown.is_sorted() && shown.first() < shown.last();
        assert!(is_one, "{shown:?}: {text:?}");
    }
    // Only rank 0 prints lines. The terminal of the other host shows only the bar.
    assert!(texts[0].contains("loss") && !texts[1].contains("loss"));
}

/// Returns the loss of every step in a run on `ranks` processes.
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
        // The hashes of the replicas were compared for every checkpoint.
        let many = curve(ranks);
        let differs = |(one, many): (&f64, &f64)| (one - many).abs() > 2e-3;
        assert!(!one.iter().zip(&many).any(differs), "{one:?}\n{many:?}");
    }
}

#[test]
fn dropout_is_independent_of_number_of_ranks() {
    let dropout = |ranks| last_line(ranks, &["--dropout", "0.2"]);
    let (one, two) = (dropout(1), dropout(2));
    assert!((loss(&one) - loss(&two)).abs() < 2e-3, "{one}\n{two}");
    assert_ne!(one, last_line(1, &[]));
}

#[test]
fn patience_stops_all_ranks_and_keeps_best_checkpoint() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().to_str().unwrap();
    // Use a fixed text, because the losses must not depend on this project's sources.
    let text = tempfile::NamedTempFile::new().unwrap();
    let line = |number| format!("line {number} of a text that is the same for ever\n");
    std::fs::write(text.path(), (0..400).map(line).collect::<String>()).unwrap();
    let own = [
        "--text",
        text.path().to_str().unwrap(),
        "--steps",
        "40",
        "--learning-rate",
        "200",
        "--warmup",
        "40",
        "--validate-every",
        "2",
        "--every",
        "1",
        "--keep",
        "1",
        "--checkpoint",
        place,
        "--patience",
    ];
    let part = |patience| [&own[..], &[patience]].concat();
    // The learning rate rises so far that the model gets worse. The first validation therefore
    // stays the best.
    let output = finish(start(2, &part("2")));
    assert!(
        output.contains("stopped at step 6, after 2 validations without a better loss\n"),
        "{output}"
    );
    assert!(output.contains(" at step 2\n"), "{output}");
    for (step, is_there) in [(2, true), (4, false), (6, true), (7, false)] {
        let manifest = directory.path().join(format!("step-{step:08}.json"));
        assert_eq!(manifest.exists(), is_there, "{step}");
    }
    // If it runs again with the same patience, the training stays stopped. With more patience, it
    // continues.
    let again = finish(start(2, &part("2")));
    assert!(
        again.contains("resumed at step 6\n") && again.contains("stopped at step 6,"),
        "{again}"
    );
    let longer = finish(start(2, &part("3")));
    assert!(longer.contains("stopped at step 8, after 3 "), "{longer}");
}

#[test]
fn loss_picture_grows_during_training() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("loss.svg");
    let own = [
        "--steps",
        "1000000",
        "--warmup",
        "2",
        "--plot",
        place.to_str().unwrap(),
    ];
    let mut rank = start(1, &own).remove(0);
    let started = Instant::now();
    let points = || {
        let picture = fs::read_to_string(&place).unwrap_or_default();
        assert!(
            picture.is_empty() || picture.ends_with("</svg>\n"),
            "the picture is incomplete"
        );
        let line = picture
            .split("<polyline")
            .nth(1)
            .unwrap_or_default()
            .to_owned();
        line.split("points=\"")
            .nth(1)
            .map_or(0, |line| line.split(' ').count())
    };
    while points() < 3 {
        assert!(
            started.elapsed() < PATIENCE,
            "the picture must get more points"
        );
        sleep(Duration::from_millis(20));
    }
    rank.kill().unwrap();
    rank.wait().unwrap();
}

#[test]
fn model_generates_from_checkpoint_and_rejects_bad_input() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().to_str().unwrap();
    let generate = |own: &[&str]| {
        let mut command = mingpt();
        command.args(["generate", "--length", "40", "--checkpoint", place]);
        let end = command.args(own).output().unwrap();
        let message = String::from_utf8_lossy(&end.stderr).into_owned();
        (end.status.code(), end.stdout, message)
    };
    let (code, _, message) = generate(&[]);
    assert_eq!(code, Some(1), "{message}");
    assert!(message.contains("there is no checkpoint in "), "{message}");

    finish(start(1, &["--checkpoint", place]));
    let text = |own: &[&str]| {
        let (code, text, message) = generate(own);
        assert_eq!(code, Some(0), "{message}");
        text
    };
    let one = text(&["--prompt", "let "]);
    assert!(one.starts_with(b"let ") && one.ends_with(b"\n"), "{one:?}");
    assert_eq!(one.len(), 4 + 40 + 1, "{one:?}");
    assert_eq!(one, text(&["--prompt", "let "]));
    assert_ne!(one, text(&["--prompt", "let ", "--seed", "2"]));
    let cold = |seed| text(&["--temperature", "0", "--seed", seed]);
    assert_eq!(cold("1"), cold("2"));

    let wrong: [(&[&str], _, _); 3] = [
        (&["--prompt", "\u{1}"], 2, "--prompt has '\\u{1}', which "),
        (&["--temperature", "nan"], 2, "--temperature NaN must be "),
        (&["--step", "77"], 1, "there is no checkpoint of step 77 "),
    ];
    for (own, expected, words) in wrong {
        let (code, text, message) = generate(own);
        assert_eq!((code, text.len()), (Some(expected), 0), "{message}");
        assert!(
            message.lines().count() == 1 && message.contains(words),
            "{message}"
        );
    }
}

#[test]
fn accumulated_parts_match_complete_batch() {
    let (whole, parts) = (last_line(2, &[]), last_line(2, &["--accumulate", "2"]));
    assert!(
        (loss(&whole) - loss(&parts)).abs() < 2e-3,
        "{whole}\n{parts}"
    );
}

#[test]
fn bf16_gradients_train_nearly_as_well() {
    let (whole, half) = (last_line(2, &[]), last_line(2, &["--wire", "bf16"]));
    assert!((loss(&whole) - loss(&half)).abs() < 0.02, "{whole}\n{half}");
    assert_ne!(whole, half);
}

#[test]
fn sharded_optimizer_has_same_weights_and_resumes_resized() {
    // A sum of two values has the same bits in either order.
    let (whole, sharded) = (last_line(2, &[]), last_line(2, &["--shard-optimizer"]));
    assert_eq!(whole, sharded);
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().to_str().unwrap();
    let part = ["--shard-optimizer", "--checkpoint", place, "--steps"];
    let until = |steps| [&part[..], &[steps]].concat();
    last_line(4, &until("4"));
    let end = finish(start(2, &until("8")));
    assert!(end.contains("resumed at step 4"), "{end}");
    let end = end.lines().last().unwrap().to_owned();
    // At step 4, the learning rate had already fallen to its end, so the losses differ slightly.
    assert!((loss(&end) - loss(&whole)).abs() < 0.05, "{end}\n{whole}");
}

#[test]
fn local_steps_learn_and_resume_with_same_result() {
    let undisturbed = last_line(2, &["--local-steps", "2"]);
    let every = last_line(2, &[]);
    assert_ne!(undisturbed, every);
    assert!(
        (loss(&undisturbed) - loss(&every)).abs() < 0.2,
        "{undisturbed}\n{every}"
    );
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().to_str().unwrap();
    let part = ["--local-steps", "2", "--checkpoint", place, "--every", "4"];
    let children = start(2, &part);
    wait_for_file(&directory.path().join("step-00000004.json"));
    for mut child in children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let end = last_line(2, &part);
    assert_eq!(end, undisturbed);
}

#[test]
fn killed_run_resumes_with_same_result() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("run");
    let steps = ["--steps", "80", "--every", "7", "--dropout", "0.1"];
    let keep = ["--keep", "20", "--checkpoint", place.to_str().unwrap()];
    let arguments = [&steps[..], &keep].concat();
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
    let reported: Vec<_> = metrics.lines().map(|line| field(line, "step")).collect();
    let all: Vec<_> = (1..=80).map(|step: u64| step.to_string()).collect();
    assert_eq!(reported, all);
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

    // The checkpoint contains the model whose loss the training reported.
    let mut validation = mingpt();
    validation
        .args(["validate", "--once", "--validation-sequences", "8"])
        .args(arguments);
    let validation = validation.output().unwrap();
    let printed = String::from_utf8_lossy(&validation.stdout).into_owned();
    let expected = format!(
        "step 80 validation {:.4}\n",
        loss(output.lines().last().unwrap())
    );
    assert_eq!(
        printed,
        expected,
        "{}",
        String::from_utf8_lossy(&validation.stderr)
    );
    let written = fs::read_to_string(place.join("validation.jsonl")).unwrap();
    assert_eq!(
        (written.lines().count(), field(&written, "run")),
        (1, run),
        "{written}"
    );
}

#[test]
fn validator_reports_missing_or_invalid_directory() {
    let directory = tempfile::tempdir().unwrap();
    let (file, nothing) = (
        directory.path().join("file"),
        directory.path().join("misspelt"),
    );
    fs::write(&file, "not a directory").unwrap();
    for (place, words) in [
        (&file, "is not a directory"),
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
fn indivisible_batch_is_reported_in_one_line() {
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
fn checkpoint_of_another_model_is_rejected() {
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
fn checkpoint_of_another_text_seed_or_batch_is_rejected() {
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
