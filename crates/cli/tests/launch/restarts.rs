//! Tests jobs that are restarted after a failure.

use super::several_hosts::Hosts;
use super::*;
use ringtree::{Communicator, ReduceOp};
use std::io::{BufRead, BufReader};
use std::path::Path;

const RESTARTS: [&str; 4] = ["--max-restarts", "3", "--rdzv-id", "night"];

/// Returns a script whose ranks all sleep in the first attempt, except one that executes `failure`.
fn fails_once(rank: usize, failure: &str, mark: &str) -> String {
    format!(
        "echo $RANK/$WORLD_SIZE $TORCHELASTIC_RESTART_COUNT/$TORCHELASTIC_MAX_RESTARTS \
         $TORCHELASTIC_RUN_ID $MASTER_PORT; if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then \
         if [ $RANK = {rank} ]; then {failure}; fi; sleep {mark} & sleep {mark}; fi"
    )
}

/// Returns the rank, attempt and port printed by each rank of [`fails_once`].
fn reports(stdout: &str) -> Vec<(usize, u16, u16)> {
    let parse = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        assert_eq!(words[3], "night", "{line}");
        let number = |word: &str| -> u16 { word.split('/').next().unwrap().parse().unwrap() };
        (
            number(words[1]).into(),
            number(words[2]),
            words[4].parse().unwrap(),
        )
    };
    let mut reports: Vec<(usize, u16, u16)> = stdout.lines().map(parse).collect();
    reports.sort_unstable();
    reports
}

/// Checks that `failed` and possibly other ranks took part in the first attempt, and that three
/// ranks took part in a second attempt at a different port.
fn assert_started_again(stdout: &str, failed: usize) {
    let reports = reports(stdout);
    let of = |number| {
        reports
            .iter()
            .filter(move |(_, attempt, _)| *attempt == number)
    };
    let ranks: Vec<_> = of(1).map(|(rank, ..)| *rank).collect();
    assert_eq!(ranks, [0, 1, 2], "{stdout}");
    assert!(of(0).any(|(rank, ..)| *rank == failed), "{stdout}");
    let ports = |number| -> BTreeSet<u16> { of(number).map(|(.., port)| *port).collect() };
    assert_eq!((ports(0).len(), ports(1).len()), (1, 1), "{stdout}");
    assert_ne!(ports(0), ports(1), "{stdout}");
}

fn one_host(ranks: &str, options: &[&str], script: &str) -> End {
    run(&[&["--nproc-per-node", ranks], options].concat(), script)
}

#[test]
fn job_restarts_and_succeeds_whichever_rank_is_killed() {
    for killed in 0..3 {
        let mark = mark();
        let script = fails_once(killed, "kill -KILL $$", &mark);
        let end = one_host("3", &RESTARTS, &script);
        assert_eq!(end.code, Some(0), "{end:?}");
        let [line] = end.messages()[..] else {
            panic!("expected one message: {end:?}");
        };
        let named = format!("ringtree: rank {killed} was killed by SIGKILL; its last output: ");
        assert!(line.starts_with(&named), "{line}");
        assert!(line.ends_with("; restart 1 of 3"), "{line}");
        assert_started_again(&end.stdout, killed);
        assert!(end.took < STOP_LIMIT, "{:?}", end.took);
        assert_eq!(sleepers(&mark), NO_PROCESSES);
    }
}

#[test]
fn suspended_or_unresponsive_ranks_are_killed_before_restart() {
    let mark = mark();
    let script = format!(
        "if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then case $RANK in 0) sleep 0.2; exit 3;; \
         1) kill -STOP $$;; 2) trap '' TERM;; esac; sleep {mark} & sleep {mark}; fi; echo fine"
    );
    let end = one_host("3", &RESTARTS, &script);
    assert_eq!((end.code, end.lines().len()), (Some(0), 3), "{end:?}");
    assert!(end.messages()[0].contains("rank 0 exited with code 3"));
    assert_eq!(sleepers(&mark), NO_PROCESSES);
}

#[test]
fn job_that_always_fails_reports_last_cause() {
    let mark = mark();
    let script =
        format!("echo $RINGTREE_ATTEMPT; if [ $RANK = 1 ]; then kill -KILL $$; fi; sleep {mark}");
    let end = one_host("2", &["--max-restarts", "2"], &script);
    assert_eq!(end.code, Some(1), "{end:?}");
    let line = |attempt, then| {
        format!("ringtree: rank 1 was killed by SIGKILL; its last output: {attempt}; {then}")
    };
    let expected = [
        line(0, "restart 1 of 2"),
        line(1, "restart 2 of 2"),
        line(2, "no restarts left"),
    ];
    assert_eq!(end.messages(), expected);
    assert!(end.took < STOP_LIMIT, "{:?}", end.took);
    assert_eq!(sleepers(&mark), NO_PROCESSES);
}

#[test]
fn wrong_usage_is_not_restarted() {
    let end = one_host("2", &RESTARTS, "echo unknown flag >&2; exit 2");
    assert_eq!((end.code, end.messages().len()), (Some(2), 1), "{end:?}");
    assert!(
        end.messages()[0].contains("is above, after [")
            && end.messages()[0].contains("; no restart: exit code 2"),
        "{end:?}"
    );
}

#[test]
fn unnamed_job_keeps_generated_name_across_attempts() {
    let script = "echo $TORCHELASTIC_RUN_ID; exit $((1 - $TORCHELASTIC_RESTART_COUNT))";
    let names = [0, 1].map(|_| {
        let end = one_host("1", &["--max-restarts", "1"], script);
        assert_eq!((end.code, end.lines().len()), (Some(0), 1), "{end:?}");
        end.stdout
    });
    assert_ne!(names[0], names[1]);
}

#[test]
fn signaled_launcher_never_restarts() {
    let mark = mark();
    let script = format!("echo up; sleep {mark}; exit 1");
    let options = ["--nproc-per-node", "2", "--max-restarts", "3"];
    let child = launcher(&options, &script).spawn().unwrap();
    eventually("both sleep", || sleepers(&mark).len() == 2);
    signal(child.id(), "INT");
    let end = wait(child);
    assert_eq!((end.code, end.lines().len()), (Some(1), 2), "{end:?}");
    assert_eq!(
        end.messages(),
        ["ringtree: the launcher received SIGINT and forwarded it to its ranks"]
    );

    // A signal also prevents the restart if it arrives while the ranks are being stopped for it.
    let folder = tempfile::tempdir().unwrap();
    let deaf = folder.path().join("deaf");
    let deaf = deaf.to_str().unwrap();
    let script = format!(
        "if [ $RANK = 0 ]; then until [ -e {deaf} ]; do sleep 0.01; done; exit 1; fi; \
         trap '' TERM; touch {deaf}; while :; do sleep {mark} & wait; done"
    );
    let mut child = launcher(&options, &script).spawn().unwrap();
    let mut messages = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(messages.next().unwrap().unwrap().contains("restart 1 of 3"));
    signal(child.id(), "TERM");
    let line = messages.next().unwrap().unwrap();
    assert!(line.contains("the launcher received SIGTERM"), "{line}");
    assert!(messages.next().is_none());
    assert_eq!(wait(child).code, Some(1));
    assert_eq!(sleepers(&mark), NO_PROCESSES);
}

/// The code of the ranks below, which run this test binary. Runs an all-reduce, or [`train`]. In
/// the first attempt, one rank dies during a call. If the test names a file, rank 1 of a later
/// attempt waits until the file exists.
#[test]
fn rank() {
    let Ok(role) = std::env::var("RESTARTS_TEST") else {
        return;
    };
    let number = |name: &str| -> u16 { std::env::var(name).unwrap().parse().unwrap() };
    let (attempt, rank) = (number("RINGTREE_ATTEMPT"), number("RANK"));
    if attempt > 0 && rank == 1 && role.starts_with('/') {
        let rendezvous = std::env::var("RINGTREE_RENDEZVOUS").unwrap();
        let (_, port) = rendezvous.rsplit_once(':').unwrap();
        println!("reach {port} {}", std::env::var("RINGTREE_SECRET").unwrap());
        eventually("the file for rank 1 exists", || Path::new(&role).exists());
    }
    let comm = match Communicator::from_env() {
        Ok(comm) => comm,
        Err(error) => {
            println!("refused: {error}");
            std::process::exit(3);
        }
    };
    if let Some(folder) = role.strip_prefix("train ") {
        let is_killed = attempt == 0 && rank == 1 && std::env::var("TRAIN_UNDISTURBED").is_err();
        let dies_at = is_killed.then_some(6);
        println!("weights {}", train(&comm, Path::new(folder), dies_at));
        drop(comm);
        std::process::exit(0);
    }
    if role == "table" {
        let (record, origin) = (comm.tuning(), comm.info().tuning_origin);
        println!("table {attempt} {origin:?} {record}");
    }
    let mut sum = [f32::from(rank) + 1.0];
    comm.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
    if attempt == 0 && role == "leaves" {
        if rank == 1 {
            eprintln!("KeyError: 'my bug'");
            drop(comm);
            loop {
                std::thread::park();
            }
        }
        eprintln!("{}", comm.barrier().unwrap_err());
        std::process::exit(1);
    }
    if attempt == 0 {
        if role == "killed 0" && rank == 0 || role != "killed 0" && rank == 1 {
            std::process::abort();
        }
        comm.barrier().unwrap_or_else(|_| std::process::exit(1));
    }
    println!("attempt {attempt} sum {}", sum[0]);
    // Say goodbye: a rank that exits without a goodbye may fail a peer that is still reading.
    drop(comm);
    std::process::exit(0);
}

/// Runs ten steps on synthetic gradients whose sizes favor different algorithms. Saves each step,
/// so that later attempts continue from the last one. In step `dies_at`, the rank aborts after the
/// other ranks have entered a call with it. Returns a hash of the weights.
fn train(comm: &Communicator, folder: &Path, dies_at: Option<u64>) -> u64 {
    let sizes = [300usize, 8_000, 30_000, 100_000];
    let file = folder.join("weights");
    let kept = fs::read(&file).unwrap_or_default();
    let numbers = |bytes: &[u8]| -> Vec<f32> {
        let words = bytes.chunks_exact(4);
        words
            .map(|word| f32::from_le_bytes(word.try_into().unwrap()))
            .collect()
    };
    let (mut step, mut weights) = match kept.split_first_chunk::<8>() {
        Some((step, weights)) => (u64::from_le_bytes(*step), numbers(weights)),
        None => (0, vec![0.5; sizes.iter().sum()]),
    };
    // Wait until all ranks have read the file, before any rank writes it.
    comm.barrier().unwrap_or_else(|_| std::process::exit(1));
    while step < 10 {
        let mut rest = &mut weights[..];
        for size in sizes {
            let (part, after) = rest.split_at_mut(size);
            rest = after;
            let slope = |(at, weight): (usize, &f32)| {
                let phase = at as f32 + 7.0 * step as f32 + 31.0 * comm.rank() as f32;
                phase.sin() * (1.0 + weight.abs())
            };
            let mut gradient: Vec<f32> = part.iter().enumerate().map(slope).collect();
            if dies_at == Some(step) && size == 30_000 {
                std::process::abort();
            }
            let summed = comm.all_reduce(&mut gradient, ReduceOp::Avg);
            summed.unwrap_or_else(|_| std::process::exit(1));
            let update = |(weight, slope): (&mut f32, f32)| *weight -= 0.1 * slope;
            part.iter_mut().zip(gradient).for_each(update);
        }
        step += 1;
        if comm.rank() == 0 {
            let bytes = weights.iter().flat_map(|weight| weight.to_le_bytes());
            let bytes: Vec<u8> = step.to_le_bytes().into_iter().chain(bytes).collect();
            fs::write(folder.join("new"), bytes).unwrap();
            fs::rename(folder.join("new"), &file).unwrap();
        }
    }
    let bits = weights.iter().map(|weight| u64::from(weight.to_bits()));
    bits.fold(17, |hash, bits| {
        (hash ^ bits).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Threads that keep the cores busy until the value is dropped.
struct Load(std::sync::Arc<std::sync::atomic::AtomicBool>);

impl Load {
    fn new() -> Self {
        let load = Self(Default::default());
        for _ in 0..4 {
            let is_over = std::sync::Arc::clone(&load.0);
            thread::spawn(move || while !is_over.load(Ordering::Relaxed) {});
        }
        load
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs a training job over TCP, in which one rank is killed if `is_killed`. Returns a hash of the
/// final weights, which must be the same on all ranks.
fn final_weights(is_killed: bool) -> String {
    let folder = tempfile::tempdir().unwrap();
    let role = format!("train {}", folder.path().display());
    let mut job = job(5, &[], &role);
    job.env("RINGTREE_TRANSPORT", "tcp");
    if !is_killed {
        job.env("TRAIN_UNDISTURBED", "1");
    }
    let end = wait(job.spawn().unwrap());
    assert_eq!(end.code, Some(0), "{end:?}");
    assert_eq!(end.messages().len(), usize::from(is_killed), "{end:?}");
    let mut weights: Vec<&str> = end
        .stdout
        .lines()
        .filter_map(|line| Some(line.split_once("weights ")?.1))
        .collect();
    assert_eq!(weights.len(), 5, "{end:?}");
    weights.dedup();
    assert_eq!(weights.len(), 1, "the replicas differ: {end:?}");
    weights[0].to_owned()
}

#[test]
fn training_killed_under_load_has_same_final_bits() {
    let undisturbed = final_weights(false);
    let _load = Load::new();
    for _ in 0..2 {
        assert_eq!(final_weights(true), undisturbed);
    }
    assert_eq!(
        final_weights(false),
        undisturbed,
        "runs without a restart must agree"
    );
}

/// Returns the tuning tables that the ranks printed, as `attempt origin record`.
fn tables(ends: &[End]) -> BTreeSet<String> {
    let lines = ends.iter().flat_map(|end| end.stdout.lines());
    lines
        .filter_map(|line| Some(line.split_once("table ")?.1.to_owned()))
        .collect()
}

/// Checks that all ranks used one table in both attempts, and that the first attempt measured it.
fn assert_one_table(tables: &BTreeSet<String>) {
    let mut tables = tables.iter();
    let first = tables.next().unwrap().strip_prefix("0 Measured ");
    let then = tables.next().unwrap().strip_prefix("1 Launcher ");
    assert!(first.is_some() && first == then, "{first:?} {then:?}");
    assert_eq!(tables.next(), None);
}

/// Puts each rank on a separate host, because only links between hosts are measured.
const HOST_PER_RANK: &str = "export RINGTREE_HOST_ID=$RANK;";

#[test]
fn all_attempts_use_tuning_table_of_first() {
    let program = std::env::current_exe().unwrap();
    let program = program.to_str().unwrap();
    let script = format!("{HOST_PER_RANK} exec '{program}' --exact restarts::rank --nocapture");
    let end = {
        let _load = Load::new();
        let mut line = launcher(&["--nproc-per-node", "3", "--max-restarts", "1"], &script);
        wait(line.env("RESTARTS_TEST", "table").spawn().unwrap())
    };
    assert_eq!(end.code, Some(0), "{end:?}");
    assert!(
        end.stderr.contains("set RINGTREE_TUNING=FILE to keep"),
        "{end:?}"
    );
    assert_one_table(&tables(&[end]));

    let hosts = Hosts::new(2);
    let options = ["--max-restarts", "1"];
    let job = [1, 2].map(|ranks| {
        wait_in_thread(
            hosts
                .launcher(ranks, &options, &script)
                .env("RESTARTS_TEST", "table"),
        )
    });
    let ends = job.map(|end| end.join().unwrap());
    assert!(ends.iter().all(|end| end.code == Some(0)), "{ends:?}");
    assert_one_table(&tables(&ends));
}

/// Returns the command `ringtree run OPTIONS -- [rank]` with two ranks.
fn ranks(options: &[&str], role: &str) -> Command {
    job(2, options, role)
}

fn job(count: usize, options: &[&str], role: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringtree"));
    let program = std::env::current_exe().unwrap();
    command
        .args(["run", "--nproc-per-node", &count.to_string()])
        .args(["--max-restarts", "2"])
        .args(options)
        .arg("--")
        .arg(program)
        .args(["--exact", "restarts::rank", "--nocapture"])
        .env("RESTARTS_TEST", role)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

#[test]
fn rank_that_leaves_without_exiting_is_named_and_quoted() {
    let end = wait(ranks(&[], "leaves").spawn().unwrap());
    assert_eq!(end.code, Some(0), "{end:?}");
    let line = "ringtree: rank 0 exited with code 1 because it lost rank 1, which had not exited; \
                its last output is above, after [1]; restart 1 of 2";
    let messages = end.messages();
    let named = messages.iter().filter(|message| message.starts_with(line));
    assert_eq!(named.count(), 1, "{end:?}");
}

#[test]
fn communicating_ranks_reconnect_after_restart() {
    for role in ["killed 0", "killed 1"] {
        let end = wait(ranks(&[], role).spawn().unwrap());
        assert_eq!(end.code, Some(0), "{end:?}");
        assert_eq!(end.stdout.matches("attempt 1 sum 3").count(), 2, "{end:?}");
        assert_eq!(end.messages().len(), 1, "{end:?}");
        let rank = role.rsplit(' ').next().unwrap();
        let named = format!("ringtree: rank {rank} was killed by SIGABRT");
        assert!(end.messages()[0].starts_with(&named), "{end:?}");
    }
}

#[test]
fn rank_of_old_attempt_is_rejected_and_disturbs_no_rank() {
    let folder = tempfile::tempdir().unwrap();
    let word = folder.path().join("join");
    let mut job = ranks(&[], word.to_str().unwrap()).spawn().unwrap();
    let mut lines = BufReader::new(job.stdout.take().unwrap()).lines();
    let line = lines
        .find_map(|line| Some(line.unwrap().split_once("reach ")?.1.to_owned()))
        .unwrap();
    let (port, secret) = line.split_once(' ').unwrap();
    // Rank 0 of the second attempt is waiting when a rank 1 of the first attempt connects.
    let mut old = Command::new(std::env::current_exe().unwrap());
    old.args(["--exact", "restarts::rank", "--nocapture"])
        .env("RESTARTS_TEST", "old")
        .env("RINGTREE_SECRET", secret)
        .env("RINGTREE_RENDEZVOUS", format!("127.0.0.1:{port}"));
    for (name, value) in [
        ("RANK", "1"),
        ("WORLD_SIZE", "2"),
        ("RINGTREE_ATTEMPT", "0"),
    ] {
        old.env(name, value);
    }
    let end = wait(
        old.stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    assert_eq!(end.code, Some(3), "{end:?}");
    let message = end
        .stdout
        .lines()
        .find(|line| line.contains("refused: "))
        .unwrap();
    for part in [
        "rank 1",
        "attempt 0",
        "attempt 1",
        port,
        "a restart has replaced this process",
    ] {
        assert!(message.contains(part), "{message}");
    }
    fs::write(&word, "").unwrap();
    let rest: String = lines.map(|line| line.unwrap() + "\n").collect();
    assert_eq!(rest.matches("attempt 1 sum 3").count(), 2, "{rest}");
    let end = wait(job);
    assert_eq!((end.code, end.messages().len()), (Some(0), 1), "{end:?}");
}

/// Runs two launchers of one job until both exit. The first starts two ranks, and the second one
/// rank.
fn two_hosts(hosts: &Hosts, options: &[&str], script: &str) -> [End; 2] {
    let first = hosts.coordinator(2, options, script);
    let second = wait_in_thread(&mut hosts.launcher(1, options, script));
    [wait(first), second.join().unwrap()]
}

#[test]
fn failure_on_one_host_restarts_ranks_of_all_hosts() {
    for failing in 0..3 {
        let hosts = Hosts::new(2);
        let mark = mark();
        let script = fails_once(failing, "kill -KILL $$", &mark);
        let ends = two_hosts(&hosts, &RESTARTS, &script);
        let mut both = String::new();
        for end in &ends {
            assert_eq!((end.code, end.messages().len()), (Some(0), 1), "{ends:?}");
            let named = format!("ringtree: rank {failing} (node {}, host ", failing / 2);
            assert!(end.messages()[0].starts_with(&named), "{end:?}");
            assert!(end.messages()[0].ends_with("; restart 1 of 3"), "{end:?}");
            both += &end.stdout;
        }
        assert_started_again(&both, failing);
        assert_eq!(sleepers(&mark), NO_PROCESSES);
    }
}

#[test]
fn hosts_share_one_restart_limit() {
    let hosts = Hosts::new(2);
    let mark = mark();
    let script = format!("if [ $RANK = 2 ]; then exit 7; fi; sleep {mark}");
    for end in two_hosts(&hosts, &["--max-restarts", "1"], &script) {
        assert_eq!((end.code, end.messages().len()), (Some(1), 2), "{end:?}");
        assert!(end.messages()[0].ends_with("restart 1 of 1"), "{end:?}");
        assert!(end.messages()[1].contains("rank 2 (node 1"), "{end:?}");
        assert!(end.messages()[1].ends_with("no restarts left"), "{end:?}");
        assert!(end.took < STOP_LIMIT, "{:?}", end.took);
    }
    assert_eq!(sleepers(&mark), NO_PROCESSES);
}

#[test]
fn lost_launcher_stops_job_which_can_be_started_again() {
    let hosts = Hosts::new(2);
    for killed in 0..2 {
        let mark = mark();
        let script = format!("echo $RINGTREE_ATTEMPT; [ -z \"$SLEEPS\" ] || sleep {mark}");
        let mut first = hosts.launcher(1, &RESTARTS, &script);
        let mut second = hosts.launcher(1, &RESTARTS, &script);
        let both = [&mut first, &mut second];
        let mut both = both.map(|launcher| launcher.env("SLEEPS", "1").spawn().unwrap());
        eventually("both sleep", || sleepers(&mark).len() == 2);
        both[killed].kill().unwrap();
        let ends = both.map(wait);
        let end = &ends[1 - killed];
        assert_eq!((end.code, end.messages().len()), (Some(1), 1), "{end:?}");
        assert!(
            end.messages()[0].contains("start the same command again"),
            "{end:?}"
        );
        assert!(end.took < STOP_LIMIT, "{:?}", end.took);
        eventually("no process is left", || running(&mark).is_empty());
        let again = [first, second].map(|mut line| wait_in_thread(line.env("SLEEPS", "")));
        for end in again.map(|end| end.join().unwrap()) {
            assert_eq!(end.code, Some(0), "{end:?}");
            assert!(end.stdout.ends_with(": 0\n"), "{end:?}");
        }
    }
}

#[test]
fn signal_to_one_launcher_stops_all_without_restart() {
    for signalled in 0..2 {
        let hosts = Hosts::new(2);
        let mark = mark();
        let script = format!("sleep {mark}; exit 1");
        let first = hosts.coordinator(1, &RESTARTS, &script);
        let second = hosts.launcher(1, &RESTARTS, &script).spawn().unwrap();
        eventually("both sleep", || sleepers(&mark).len() == 2);
        signal([&first, &second][signalled].id(), "TERM");
        for end in [first, second].map(wait) {
            assert_eq!((end.code, end.messages().len()), (Some(1), 1), "{end:?}");
            let named = format!("ringtree: the launcher of node {signalled} (host ");
            assert!(end.messages()[0].starts_with(&named), "{end:?}");
        }
        assert_eq!(sleepers(&mark), NO_PROCESSES);
    }
}
