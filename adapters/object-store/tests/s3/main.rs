//! Checkpoints in a bucket of a real server.

#![allow(clippy::unwrap_used, missing_docs)]

mod server;

use ringtree::ddp::checkpoint::{Checkpoint, Checkpoints, Directory, State, Store};
use ringtree::{Error, simulate};
use ringtree_object_store::{Bucket, PATIENCE};
use server::{Server, settings};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const URL: &str = "s3://models/runs/first-try";
const PREFIX: &str = "runs/first-try";
/// Weights that go in one request, and in several.
const FEW: usize = 1000;
const MANY: usize = 5_000_000;
/// Tells the child that it is one.
const CHILD: &str = "RINGTREE_TEST_SAVES_TO_BUCKET";

fn bucket(server: &Server) -> Bucket {
    Bucket::open_with(URL, server.settings()).unwrap()
}

fn checkpoint(step: u64, count: usize) -> Checkpoint {
    let mut checkpoint = Checkpoint::new(State {
        run_id: "test-run".to_owned(),
        world_size: 2,
        step,
        ..State::default()
    });
    let weights: Vec<f32> = (0..count)
        .map(|index| (index as u64 ^ step) as f32)
        .collect();
    checkpoint
        .insert("model/weights", &[count], &weights)
        .unwrap();
    checkpoint
}

#[test]
fn what_is_saved_small_or_large_another_machine_finds() {
    let server = Server::start();
    for count in [0, FEW, MANY] {
        let saved = checkpoint(count as u64, count);
        let checkpoints = Checkpoints::new(bucket(&server), 1);
        checkpoints.latest().unwrap(); // a writer must have seen what is there
        checkpoints.save(&saved).unwrap();
        // A trailing slash is the same place.
        let elsewhere = Bucket::open_with(&format!("{URL}/"), server.settings()).unwrap();
        let found = Checkpoints::new(elsewhere, 1).latest().unwrap().unwrap();
        assert_eq!(found.checkpoint, saved);
        assert!(found.warnings.is_empty());
    }
    let at_the_top = Bucket::open_with("s3://models", server.settings()).unwrap();
    assert_eq!(Checkpoints::new(at_the_top, 1).latest(), Ok(None));
}

#[test]
fn the_last_k_are_kept_and_other_objects_left_alone() {
    let server = Server::start();
    let store = bucket(&server);
    store
        .write_atomically("notes.txt", &[b"mi", b"ne"])
        .unwrap();
    assert_eq!(store.read("notes.txt"), Ok(Some(b"mine".to_vec())));
    assert_eq!(store.read("nothing.txt"), Ok(None));
    store.remove("nothing.txt").unwrap();
    store
        .write_atomically("step-00000001.safetensors", &[b"of a killed writer"])
        .unwrap();
    let checkpoints = Checkpoints::new(bucket(&server), 2);
    for step in [5, 10, 15, 15] {
        checkpoints.save(&checkpoint(step, FEW)).unwrap();
    }
    assert_eq!(checkpoints.newest_step(), Ok(Some(15)));
    let mut names = store.list().unwrap();
    names.sort();
    let kept = [
        "notes.txt",
        "step-00000010.json",
        "step-00000010.safetensors",
        "step-00000015.2.safetensors",
        "step-00000015.json",
    ];
    assert_eq!(names, kept);
}

#[test]
fn a_damaged_object_is_named_and_the_one_before_is_taken() {
    let server = Server::start();
    let checkpoints = Checkpoints::new(bucket(&server), 3);
    for name in ["step-00000002.json", "step-00000002.safetensors"] {
        for step in [1, 2] {
            checkpoints.save(&checkpoint(step, FEW)).unwrap();
        }
        // The second round has saved step 2 anew, beside the old one.
        let name = newest(&bucket(&server), name);
        let file = server.file(&format!("{PREFIX}/{name}"));
        let whole = fs::read(&file).unwrap();
        let mut flipped = whole.clone();
        flipped[whole.len() / 2] ^= 4;
        for damaged in [&whole[..whole.len() - 1], &flipped, &[]] {
            fs::write(&file, damaged).unwrap();
            let found = checkpoints.latest().unwrap().unwrap();
            assert_eq!(found.checkpoint, checkpoint(1, FEW));
            let [warning] = &found.warnings[..] else {
                panic!("{:?}", found.warnings);
            };
            assert!(
                warning.contains(&name) && warning.contains(URL),
                "{warning}"
            );
        }
    }
}

/// The tensor file that the manifest of step 2 names, if `name` is one.
fn newest(store: &Bucket, name: &str) -> String {
    if name.ends_with(".json") {
        return name.to_owned();
    }
    let manifest = store.read("step-00000002.json").unwrap().unwrap();
    let text = String::from_utf8(manifest).unwrap();
    let (_, after) = text.split_once("\"file\": \"").unwrap();
    after.split('"').next().unwrap().to_owned()
}

#[test]
fn ranks_share_what_one_of_them_finds_in_the_bucket() {
    let server = Server::start();
    let nothing = tempfile::tempdir().unwrap();
    let ends = simulate(3, |comm| {
        let store: Box<dyn Store> = match comm.rank() {
            0 => Box::new(bucket(&server)),
            _ => Box::new(Directory::new(nothing.path())),
        };
        let checkpoints = Checkpoints::new(store, 1);
        let mut own = checkpoint(7, FEW);
        let name = format!("rank-{0}/error", comm.rank());
        own.insert(&name, &[comm.rank()], &vec![0.5_f32; comm.rank()])?;
        checkpoints.save_from(comm, &own)?;
        let found = checkpoints.load_and_broadcast(comm)?.unwrap().checkpoint;
        assert_eq!(found.tensors["model/weights"], own.tensors["model/weights"]);
        found.values::<f32>(&name)
    });
    for (rank, end) in ends.into_iter().enumerate() {
        assert_eq!(end, Ok(vec![0.5; rank]));
    }
}

/// Fails if the error is not one line that names the place, or comes too late.
fn assert_clear(what: impl FnOnce() -> Error, within: Duration) {
    let start = Instant::now();
    let error = what();
    let took = start.elapsed();
    assert!(took < within, "{error} after {took:?}");
    let text = error.to_string();
    assert!(error.is_system(), "{text}");
    assert!(text.contains(URL), "{text}");
    assert!(text.contains("check that the server is up"), "{text}");
    assert!(!text.contains('\n'), "{text}");
}

#[test]
fn a_server_that_goes_away_is_a_clear_error() {
    let mut server = Server::start();
    let checkpoints = Checkpoints::new(bucket(&server), 1);
    checkpoints.save(&checkpoint(1, FEW)).unwrap();
    server.stop();
    let soon = PATIENCE + Duration::from_secs(5);
    assert_clear(|| checkpoints.save(&checkpoint(2, FEW)).unwrap_err(), soon);
    assert_clear(|| checkpoints.latest().unwrap_err(), soon);
}

#[test]
fn a_server_that_never_answers_is_given_up() {
    // The system accepts connections for it, and nobody reads them.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut settings = settings(silent.local_addr().unwrap());
    settings.push(("AWS_TIMEOUT".to_owned(), "500ms".to_owned()));
    let bucket = Bucket::open_with(URL, settings).unwrap();
    assert_clear(|| bucket.list().unwrap_err(), PATIENCE);
}

#[test]
fn wrong_credentials_and_wrong_urls_are_clear_errors() {
    let server = Server::start();
    let mut settings = server.settings();
    settings.push(("AWS_SECRET_ACCESS_KEY".to_owned(), "guessed".to_owned()));
    let bucket = Bucket::open_with(URL, settings).unwrap();
    assert_clear(|| bucket.list().unwrap_err(), PATIENCE);
    for url in ["s3:models", "http://127.0.0.1/x", "file:///tmp", "nonsense"] {
        let Err(error) = Bucket::open_with(url, server.settings()) else {
            panic!("{url} was taken");
        };
        assert!(error.is_configuration(), "{error:?}");
        let message = error.to_string();
        assert!(
            message.contains(url) && message.contains("s3://"),
            "{message}"
        );
    }
}

#[test]
fn an_asynchronous_program_can_use_and_drop_it() {
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
    runtime.block_on(async {
        let checkpoints = Checkpoints::new(bucket(&server), 1);
        checkpoints.save(&checkpoint(1, FEW)).unwrap();
        assert_eq!(checkpoints.newest_step(), Ok(Some(1)));
    });
}

/// Not a test of its own: the process that is killed. Its settings are its environment.
#[test]
fn child_saves_until_killed() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let checkpoints = Checkpoints::new(Bucket::open(URL).unwrap(), 1);
    let found = checkpoints.latest().unwrap();
    let newest = found.map_or(0, |found| found.checkpoint.state.step);
    for step in newest + 1.. {
        checkpoints.save(&checkpoint(step, MANY / 2)).unwrap();
        let line = format!("saved {step}\n");
        std::io::stderr().write_all(line.as_bytes()).unwrap();
    }
}

#[test]
fn a_killed_writer_loses_nothing() {
    let server = Server::start();
    let checkpoints = Checkpoints::new(bucket(&server), 1);
    for kill in 0..12 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_saves_until_killed", "--nocapture"])
            .env(CHILD, "1")
            .envs(server.settings())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let step = |line: String| line.strip_prefix("saved ")?.parse().ok();
        let said = lines.next().unwrap().unwrap();
        let first: u64 = step(said.clone()).unwrap_or_else(|| panic!("the child said: {said}"));
        std::thread::sleep(Duration::from_millis(kill * 17));
        child.kill().unwrap();
        child.wait().unwrap();
        let saved = lines.map_while(Result::ok).filter_map(step).last();
        let saved = saved.unwrap_or(first);
        let found = checkpoints.latest().unwrap().unwrap();
        let step = found.checkpoint.state.step;
        assert!(step == saved || step == saved + 1, "{step}, said {saved}");
        assert_eq!(found.checkpoint, checkpoint(step, MANY / 2));
        assert!(found.warnings.is_empty(), "{:?}", found.warnings);
    }
}
