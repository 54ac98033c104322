//! A writer killed at any moment: a real process, a real folder, SIGKILL.

use super::checkpoint;
use ringtree::ddp::checkpoint::{Checkpoints, Directory};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

/// Tells the child where to save.
const FOLDER: &str = "RINGTREE_TEST_CHECKPOINT_FOLDER";
/// Weights of a checkpoint: 4 MB.
const COUNT: usize = 1_000_000;
const KILLS: u64 = 40;
/// Checkpoints a child writes before it is killed in the next one.
const WHOLE_BEFORE_KILL: usize = 2;

/// Not a test of its own: the process that is killed.
#[test]
fn child_saves_until_killed() {
    let Ok(folder) = std::env::var(FOLDER) else {
        return;
    };
    let checkpoints = Checkpoints::new(Directory::new(folder), 1);
    let found = checkpoints.latest().unwrap();
    let mut step = found.map_or(0, |found| found.checkpoint.state.step);
    loop {
        step += 1;
        checkpoints.save(&checkpoint(step, COUNT)).unwrap();
        // Past the harness, which would hold it back.
        std::io::Write::write_all(&mut std::io::stderr(), format!("saved {step}\n").as_bytes())
            .unwrap();
    }
}

fn start(folder: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "checkpoints::killed::child_saves_until_killed",
            "--nocapture",
        ])
        .env(FOLDER, folder)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The last step a child says it has saved, if it is killed `delay` after its first few.
fn run_and_kill(folder: &Path, delay: Duration) -> u64 {
    let mut child = start(folder);
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let step = |line: String| line.strip_prefix("saved ")?.parse().ok();
    let mut last = 0;
    for line in lines.by_ref().take(WHOLE_BEFORE_KILL) {
        let line = line.unwrap();
        last = step(line.clone()).unwrap_or_else(|| panic!("the child said: {line}"));
    }
    thread::sleep(delay);
    child.kill().unwrap();
    child.wait().unwrap();
    let rest = lines.map_while(Result::ok).filter_map(step);
    rest.last().unwrap_or(last)
}

/// Files in the folder, but for the one that the writer locks.
fn files(folder: &Path) -> usize {
    let names = fs::read_dir(folder).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name());
    names.filter(|name| name != "checkpoints.lock").count()
}

#[test]
fn a_killed_writer_loses_nothing() {
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path();
    let checkpoints = Checkpoints::new(Directory::new(folder), 1);
    let mut cut_short = 0;
    for kill in 0..KILLS {
        let saved = run_and_kill(folder, Duration::from_micros(kill * 997));
        let found = checkpoints.latest().unwrap().unwrap();
        let step = found.checkpoint.state.step;
        // The word that the last one is saved may have been lost with the process.
        assert!(step == saved || step == saved + 1, "{step}, said {saved}");
        assert_eq!(found.checkpoint, checkpoint(step, COUNT));
        assert!(found.warnings.is_empty(), "{:?}", found.warnings);
        cut_short += usize::from(files(folder) > 2);
    }
    // Else the kills did not hit the writing, and the test showed nothing.
    assert!(cut_short > 0, "no writer was killed while it wrote");
    // What they left is gone with the next save.
    checkpoints.save(&checkpoint(1_000_000, 3)).unwrap();
    assert_eq!(files(folder), 2);
}
