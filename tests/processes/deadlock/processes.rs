//! Tests deadlocks and long waits of ranks that are processes.

use super::deadlocks::DEADLOCKS;
use super::mistakes::{MISTAKES, expected_parts, train};
use super::{CIRCLE, long_waits, soak};
use crate::long::short_or_long;
use crate::ranks::{ALL_LINKS, Links, ROLE, Ranks, Suite, exit};
use ringtree::{Communicator, Result};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Environment variable with the directory for the checkpoints of a training run.
const FOLDER: &str = "RINGTREE_TEST_FOLDER";
/// Timeout of calls that do not complete. On any machine, it is long enough for each rank to learn
/// where the others are.
const TIMEOUT: Duration = Duration::from_secs(12);

/// Starts ranks that run this module's `child_entry`.
const SUITE: Suite = Suite(module_path!());

#[test]
fn child_entry() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    exit(act(&role).map(|()| "all well".to_owned()))
}

fn act(role: &str) -> Result<()> {
    let comm = Communicator::from_env()?;
    let limited = comm.with_timeout(TIMEOUT);
    let folder = std::env::var(FOLDER).unwrap_or_default();
    if let Some((_, mistake)) = MISTAKES.iter().find(|(name, _)| *name == role) {
        return train(&limited, *mistake, Path::new(&folder));
    }
    if let Some((_, program, ..)) = DEADLOCKS.iter().find(|(name, ..)| *name == role) {
        return program(&limited);
    }
    if let Some((_, pause)) = PAUSES.iter().find(|(name, _)| *name == role) {
        return long_waits::second_thread(&comm, &|_, time| pause(time));
    }
    let sleep = |_: &Communicator, time| std::thread::sleep(time);
    match role {
        "late-member" => long_waits::late_member(&comm, &sleep),
        "future-pending" => long_waits::future_pending(&comm, &sleep),
        "computing" => long_waits::computing(&comm, &compute),
        "one-untimed" => long_waits::one_untimed(&comm),
        "both-untimed" => long_waits::both_untimed(&comm),
        "long-untimed-call" => long_untimed_call(&comm),
        "soak" => soak::run(&comm),
        other => panic!("unknown role {other}"),
    }
}

type Pause = fn(Duration);

/// Ways in which a thread can wait before it makes a call. The comments name similar ways.
const PAUSES: [(&str, Pause); 4] = [
    ("sleeps", std::thread::sleep),
    // Like a queue, an event, or a condition with a timeout.
    ("waits-for-a-thread", |time| {
        let (_keeps, never) = std::sync::mpsc::channel::<()>();
        assert!(never.recv_timeout(time).is_err());
    }),
    // Like a client of a server, with a time limit.
    ("waits-for-a-socket", |time| {
        let (mut socket, _other) = UnixStream::pair().expect("two descriptors are free");
        let limited = socket.set_read_timeout(Some(time));
        assert!(limited.is_ok() && socket.read(&mut [0]).is_err());
    }),
    // Like a data loader that waits for its worker.
    ("waits-for-a-process", |time| {
        let seconds = time.as_secs().to_string();
        let ended = Command::new("sleep").arg(seconds).status();
        assert!(ended.expect("sleep is installed").success());
    }),
];

/// Keeps a core busy.
fn compute(_: &Communicator, time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// Issues a call without a timeout, and waits until after the stall warning is due.
fn long_untimed_call(comm: &Communicator) -> Result<()> {
    if comm.rank() == 0 {
        std::thread::sleep(long_waits::LATE);
    }
    comm.without_timeout().barrier()
}

fn hear(ranks: &Ranks, count: usize) -> Vec<String> {
    let all: Vec<usize> = (0..count).collect();
    ranks.next_reports(&all).0
}

#[test]
fn timeout_error_reports_deadlock() {
    let mistakes = MISTAKES.map(|(role, mistake)| (role, 3, expected_parts(mistake)));
    let ends = DEADLOCKS.map(|(role, _, count, parts)| (role, count, parts));
    let all = mistakes.into_iter().chain(ends);
    let started = all.map(|(role, count, parts)| {
        let folder = tempfile::tempdir().unwrap();
        let set = [
            (FOLDER, folder.path().to_str().unwrap()),
            ("RINGTREE_STALL_WARNING_S", "0"),
        ];
        let ranks = SUITE.start(Links::Both, role, count, &set);
        (role, ranks, count, parts, folder)
    });
    for (role, ranks, count, parts, _folder) in started.collect::<Vec<_>>() {
        for text in hear(&ranks, count) {
            for part in parts.iter().chain(&[CIRCLE]) {
                assert!(text.contains(part), "{role}: no {part} in: {text}");
            }
        }
    }
}

#[test]
fn late_calls_complete() {
    let quiet = [("RINGTREE_STALL_WARNING_S", "0")];
    let roles = PAUSES.iter().map(|(role, _)| *role);
    let roles = roles.chain(["late-member", "future-pending", "computing"]);
    let started = roles.map(|role| (role, SUITE.start(Links::Both, role, 3, &quiet)));
    for (role, ranks) in started.collect::<Vec<_>>() {
        assert_eq!(hear(&ranks, 3), ["all well"; 3], "{role}");
    }
}

#[test]
fn untimed_call_ends_by_timeout_of_other_rank() {
    let said = hear(&SUITE.start(Links::Tcp, "one-untimed", 2, &[]), 2);
    let part = r#"on "y" after 4.0 s: rank 0 waits "#;
    assert!(
        said[1].starts_with("deadline: ") && said[1].contains(part),
        "{said:?}"
    );
}

#[test]
fn long_wait_prints_one_warning() {
    let soon = [("RINGTREE_STALL_WARNING_S", "1")];
    let ranks = SUITE.start(Links::Tcp, "sleeps", 2, &soon);
    let computing = SUITE.start(Links::Tcp, "computing", 2, &soon);
    let (said, _) = ranks.next_reports(&[0]);
    let start = "ringtree: rank 0 has waited ";
    let part = r#" s in barrier #2 of 1 u8, by flat, on "x": rank 1 waits "#;
    assert!(
        said[0].starts_with(start) && said[0].contains(part),
        "{said:?}"
    );
    assert_eq!(ranks.next_reports(&[0]).0, ["all well"]);
    let (said, _) = computing.next_reports(&[0]);
    let part = r#", on "x": rank 1 has made no call after #1; the call's timeout is 300 s"#;
    assert!(said[0].contains(part), "{said:?}");
}

#[test]
fn untimed_call_prints_warning_only_in_deadlock() {
    let soon = [("RINGTREE_STALL_WARNING_S", "1")];
    let ranks = SUITE.start(Links::Tcp, "both-untimed", 2, &soon);
    let others = SUITE.start(Links::Tcp, "long-untimed-call", 2, &soon);
    for (rank, text) in hear(&ranks, 2).iter().enumerate() {
        let other = 1 - rank;
        let part =
            format!(": rank {other} waits for rank {rank} in barrier #2 of 1 u8, by flat, on ");
        let is_reported =
            text.contains(&part) && text.ends_with("each other; the call has no timeout");
        assert!(text.starts_with("ringtree: ") && is_reported, "{text}");
    }
    assert_eq!(hear(&others, 2), ["all well"; 2]);
}

/// With `RINGTREE_TEST_LONG=1`, the test runs for two minutes under load.
#[test]
fn soak_of_correct_programs_succeeds() {
    let (load, seconds, loaded_s) = short_or_long((1, "4", 10), (8, "120", 180));
    let until = Instant::now() + Duration::from_secs(loaded_s);
    for _ in 0..load {
        std::thread::spawn(move || {
            while Instant::now() < until {
                std::hint::spin_loop();
            }
        });
    }
    let set = [(soak::SECONDS, seconds), ("RINGTREE_STALL_WARNING_S", "0")];
    let worlds = ALL_LINKS.map(|links| (links, SUITE.start(links, "soak", 4, &set)));
    std::thread::sleep(Duration::from_secs(seconds.parse().unwrap()));
    for (links, ranks) in &worlds {
        let said = hear(ranks, 4);
        assert_eq!(said, ["all well"; 4], "{links:?}");
    }
}
