//! Starts that a program carries itself: by a unique id, through a store of its own, several
//! worlds in one process, and starts that are cancelled.

use crate::ranks::{ALL_LINKS, Links, MARK, PATIENCE, ROLE, Suite, concurrently, exit};
use ringtree::start::{Store, StoreError, UniqueId};
use ringtree::{Builder, Communicator, Error, ErrorKind, ReduceOp, Result};
use rustix::process::Signal;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// The timeout of starts that fail.
const SHORT: Duration = Duration::from_millis(1500);
/// They end by then, on a slow machine.
const SOON: Duration = Duration::from_secs(12);
/// Where ranks that are processes hand on what they made.
const FOLDER: &str = "RINGTREE_TEST_FOLDER";

/// Its ranks enter here.
const SUITE: Suite = Suite(module_path!());

#[test]
fn child_entry() {
    match std::env::var(ROLE).as_deref() {
        Ok("by id") => exit(by_id()),
        Ok("abandoned") => exit(abandoned()),
        Ok("two worlds") => exit(two_worlds()),
        Ok("local") => exit(local()),
        Ok("misspelt") => exit(misspelt()),
        Ok("cancelling") => exit(cancelling()),
        Ok("late") => exit(late()),
        Ok(other) => panic!("no role is called {other}"),
        Err(_) => {}
    }
}

fn folder() -> PathBuf {
    std::env::var_os(FOLDER).unwrap().into()
}

/// The id of the world `name`: made by rank 0, read from a file by the others.
fn handed_on(name: &str, rank: usize) -> UniqueId {
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
            Err(_) => assert!(Instant::now() < end, "no {name}"),
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
    let id = handed_on("id", number("RANK"));
    let comm = Builder::from_env()?.unique_id(&id).connect()?;
    add_up(&comm, 10)?;
    Ok(format!("met by {}", comm.info().transport))
}

/// Rank 0 makes the id and never comes.
fn abandoned() -> Result<String> {
    let id = handed_on("id", number("RANK"));
    eprintln!("{MARK}{}", id.address());
    if number("RANK") == 0 {
        thread::sleep(PATIENCE);
    }
    let end = Builder::from_env()?.unique_id(&id).connect();
    Ok(end.unwrap_err().to_string())
}

/// This process is rank r of world A and rank 1 - r of world B, and uses both at once.
fn two_worlds() -> Result<String> {
    let start = |name: &'static str, rank: usize| {
        thread::spawn(move || {
            let id = handed_on(name, rank);
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

/// Runs the role over every kind of link; what its ranks say.
fn run(role: &str, links: Links, world_size: usize) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let path: &Path = folder.path();
    let ranks = SUITE.start(links, role, world_size, &[(FOLDER, path.to_str().unwrap())]);
    let all: Vec<usize> = (0..world_size).collect();
    ranks.hear(&all).0
}

#[test]
fn processes_meet_by_an_id_that_one_of_them_made() {
    let names = ["tcp", "shm", "shm+tcp"];
    concurrently(ALL_LINKS.into_iter().zip(names), |(links, name)| {
        let met = format!("met by {name}");
        assert_eq!(run("by id", links, 4), [met.as_str(); 4], "{links:?}");
    });
}

#[test]
fn two_processes_are_two_worlds_at_once_each_first_in_one_of_them() {
    concurrently(ALL_LINKS, |links| {
        assert_eq!(run("two worlds", links, 2), ["both"; 2], "{links:?}");
    });
}

/// Given their ranks alone, the processes find their places on two hosts.
fn local() -> Result<String> {
    let id = handed_on("id", number("RANK"));
    let builder = Communicator::builder().rank(number("RANK"));
    let comm = builder.world_size(4).unique_id(&id).connect()?;
    let sum = comm.all_gather_value(&comm.local_rank())?;
    comm.barrier()?;
    Ok(format!("{sum:?} over {}", comm.info().transport))
}

#[test]
fn a_builder_finds_the_local_rank_and_heeds_the_environment() {
    for (links, found) in [
        (Links::Tcp, "[0, 1, 2, 3] over tcp"),
        (Links::Both, "[0, 1, 0, 1] over shm+tcp"),
    ] {
        assert_eq!(run("local", links, 4), [found; 4], "{links:?}");
    }
}

/// A builder that says nothing wrong is refused for what the environment says.
fn misspelt() -> Result<String> {
    let error = Communicator::builder().connect().unwrap_err();
    assert!(error.kind() == ErrorKind::Configuration);
    Ok(error.to_string())
}

#[test]
fn a_builder_refuses_what_is_misspelt() {
    let wrong = [("RINGTREE_TRANSPROT", "tcp")];
    let (said, _) = SUITE.start(Links::Tcp, "misspelt", 1, &wrong).hear(&[0]);
    assert!(
        said[0].contains("the closest match is RINGTREE_TRANSPORT"),
        "{said:?}"
    );
}

fn builder(rank: usize, world_size: usize) -> Builder {
    let builder = Communicator::builder().rank(rank).world_size(world_size);
    builder.interface("127.0.0.1").timeout(SHORT)
}

/// Connects with all at once; why none could.
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
fn a_wrong_id_lets_nobody_in() {
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
fn a_rank_0_that_is_dead_is_missed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let settings = [(FOLDER, path), ("RINGTREE_TIMEOUT_MS", "1500")];
    let ranks = SUITE.start(Links::Tcp, "abandoned", 3, &settings);
    let (at, _) = ranks.hear(&[0, 1, 2]);
    let began = Instant::now();
    ranks.signal(0, Signal::KILL);
    let (said, last) = ranks.hear(&[1, 2]);
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
fn an_id_that_was_cut_off_or_changed_is_refused() {
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
        "the secret is hidden: {shown}"
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

/// As another store, but nothing can be read.
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
fn one_store_serves_one_start_after_another_and_one_that_died() {
    let store = Arc::new(InMemory::default());
    let dead = UniqueId::on("127.0.0.1").unwrap();
    store.set("ringtree/id", &dead.to_bytes()).unwrap();
    for _ in 0..3 {
        let start = |rank: usize| {
            let builder = builder(rank, 3).timeout(PATIENCE).store(Arc::clone(&store));
            thread::spawn(move || {
                // Rank 0 comes last: the others meet the id of the start before first.
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
fn a_store_that_fails_ends_the_start_with_its_own_words() {
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
fn a_store_in_which_there_is_no_rank_0_is_said() {
    let errors = failures(vec![builder(1, 2).store(InMemory::default())]);
    let line = errors[0].to_string();
    assert!(line.contains("rank 0 did not store"), "{line}");
    assert_eq!(errors[0].missing(), [0]);
}

/// The rank that cancels is named by those that have met it, long before their timeout.
#[test]
fn a_rank_that_cancels_is_named_by_the_others() {
    for who in [0, 1] {
        let id = UniqueId::on("127.0.0.1").unwrap();
        let start = |rank| {
            let builder = builder(rank, 3).timeout(PATIENCE).unique_id(&id);
            builder.start_connect()
        };
        // Rank 2 never comes.
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

/// How many threads this process has, and what its descriptors are.
fn held() -> (usize, Vec<String>) {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().count();
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let links = descriptors.filter_map(|one| std::fs::read_link(one.path()).ok());
    (
        threads,
        links.map(|one| one.display().to_string()).collect(),
    )
}

/// Starts that are cancelled early and late, or dropped when they have succeeded.
fn cancelled_starts(rounds: usize) -> Result<()> {
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

fn cancelling() -> Result<String> {
    // The first starts open descriptors that the process keeps; they do not count.
    cancelled_starts(10)?;
    let before = held();
    cancelled_starts(12)?;
    let end = Instant::now() + SOON;
    let is_more = || {
        let now = held();
        now.0 > before.0 || now.1.len() > before.1.len()
    };
    // The harness' own threads come and go.
    while is_more() && Instant::now() < end {
        thread::sleep(Duration::from_millis(10));
    }
    match is_more() {
        true => Ok(format!("{before:?} became {:?}", held())),
        false => Ok("nothing is left".into()),
    }
}

#[test]
fn a_dropped_start_leaves_no_thread_and_no_descriptor() {
    concurrently([Links::Tcp, Links::SharedMemory], |links| {
        let ranks = SUITE.start(links, "cancelling", 1, &[]);
        assert_eq!(ranks.hear(&[0]).0, ["nothing is left"], "{links:?}");
    });
}

/// Rank 1 comes once rank 0 has said that it waits, or the other way round.
fn late() -> Result<String> {
    let rank = std::env::var("RANK").unwrap();
    let told = folder().join("told");
    while std::env::var("LATE").unwrap() == rank && !told.exists() {
        thread::sleep(Duration::from_millis(5));
    }
    Communicator::from_env()?.barrier()?;
    Ok("together".into())
}

#[test]
fn a_rank_that_waits_for_others_to_come_says_for_whom_and_where() {
    let expected = [
        ("1", "for rank 1 of 2"),
        ("0", "rank 1 has been trying to reach rank 0 for "),
    ];
    let begin = |(late, expected)| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap();
        // One rank of a host tells, if the ranks know their numbers there.
        let of_host = [("LOCAL_RANK", ""), ("LOCAL_WORLD_SIZE", "")];
        let told = [("RINGTREE_STALL_WARNING_S", "10")];
        let role = [(FOLDER, path), ("LATE", late)];
        let settings = [&of_host[..], &told, &role].concat();
        let ranks = SUITE.start(Links::Tcp, "late", 2, &settings);
        (late, expected, folder, ranks)
    };
    for (late, expected, folder, ranks) in expected.map(begin) {
        let waits = 1 - late.parse::<usize>().unwrap();
        let (said, _) = ranks.hear(&[waits]);
        assert!(said[0].starts_with("ringtree: rank"), "{said:?}");
        assert!(said[0].contains(expected), "{said:?}");
        std::fs::write(folder.path().join("told"), "").unwrap();
        assert_eq!(ranks.hear(&[0, 1]).0, ["together", "together"]);
    }
}

/// Rank 0 waits for rank 1, which does not come, and is interrupted there: what rank 0 was told,
/// and what rank 1 is told afterwards.
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
    let (tell, told) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let comm = first.connect().unwrap();
        comm.barrier().unwrap();
        is_due.store(true, Ordering::Release);
        tell.send(waits(comm))
    });
    let comm = rank(1).connect().unwrap();
    comm.barrier().unwrap();
    asked.recv_timeout(PATIENCE).expect("it asks");
    let end = told.recv_timeout(PATIENCE).expect("it waits no longer");
    // The barrier's message may have come before.
    (end, comm.barrier().and_then(|()| comm.barrier()))
}

/// What is asked while a rank waits ends it, whatever it waits in, and the other rank hears who
/// gave up.
#[test]
fn an_interrupt_ends_what_waits() {
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
