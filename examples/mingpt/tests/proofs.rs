//! Checks that a training survives if any rank is killed at any time: after a restart by the
//! launcher, the training ends with the same weights as an uninterrupted run.

#![allow(clippy::unwrap_used)]

use ringtree::launch::{Job, Output, run};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

/// Number of training steps. Checkpoints are written after every seventh step and at the end.
const STEPS: usize = 60;
/// Maximum time of a run on a busy machine.
const PATIENCE: Duration = Duration::from_secs(240);

/// Returns a training on `ranks` processes whose checkpoints are in `place`.
fn job(ranks: usize, place: &Path, every: usize) -> Job {
    let numbers = [
        ("--steps", STEPS),
        ("--batch", 8),
        ("--layers", 1),
        ("--heads", 2),
        ("--width", 16),
        ("--block", 16),
        ("--every", every),
        ("--validation-sequences", 8),
        ("--warmup", 2),
    ];
    let mut arguments: Vec<_> = numbers
        .iter()
        .flat_map(|(name, number)| [(*name).into(), number.to_string().into()])
        .collect();
    arguments.extend(["--checkpoint".into(), place.into()]);
    Job {
        program: env!("CARGO_BIN_EXE_mingpt").into(),
        arguments,
        ranks,
        id: None,
        max_restarts: 3,
        output: Output::Prefixed,
        log_folder: None,
        rendezvous: None,
        cpus: Vec::new(),
        sessions: false,
    }
}

/// Returns the number of steps that the training in `place` has reported.
fn steps_done(place: &Path) -> usize {
    let text = fs::read_to_string(place.join("metrics.jsonl"));
    text.map_or(0, |text| text.lines().count())
}

/// Finds the process that runs rank `rank` of the training in `place`.
fn process_of(rank: usize, place: &Path) -> Option<u32> {
    let own = format!("RANK={rank}");
    let is_rank = |process: &Path| {
        let read = |name| fs::read(process.join(name)).unwrap_or_default();
        let holds = |text: &[u8], word: &str| {
            text.split(|byte| *byte == 0)
                .any(|each| each == word.as_bytes())
        };
        holds(&read("environ"), &own) && holds(&read("cmdline"), place.to_str().unwrap())
    };
    let mut processes = fs::read_dir("/proc").unwrap().flatten();
    processes.find_map(|entry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        is_rank(&entry.path()).then_some(number)
    })
}

/// Kills `rank` once the training has reported `steps` steps.
fn kill_after(steps: usize, rank: usize, place: &Path) {
    let started = Instant::now();
    while steps_done(place) < steps {
        assert!(
            started.elapsed() < PATIENCE,
            "step {steps} was not reported in time"
        );
        sleep(Duration::from_millis(1));
    }
    let process = process_of(rank, place).unwrap_or_else(|| panic!("rank {rank} has no process"));
    let killed = Command::new("kill")
        .args(["-KILL", &process.to_string()])
        .status();
    assert!(killed.unwrap().success());
}

/// Returns the bytes of the model and of the optimizer's state in the last checkpoint.
fn outcome(place: &Path) -> Vec<u8> {
    fs::read(place.join(format!("step-{STEPS:08}.safetensors"))).unwrap()
}

fn uninterrupted(ranks: usize, place: &Path) -> Vec<u8> {
    assert_eq!(run(&job(ranks, place, 7)), Ok(0));
    outcome(place)
}

#[test]
fn job_restarts_with_same_bits_whichever_rank_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    // Rank 0 hosts the rendezvous and writes the checkpoints, the first one after 7 steps.
    let deaths = [(2, 1, 3), (2, 0, 25), (4, 0, 4), (4, 2, 40)];
    for ranks in [2, 4] {
        let expected = uninterrupted(ranks, &directory.path().join(format!("calm-{ranks}")));
        for (_, victim, steps) in deaths.iter().filter(|death| death.0 == ranks) {
            let place = directory.path().join(format!("{ranks}-{victim}-{steps}"));
            let job = job(ranks, &place, 7);
            scope(|scope| {
                let killer = scope.spawn(|| kill_after(*steps, *victim, &place));
                assert_eq!(run(&job), Ok(0));
                killer.join().unwrap();
            });
            let what = format!("rank {victim} of {ranks}, killed after {steps} steps");
            assert!(outcome(&place) == expected, "{what}");
        }
    }
}

#[test]
fn repeated_kills_during_saving_lose_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let expected = uninterrupted(2, &directory.path().join("calm"));
    let place = directory.path().join("killed");
    // Rank 0 spends most of its time saving, so most kills hit it during a save.
    let job = job(2, &place, 1);
    scope(|scope| {
        let killer = scope.spawn(|| [10, 25, 40].map(|steps| kill_after(steps, 0, &place)));
        assert_eq!(run(&job), Ok(0));
        killer.join().unwrap();
    });
    assert!(outcome(&place) == expected);
}

#[test]
fn diverging_training_is_not_restarted() {
    let directory = tempfile::tempdir().unwrap();
    let mut job = job(2, directory.path(), 1);
    job.arguments
        .extend(["--learning-rate", "1e30"].map(Into::into));
    // Another attempt would compute the same values, so the launcher must not start one.
    assert_eq!(run(&job), Ok(2));
    assert!(steps_done(directory.path()) < STEPS);
}
