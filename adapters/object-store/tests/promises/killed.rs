//! A rank killed while a checkpoint is saved: real processes, SIGKILL.

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

/// Tells a process that it is a rank, and where it saves.
const SAVES_TO: &str = "RINGTREE_TEST_SAVES_TO_BUCKET";
/// Kills, spread evenly over the time that a save takes.
const KILLS: u32 = 12;
/// Enough for an object of several parts.
const COUNT: usize = MANY / 2;

/// Not a test of its own: a rank of those of which one is killed. Rank 0 tells how far it is.
#[test]
fn rank_saves_until_killed() {
    let Ok(url) = std::env::var(SAVES_TO) else {
        return;
    };
    let comm = Communicator::from_env().unwrap();
    let checkpoints = Checkpoints::new(Bucket::open(&url).unwrap(), 1);
    let found = checkpoints.load_and_broadcast(&comm).unwrap();
    let newest = found.map_or(0, |found| found.checkpoint.state.step);
    let say = |what: &str| {
        if comm.rank() == 0 {
            // Past the harness, which would hold it back.
            std::io::stderr().write_all(what.as_bytes()).unwrap();
        }
    };
    for step in newest + 1.. {
        let next = checkpoint(step, COUNT);
        say("saving\n");
        checkpoints.save_from(&comm, &next).unwrap();
        say(&format!("saved {step}\n"));
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

/// Starts two ranks and kills one of them in their second save. The last step of which rank 0 said
/// that it is saved, and whether the save was cut short.
fn run_and_kill(place: &Place, kill: u32) -> (u64, bool) {
    let rendezvous = address::own_address();
    let mut ranks = [0, 1].map(|rank| start(place, rank, &rendezvous));
    let lines = BufReader::new(ranks[0].stderr.take().unwrap()).lines();
    let mut lines = lines.map_while(Result::ok);
    let mut heard = Vec::new();
    let mut hear = |what: &str| {
        heard.extend(lines.next());
        let said = heard.last().is_some_and(|line| line.starts_with(what));
        assert!(said, "{what}? rank 0 said {heard:?}");
    };
    hear("saving");
    let start = Instant::now();
    hear("saved");
    let takes = start.elapsed();
    hear("saving");
    thread::sleep(takes * kill / KILLS);
    // Rank 0 writes; now and then it is the other one that dies.
    let killed = usize::from(kill % 4 == 3);
    ranks[killed].kill().unwrap();
    heard.extend(lines);
    let [writer, other] = ranks.map(|rank| rank.wait_with_output().unwrap());
    heard.extend(String::from_utf8(other.stderr).ok());
    assert!(!writer.status.success() && !other.status.success());
    // The one that lives on is told, and ends.
    let named = heard
        .iter()
        .any(|line| line.contains(&format!("rank {killed} ")));
    assert!(named, "{heard:?}");
    let steps = heard.iter().filter_map(|line| line.strip_prefix("saved "));
    let steps: Vec<u64> = steps.map(|step| step.parse().unwrap()).collect();
    (*steps.last().unwrap(), steps.len() == 1)
}

#[test]
fn a_rank_killed_while_it_saves_loses_nothing() {
    in_each_place("killed", |place| {
        let store = place.bucket();
        let checkpoints = Checkpoints::new(place.bucket(), 1);
        let mut cut_short = 0;
        for kill in 0..KILLS {
            let (saved, cut) = run_and_kill(place, kill);
            let found = checkpoints.latest().unwrap().unwrap();
            let step = found.checkpoint.state.step;
            // The word that the last one is saved may have been lost with the process.
            assert!(step == saved || step == saved + 1, "{step}, said {saved}");
            assert_eq!(found.checkpoint, checkpoint(step, COUNT));
            assert!(found.warnings.is_empty(), "{:?}", found.warnings);
            cut_short += u32::from(cut);
        }
        // Else the kills did not hit the saving, and the test showed nothing.
        assert!(cut_short > 0, "{cut_short} saves were cut short");
        // What they left is gone with the next save.
        checkpoints.save(&checkpoint(1_000_000, FEW)).unwrap();
        let names = store.list().unwrap();
        assert_eq!(names.len(), 2, "{names:?}");
    });
}
