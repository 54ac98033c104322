//! Tests starts that a program controls itself: through a unique ID, through its own store, several
//! worlds in one process, and canceled starts.

use crate::ranks::{ALL_LINKS, Links, PATIENCE, REPORT_PREFIX, ROLE, Suite, concurrently, exit};
use ringtree::start::{Store, StoreError, UniqueId};
use ringtree::{Builder, Communicator, Error, ErrorKind, ReduceOp, Result};
use rustix::process::Signal;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Timeout for starts that are expected to fail.
const SHORT: Duration = Duration::from_millis(1500);
/// Failing starts end within this time, even on a slow machine.
const SOON: Duration = Duration::from_secs(12);
/// Environment variable with the directory through which ranks that are processes pass on their
/// unique ID.
const FOLDER: &str = "RINGTREE_TEST_FOLDER";

/// Starts ranks that run this module's `child_entry`.
const SUITE: Suite = Suite(module_path!());

#[test]
fn child_entry() {
    match std::env::var(ROLE).as_deref() {
        Ok("by id") => exit(by_id()),
        Ok("abandoned") => exit(abandoned()),
        Ok("two worlds") => exit(two_worlds()),
        Ok("local") => exit(local()),
        Ok("misspelled") => exit(misspelled()),
        Ok("canceling") => exit(canceling()),
        Ok("late") => exit(late()),
        Ok(other) => panic!("unknown role {other}"),
        Err(_) => {}
    }
}

fn folder() -> PathBuf {
    std::env::var_os(FOLDER).unwrap().into()
}

/// Returns the unique ID of the world `name`. Rank 0 creates it, and the other ranks read it from a
/// file.
fn unique_id_of(name: &str, rank: usize) -> UniqueId {
    let path = folder().join(name);
    if rank == 0 {
        let id = UniqueId::on("127.0.0.1").unwrap();
        std::fs::write(path.with_extension("new"), id.to_hex()).unwrap();
        std::fs::rename(path.with_extension("new"), &path).unwrap();
        return id;
    }
    let end = Instant::now() + PATIENCE;
    loop {
        match std::fs::read_to_string(&path) {
            Ok(text) => return text.parse().unwrap(),
            Err(_) => assert!(Instant::now() < end, "no unique ID of world {name}"),
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn number(name: &str) -> usize {
    std::env::var(name).unwrap().parse().unwrap()
}

fn add_up(comm: &Communicator, calls: usize) -> Result<()> {
    let n = comm.world_size();
    for call in 0..calls {
        let mut sums = vec![(comm.rank() + call) as f32; 3000];
        comm.all_reduce(&mut sums, ReduceOp::Sum)?;
        let expected = (n * (n - 1) / 2 + n * call) as f32;
        assert!(sums.iter().all(|sum| *sum == expected), "{}", sums[0]);
    }
    Ok(())
}

fn by_id() -> Result<String> {
    let id = unique_id_of("id", number("RANK"));
    let comm = Builder::from_env()?.unique_id(&id).connect()?;
    add_up(&comm, 10)?;
    Ok(format!("connected over {}", comm.info().transport))
}

/// Rank 0 creates the unique ID but never joins.
fn abandoned() -> Result<String> {
    let id = unique_id_of("id", number("RANK"));
    eprintln!("{REPORT_PREFIX}{}", id.address());
    if number("RANK") == 0 {
        thread::sleep(PATIENCE);
    }
    let end = Builder::from_env()?.unique_id(&id).connect();
    Ok(end.unwrap_err().to_string())
}

/// Makes this process rank r of world A and rank 1 - r of world B, and uses both concurrently.
fn two_worlds() -> Result<String> {
    let start = |name: &'static str, rank: usize| {
        thread::spawn(move || {
            let id = unique_id_of(name, rank);
            let builder = Builder::from_env()?.rank(rank).unique_id(&id);
            let comm = builder.connect()?;
            add_up(&comm, 300)?;
            comm.barrier()
        })
    };
    let rank = number("RANK");
    let worlds = [start("a", rank), start("b", 1 - rank)];
    for world in worlds {
        world.join().unwrap()?;
    }
    Ok("both".into())
}

/// Runs the role over `links`. Returns the reports of its ranks.
fn run(role: &str, links: Links, world_size: usize) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let path: &Path = folder.path();
    let ranks = SUITE.start(links, role, world_size, &[(FOLDER, path.to_str().unwrap())]);
    let all: Vec<usize> = (0..world_size).collect();
    ranks.next_reports(&all).0
}

#[test]
fn processes_connect_through_unique_id_of_rank_0() {
    let names = ["tcp", "shm", "shm+tcp"];
    concurrently(ALL_LINKS.into_iter().zip(names), |(links, name)| {
        let expected = format!("connected over {name}");
        assert_eq!(run("by id", links, 4), [expected.as_str(); 4], "{links:?}");
    });
}

#[test]
fn two_processes_join_two_worlds_concurrently() {
    concurrently(ALL_LINKS, |links| {
        assert_eq!(run("two worlds", links, 2), ["both"; 2], "{links:?}");
    });
}

/// Passes only the ranks, so that the processes detect their local ranks on two hosts.
fn local() -> Result<String> {
    let id = unique_id_of("id", number("RANK"));
    let builder = Communicator::builder().rank(number("RANK"));
    let comm = builder.world_size(4).unique_id(&id).connect()?;
    let sum = comm.all_gather_value(&comm.local_rank())?;
    comm.barrier()?;
    Ok(format!("{sum:?} over {}", comm.info().transport))
}

#[test]
fn builder_detects_local_rank_and_applies_environment() {
    for (links, found) in [
        (Links::Tcp, "[0, 1, 2, 3] over tcp"),
        (Links::Both, "[0, 1, 0, 1] over shm+tcp"),
    ] {
        assert_eq!(run("local", links, 4), [found; 4], "{links:?}");
    }
}

/// Connects with a correct builder in an environment with a misspelled variable, and reports the
/// error.
fn misspelled() -> Result<String> {
    let error = Communicator::builder().connect().unwrap_err();
    assert!(error.kind() == ErrorKind::Configuration);
    Ok(error.to_string())
}

#[test]
fn builder_rejects_misspelled_variable() {
    let wrong = [("RINGTREE_TRANSPROT", "tcp")];
    let (said, _) = SUITE
        .start(Links::Tcp, "misspelled", 1, &wrong)
        .next_reports(&[0]);
    assert!(
        said[0].contains("the closest match is RINGTREE_TRANSPORT"),
        "{said:?}"
    );
}

fn builder(rank: usize, world_size: usize) -> Builder {
    let builder = Communicator::builder().rank(rank).world_size(world_size);
    builder.interface("127.0.0.1").timeout(SHORT)
}

/// Connects with all builders concurrently. Returns their errors; none may connect.
fn failures(builders: Vec<Builder>) -> Vec<Error> {
    let began = Instant::now();
    let connect = |builder: Builder| thread::spawn(|| builder.connect().map(drop));
    let threads: Vec<_> = builders.into_iter().map(connect).collect();
    let ends = threads.into_iter().map(|one| one.join().unwrap());
    let errors: Vec<Error> = ends.map(Result::unwrap_err).collect();
    assert!(began.elapsed() < SOON, "{:?}: {errors:?}", began.elapsed());
    for error in &errors {
        assert!(error.kind() == ErrorKind::Join, "{error:?}");
        assert!(!error.to_string().contains('\n'), "{error}");
    }
    errors
}

#[test]
fn rank_with_wrong_unique_id_is_rejected() {
    let (id, other) = (UniqueId::on("lo").unwrap(), UniqueId::on("lo").unwrap());
    let at = id.address().to_string();
    let impostor = builder(1, 2).unique_id(&other).rendezvous(&at);
    let errors = failures(vec![builder(0, 2).unique_id(&id), impostor]);
    assert!(errors[0].to_string().contains("rank 1"), "{}", errors[0]);
    assert_eq!(errors[0].missing(), [1]);
    let line = errors[1].to_string();
    assert!(
        line.contains("rejected the secret of this rank's unique id"),
        "{line}"
    );
}

#[test]
fn ranks_report_dead_rank_0() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let settings = [(FOLDER, path), ("RINGTREE_TIMEOUT_MS", "1500")];
    let ranks = SUITE.start(Links::Tcp, "abandoned", 3, &settings);
    let (at, _) = ranks.next_reports(&[0, 1, 2]);
    let began = Instant::now();
    ranks.signal(0, Signal::KILL);
    let (said, last) = ranks.next_reports(&[1, 2]);
    for line in said {
        let expected = format!("cannot reach rank 0 at {} within 1500 ms", at[0]);
        assert!(
            line.contains(&expected) && line.contains("check that rank 0 is running"),
            "{line}"
        );
    }
    assert!(last - began < SOON, "{:?}", last - began);
}

#[test]
fn truncated_or_changed_unique_id_is_rejected() {
    let id = UniqueId::on("127.0.0.1").unwrap();
    let bytes = id.to_bytes();
    assert_eq!(UniqueId::from_bytes(&bytes).unwrap().to_bytes(), bytes);
    for end in 0..bytes.len() {
        assert!(UniqueId::from_bytes(&bytes[..end]).is_err());
    }
    for at in 0..bytes.len() {
        let mut changed = bytes;
        changed[at] ^= 0x20;
        assert!(UniqueId::from_bytes(&changed).is_err(), "byte {at}");
    }
    let text = id.to_hex();
    assert!(text[1..].parse::<UniqueId>().is_err() && "x".parse::<UniqueId>().is_err());
    let shown = format!("{id:?}");
    assert!(
        !shown.contains(&text[80..144]),
        "the secret is visible: {shown}"
    );
}

/// A store for the ranks of one process.
#[derive(Default)]
struct InMemory(Mutex<HashMap<String, Vec<u8>>>, Condvar);

impl Store for InMemory {
    fn set(&self, key: &str, value: &[u8]) -> std::result::Result<(), StoreError> {
        self.0.lock().unwrap().insert(key.into(), value.into());
        self.1.notify_all();
        Ok(())
    }

    fn get(
        &self,
        key: &str,
        at_most: Duration,
    ) -> std::result::Result<Option<Vec<u8>>, StoreError> {
        let all = self.0.lock().unwrap();
        let absent = |all: &mut HashMap<String, _>| !all.contains_key(key);
        let (all, _) = self.1.wait_timeout_while(all, at_most, absent).unwrap();
        Ok(all.get(key).cloned())
    }

    fn add(&self, key: &str, amount: i64) -> std::result::Result<i64, StoreError> {
        let mut all = self.0.lock().unwrap();
        let before = match all.get(key) {
            Some(value) => String::from_utf8(value.clone())?.parse()?,
            None => 0,
        };
        all.insert(key.into(), (before + amount).to_string().into());
        Ok(before + amount)
    }
}

/// Like [`InMemory`], but every read fails.
struct Broken(Arc<InMemory>);

impl Store for Broken {
    fn set(&self, key: &str, value: &[u8]) -> std::result::Result<(), StoreError> {
        self.0.set(key, value)
    }

    fn get(&self, _: &str, _: Duration) -> std::result::Result<Option<Vec<u8>>, StoreError> {
        Err(std::io::Error::other("the tape is torn").into())
    }

    fn add(&self, key: &str, amount: i64) -> std::result::Result<i64, StoreError> {
        self.0.add(key, amount)
    }
}

#[test]
fn store_with_stale_id_serves_successive_starts() {
    let store = Arc::new(InMemory::default());
    let dead = UniqueId::on("127.0.0.1").unwrap();
    store.set("ringtree/id", &dead.to_bytes()).unwrap();
    for _ in 0..3 {
        let start = |rank: usize| {
            let builder = builder(rank, 3).timeout(PATIENCE).store(Arc::clone(&store));
            thread::spawn(move || {
                // Rank 0 connects last, so the others first get the ID of an earlier start.
                thread::sleep(Duration::from_millis(100 * u64::from(rank == 0)));
                add_up(&builder.connect()?, 3)
            })
        };
        let ranks = [0, 1, 2].map(start);
        assert_eq!(
            ranks.map(|rank| rank.join().unwrap()),
            [const { Ok(()) }; 3]
        );
    }
}

#[test]
fn failing_store_ends_start_and_is_quoted() {
    let store = Arc::new(InMemory::default());
    let broken = Broken(Arc::clone(&store));
    let errors = failures(vec![
        builder(0, 2).store(store),
        builder(1, 2).store(broken),
    ]);
    let lines: Vec<String> = errors.iter().map(Error::to_string).collect();
    assert!(
        lines[0].contains("rank 1 of 2 did not reach"),
        "{}",
        lines[0]
    );
    assert!(
        lines[0].contains("0 of 1 other ranks have read its address"),
        "{}",
        lines[0]
    );
    let said = "rank 1: the store failed to get 'ringtree/id': the tape is torn";
    assert_eq!(lines[1], said);
    let source = std::error::Error::source(&errors[1]).unwrap();
    assert!(source.downcast_ref::<std::io::Error>().is_some());
}

#[test]
fn start_reports_store_without_rank_0() {
    let errors = failures(vec![builder(1, 2).store(InMemory::default())]);
    let line = errors[0].to_string();
    assert!(line.contains("rank 0 did not store"), "{line}");
    assert_eq!(errors[0].missing(), [0]);
}

/// If a rank cancels its join, the ranks that are already connected to it report that rank in their
/// errors, long before they time out.
#[test]
fn rank_that_cancels_join_is_named_by_others() {
    for who in [0, 1] {
        let id = UniqueId::on("127.0.0.1").unwrap();
        let start = |rank| {
            let builder = builder(rank, 3).timeout(PATIENCE).unique_id(&id);
            builder.start_connect()
        };
        // Rank 2 never joins.
        let [first, second] = [start(0), start(1)];
        thread::sleep(Duration::from_millis(500));
        assert!(!first.is_finished() && !second.is_finished());
        let began = Instant::now();
        [&first, &second][who].cancel();
        let expected = format!("rank {who} did not join: the program canceled the join");
        for joining in [first, second] {
            let error = joining.wait().unwrap_err();
            assert_eq!(error.to_string(), expected);
            assert_eq!(error.rank(), Some(who));
        }
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    }
}

/// Returns the number of this process's threads, and the targets of its descriptors.
fn threads_and_descriptors() -> (usize, Vec<String>) {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().count();
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let links = descriptors.filter_map(|one| std::fs::read_link(one.path()).ok());
    (
        threads,
        links.map(|one| one.display().to_string()).collect(),
    )
}

/// Starts joins that are canceled early or late, or dropped after they have succeeded.
fn canceled_starts(rounds: usize) -> Result<()> {
    for round in 0..rounds {
        let id = UniqueId::on("127.0.0.1")?;
        let start = |rank| {
            let builder = Builder::from_env()?.rank(rank).world_size(2);
            Ok::<_, Error>(builder.unique_id(&id).start_connect())
        };
        let mut all = vec![start(round % 2)?];
        if round % 3 == 0 {
            all.push(start(1 - round % 2)?);
        }
        thread::sleep(Duration::from_millis(10 * round as u64));
    }
    Ok(())
}

fn canceling() -> Result<String> {
    // The first starts in a process open descriptors that the process keeps. These do not count.
    canceled_starts(10)?;
    let before = threads_and_descriptors();
    canceled_starts(12)?;
    let end = Instant::now() + SOON;
    let is_more = || {
        let now = threads_and_descriptors();
        now.0 > before.0 || now.1.len() > before.1.len()
    };
    // Threads of the test harness come and go.
    while is_more() && Instant::now() < end {
        thread::sleep(Duration::from_millis(10));
    }
    match is_more() {
        true => Ok(format!("{before:?} became {:?}", threads_and_descriptors())),
        false => Ok("nothing is left".into()),
    }
}

#[test]
fn dropped_start_leaks_no_threads_or_descriptors() {
    concurrently([Links::Tcp, Links::SharedMemory], |links| {
        let ranks = SUITE.start(links, "canceling", 1, &[]);
        assert_eq!(ranks.next_reports(&[0]).0, ["nothing is left"], "{links:?}");
    });
}

/// Delays the rank named by `LATE` until the other rank has reported that it is waiting.
fn late() -> Result<String> {
    let rank = std::env::var("RANK").unwrap();
    let reported = folder().join("reported");
    while std::env::var("LATE").unwrap() == rank && !reported.exists() {
        thread::sleep(Duration::from_millis(5));
    }
    Communicator::from_env()?.barrier()?;
    Ok("together".into())
}

#[test]
fn joining_rank_reports_which_rank_it_waits_for() {
    let expected = [
        ("1", "for rank 1 of 2"),
        ("0", "rank 1 has been trying to reach rank 0 for "),
    ];
    let begin = |(late, expected)| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap();
        // If ranks know their local ranks, only one rank per host reports.
        let of_host = [("LOCAL_RANK", ""), ("LOCAL_WORLD_SIZE", "")];
        let warning = [("RINGTREE_STALL_WARNING_S", "10")];
        let role = [(FOLDER, path), ("LATE", late)];
        let settings = [&of_host[..], &warning, &role].concat();
        let ranks = SUITE.start(Links::Tcp, "late", 2, &settings);
        (late, expected, folder, ranks)
    };
    for (late, expected, folder, ranks) in expected.map(begin) {
        let waits = 1 - late.parse::<usize>().unwrap();
        let (said, _) = ranks.next_reports(&[waits]);
        assert!(said[0].starts_with("ringtree: rank"), "{said:?}");
        assert!(said[0].contains(expected), "{said:?}");
        std::fs::write(folder.path().join("reported"), "").unwrap();
        assert_eq!(ranks.next_reports(&[0, 1]).0, ["together", "together"]);
    }
}

/// Interrupts rank 0 while it waits for rank 1, which does not take part. Returns rank 0's
/// error and the results of rank 1's next calls.
fn interrupted_in(waits: fn(Communicator) -> Option<Error>) -> (Option<Error>, Result<()>) {
    let id = UniqueId::on("127.0.0.1").unwrap();
    let rank = |rank: usize| {
        let builder = Communicator::builder().rank(rank).world_size(2);
        builder.unique_id(&id).timeout(10 * PATIENCE)
    };
    let (asks, asked) = std::sync::mpsc::channel();
    let is_due = Arc::new(AtomicBool::new(false));
    let due = Arc::clone(&is_due);
    let first = rank(0).interrupt(move || due.load(Ordering::Acquire) && asks.send(()).is_ok());
    let (sender, ended) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let comm = first.connect().unwrap();
        comm.barrier().unwrap();
        is_due.store(true, Ordering::Release);
        sender.send(waits(comm))
    });
    let comm = rank(1).connect().unwrap();
    comm.barrier().unwrap();
    asked
        .recv_timeout(PATIENCE)
        .expect("rank 0 calls the interrupt callback");
    let end = ended
        .recv_timeout(PATIENCE)
        .expect("the wait of rank 0 ends");
    // The barrier's message may have arrived before the interrupt, so the first barrier may
    // succeed.
    (end, comm.barrier().and_then(|()| comm.barrier()))
}

/// An interrupt ends any kind of wait, and the other rank learns which rank was interrupted.
#[test]
fn interrupt_ends_every_kind_of_wait() {
    let in_a_call = |comm: Communicator| comm.barrier().err();
    let in_a_patient_call = |comm: Communicator| comm.without_timeout().barrier().err();
    let for_a_group = |comm: Communicator| comm.subgroup(&[1, 0]).err();
    let in_leaving = |comm: Communicator| {
        let work = comm.start_all_reduce(vec![1.0f32; 4], ReduceOp::Sum);
        drop((work, comm));
        None
    };
    let forms: [fn(Communicator) -> Option<Error>; 4] =
        [in_a_call, in_a_patient_call, for_a_group, in_leaving];
    for (form, waits) in forms.into_iter().enumerate() {
        let (own, others) = interrupted_in(waits);
        for error in own.into_iter().chain(others.err()) {
            let line = error.to_string();
            assert!(
                line.starts_with("the user interrupted rank 0"),
                "{form}: {line}"
            );
        }
    }
}
