//! Kills a writer with SIGKILL at various moments. The writer is a process that writes to a
//! directory.

use super::checkpoint;
use ringtree::ddp::checkpoint::{Checkpoints, Directory};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

/// Environment variable that passes the directory to the child.
const FOLDER: &str = "RINGTREE_TEST_CHECKPOINT_FOLDER";
/// Number of weights in a checkpoint, which take 4 MB.
const COUNT: usize = 1_000_000;
const KILLS: u64 = 40;
/// Number of checkpoints that a child completes before the kill.
const COMPLETE_BEFORE_KILL: usize = 2;

/// Not a test but the code of the child process, which saves until it is killed.
#[test]
fn child_saves_until_killed() {
    let Ok(directory) = std::env::var(FOLDER) else {
        return;
    };
    let checkpoints = Checkpoints::new(Directory::new(directory), 1);
    let found = checkpoints.latest().unwrap();
    let mut step = found.map_or(0, |found| found.checkpoint.state.step);
    loop {
        step += 1;
        checkpoints.save(&checkpoint(step, COUNT)).unwrap();
        // Bypass the test harness, which would buffer the output.
        std::io::Write::write_all(&mut std::io::stderr(), format!("saved {step}\n").as_bytes())
            .unwrap();
    }
}

fn start(directory: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "checkpoints::killed::child_saves_until_killed",
            "--nocapture",
        ])
        .env(FOLDER, directory)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Starts a child and kills it `delay` after its first checkpoints. Returns the last step that the
/// child reported as saved.
fn run_and_kill(directory: &Path, delay: Duration) -> u64 {
    let mut child = start(directory);
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let step = |line: String| line.strip_prefix("saved ")?.parse().ok();
    let mut last = 0;
    for line in lines.by_ref().take(COMPLETE_BEFORE_KILL) {
        let line = line.unwrap();
        last = step(line.clone()).unwrap_or_else(|| panic!("the child printed: {line}"));
    }
    thread::sleep(delay);
    child.kill().unwrap();
    child.wait().unwrap();
    let rest = lines.map_while(Result::ok).filter_map(step);
    rest.last().unwrap_or(last)
}

/// Returns the number of files in the directory, not counting the writer's lock file.
fn files(directory: &Path) -> usize {
    let names = fs::read_dir(directory).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name());
    names.filter(|name| name != "checkpoints.lock").count()
}

#[test]
fn killed_writer_loses_no_checkpoint() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path();
    let checkpoints = Checkpoints::new(Directory::new(directory), 1);
    let mut interrupted = 0;
    for kill in 0..KILLS {
        let saved = run_and_kill(directory, Duration::from_micros(kill * 997));
        let found = checkpoints.latest().unwrap().unwrap();
        let step = found.checkpoint.state.step;
        // The child may have been killed before it reported its last checkpoint.
        let what = format!("found step {step}, reported {saved}");
        assert!(step == saved || step == saved + 1, "{what}");
        assert_eq!(found.checkpoint, checkpoint(step, COUNT));
        assert!(found.warnings.is_empty(), "{:?}", found.warnings);
        interrupted += usize::from(files(directory) > 2);
    }
    // Otherwise, no kill would have interrupted a write, and the test would show nothing.
    assert!(interrupted > 0, "no writer was killed while it wrote");
    // The next save removes the leftover files.
    checkpoints.save(&checkpoint(1_000_000, 3)).unwrap();
    assert_eq!(files(directory), 2);
}
