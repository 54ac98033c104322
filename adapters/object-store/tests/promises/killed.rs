//! Kills rank processes with SIGKILL while they save a checkpoint.

#[path = "../../../../tests/support/address.rs"]
mod address;

use super::{FEW, MANY, Place, checkpoint};
use crate::in_each_place;
use ringtree::Communicator;
use ringtree::ddp::checkpoint::{Checkpoints, Store};
use ringtree_object_store::Bucket;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Instant;

/// Name of the environment variable that makes a process a rank. Its value is the URL of the bucket
/// to which the rank saves.
const SAVES_TO: &str = "RINGTREE_TEST_SAVES_TO_BUCKET";
/// Number of kills, spread evenly over the duration of a save.
const KILLS: u32 = 12;
/// Number of weights, enough for an object of several parts.
const COUNT: usize = MANY / 2;

/// Saves checkpoints as one of the ranks that [`start`] creates, until one of the ranks is killed.
/// Rank 0 prints its progress. In any other process, returns immediately.
#[test]
fn rank_saves_until_killed() {
    let Ok(url) = std::env::var(SAVES_TO) else {
        return;
    };
    let comm = Communicator::from_env().unwrap();
    let checkpoints = Checkpoints::new(Bucket::open(&url).unwrap(), 1);
    let found = checkpoints.load_and_broadcast(&comm).unwrap();
    let newest = found.map_or(0, |found| found.checkpoint.state.step);
    let print = |text: &str| {
        if comm.rank() == 0 {
            // Bypass the test harness, which could capture the output of `eprintln!`.
            std::io::stderr().write_all(text.as_bytes()).unwrap();
        }
    };
    for step in newest + 1.. {
        let next = checkpoint(step, COUNT);
        print("saving\n");
        checkpoints.save_from(&comm, &next).unwrap();
        print(&format!("saved {step}\n"));
    }
}

fn start(place: &Place, rank: usize, rendezvous: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "promises::killed::rank_saves_until_killed"])
        .arg("--nocapture")
        .envs(place.settings.iter().cloned())
        .env(SAVES_TO, &place.url)
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", "2")
        .env("RINGTREE_RENDEZVOUS", rendezvous)
        .env("RINGTREE_TUNING", "built-in")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Starts two ranks and kills one of them during their second save. Returns the last step that rank
/// 0 reported as saved, and `true` if the kill interrupted the second save.
fn run_and_kill(place: &Place, kill: u32) -> (u64, bool) {
    let rendezvous = address::reserved_address();
    let mut ranks = [0, 1].map(|rank| start(place, rank, &rendezvous));
    let lines = BufReader::new(ranks[0].stderr.take().unwrap()).lines();
    let mut lines = lines.map_while(Result::ok);
    let mut output = Vec::new();
    let mut expect_line = |start: &str| {
        output.extend(lines.next());
        let matches = output.last().is_some_and(|line| line.starts_with(start));
        assert!(matches, "expected {start:?}, but rank 0 printed {output:?}");
    };
    expect_line("saving");
    let start = Instant::now();
    expect_line("saved");
    let duration = start.elapsed();
    expect_line("saving");
    thread::sleep(duration * kill / KILLS);
    // Rank 0 writes the checkpoint. Every fourth run kills the other rank instead.
    let killed = usize::from(kill % 4 == 3);
    ranks[killed].kill().unwrap();
    output.extend(lines);
    let [writer, other] = ranks.map(|rank| rank.wait_with_output().unwrap());
    output.extend(String::from_utf8(other.stderr).ok());
    assert!(!writer.status.success() && !other.status.success());
    // The surviving rank reports the lost rank and exits.
    let named = output
        .iter()
        .any(|line| line.contains(&format!("rank {killed} ")));
    assert!(named, "{output:?}");
    let steps = output.iter().filter_map(|line| line.strip_prefix("saved "));
    let steps: Vec<u64> = steps.map(|step| step.parse().unwrap()).collect();
    (*steps.last().unwrap(), steps.len() == 1)
}

#[test]
fn kill_during_save_keeps_last_checkpoint() {
    in_each_place("killed", |place| {
        let store = place.bucket();
        let checkpoints = Checkpoints::new(place.bucket(), 1);
        let mut interrupted_saves = 0;
        for kill in 0..KILLS {
            let (saved, interrupted) = run_and_kill(place, kill);
            let found = checkpoints.latest().unwrap().unwrap();
            let step = found.checkpoint.state.step;
            // The process may be killed after a save but before it reports the save.
            assert!(
                step == saved || step == saved + 1,
                "found {step}, but rank 0 reported {saved}"
            );
            assert_eq!(found.checkpoint, checkpoint(step, COUNT));
            assert!(found.warnings.is_empty(), "{:?}", found.warnings);
            interrupted_saves += u32::from(interrupted);
        }
        // If no kill interrupts a save, the test proves nothing.
        assert!(interrupted_saves > 0, "no kill interrupted a save");
        // The next save removes the objects that the interrupted saves left behind.
        checkpoints.save(&checkpoint(1_000_000, FEW)).unwrap();
        let names = store.list().unwrap();
        assert_eq!(names.len(), 2, "{names:?}");
    });
}
