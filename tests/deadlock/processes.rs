//! Ranks that are processes.

use crate::mistakes::{MISTAKES, told, train};
use crate::ranks::{ALL_LINKS, Links, ROLE, Ranks, exit};
use crate::{end, go_on, soak};
use ringtree::{Communicator, Result};
use std::path::Path;
use std::time::{Duration, Instant};

/// Where the checkpoints of a training go.
const FOLDER: &str = "RINGTREE_TEST_FOLDER";
/// Much less than the timeout of five minutes, on any machine.
const SOON: Duration = Duration::from_secs(40);

/// Does what the role says, in a copy of this test that is a rank.
pub(crate) fn play() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    exit(act(&role).map(|()| "all well".to_owned()))
}

fn act(role: &str) -> Result<()> {
    let comm = Communicator::from_env()?;
    let folder = std::env::var(FOLDER).unwrap_or_default();
    if let Some((_, mistake)) = MISTAKES.iter().find(|(name, _)| *name == role) {
        return train(&comm, *mistake, Path::new(&folder));
    }
    let pause = |_: &Communicator, time| std::thread::sleep(time);
    match role {
        "grid" => end::grid(&comm),
        "message" => end::message(&comm),
        "second-thread" => go_on::second_thread(&comm, &pause),
        "future-pending" => go_on::future_pending(&comm, &pause),
        "computing" => go_on::computing(&comm, &compute),
        "patient" => go_on::patient(&comm),
        "patient-for-long" => patient_for_long(&comm),
        "soak" => soak::run(&comm),
        other => panic!("no role is called {other}"),
    }
}

/// Uses a core.
fn compute(_: &Communicator, time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// Patient ranks wait for longer than the warning's time.
fn patient_for_long(comm: &Communicator) -> Result<()> {
    if comm.rank() == 0 {
        std::thread::sleep(go_on::LATE);
    }
    comm.patient().barrier()
}

fn hear(ranks: &Ranks, count: usize) -> Vec<String> {
    let all: Vec<usize> = (0..count).collect();
    ranks.hear(&all).0
}

#[test]
fn each_of_the_usual_mistakes_is_told_within_seconds_on_every_rank() {
    for links in [Links::Tcp, Links::SharedMemory] {
        for (role, mistake) in MISTAKES {
            let folder = tempfile::tempdir().unwrap();
            let folder = [(FOLDER, folder.path().to_str().unwrap())];
            let start = Instant::now();
            let said = hear(&Ranks::start(links, role, 3, &folder), 3);
            assert!(start.elapsed() < SOON, "{links:?} {role}: {said:?}");
            for text in &said {
                let is_told = told(mistake)
                    .iter()
                    .all(|part| text.contains(&escaped(part)));
                assert!(is_told && *text == said[0], "{links:?} {role}: {said:#?}");
                assert!(text.contains("rank 0 waits in "), "{text}");
                assert!(text.contains("ranks 1, 2 wait in "), "{text}");
            }
        }
    }
}

/// As a text stands in what a rank says of its error, which is a debugging form.
fn escaped(text: &str) -> String {
    text.replace('"', "\\\"")
}

#[test]
fn a_circle_of_groups_and_one_with_a_message_are_told() {
    for (role, count, part) in [
        (
            "grid",
            4,
            r#"rank 3 waits in barrier #2 of 1 u8, by flat, on "0-3""#,
        ),
        (
            "message",
            2,
            "to rank 0 from rank 1, on the communicator of all ranks",
        ),
    ] {
        let start = Instant::now();
        let said = hear(&Ranks::start(Links::Tcp, role, count, &[]), count);
        assert!(start.elapsed() < SOON, "{role}: {said:?}");
        for text in said {
            assert!(text.contains(&escaped(part)), "{role}: {text}");
        }
    }
}

#[test]
fn what_is_merely_late_goes_on() {
    let quiet = [("RINGTREE_STALL_WARNING_S", "0")];
    let roles = ["second-thread", "future-pending", "computing"];
    for links in [Links::Tcp, Links::SharedMemory] {
        let started = roles.map(|role| Ranks::start(links, role, 3, &quiet));
        for (role, ranks) in roles.iter().zip(started) {
            assert_eq!(hear(&ranks, 3), ["all well"; 3], "{links:?} {role}");
        }
    }
}

#[test]
fn a_patient_wait_is_ended_by_the_others_timeout() {
    let said = hear(&Ranks::start(Links::Tcp, "patient", 2, &[]), 2);
    let part = r#"on "y" after 4.0 s, its timeout: rank 0 waits in barrier #2 of 1 u8, by"#;
    assert!(
        said[1].starts_with("deadline: ") && said[1].contains(part),
        "{said:?}"
    );
}

#[test]
fn a_call_that_waits_for_long_is_told_of_in_one_line_unless_it_is_patient() {
    let soon = [("RINGTREE_STALL_WARNING_S", "1")];
    let ranks = Ranks::start(Links::Tcp, "second-thread", 2, &soon);
    let (said, _) = ranks.hear(&[0]);
    let part =
        r#"s in barrier #2 of 1 u8, by flat, on "x": rank 1 waits in barrier #2 of 1 u8, by "#;
    assert!(
        said[0].starts_with("ringtree: rank 0 has waited ") && said[0].contains(part),
        "{said:?}"
    );
    assert_eq!(ranks.hear(&[0]).0, ["all well"]);
    let ranks = Ranks::start(Links::Tcp, "computing", 2, &soon);
    let (said, _) = ranks.hear(&[0]);
    let part = r#", on "x": rank 1 has made no call after #1; its timeout is 300 s"#;
    assert!(said[0].contains(part), "{said:?}");
    let ranks = Ranks::start(Links::Tcp, "patient-for-long", 2, &soon);
    assert_eq!(hear(&ranks, 2), ["all well"; 2]);
}

/// `RINGTREE_TEST_LONG=1` makes it two minutes under load.
#[test]
fn soak_of_right_programs_ends_well() {
    let is_long = std::env::var_os("RINGTREE_TEST_LONG").is_some();
    let load = if is_long { 8 } else { 1 };
    let seconds = if is_long { "120" } else { "6" };
    let until = Instant::now() + Duration::from_secs(if is_long { 180 } else { 20 });
    for _ in 0..load {
        std::thread::spawn(move || {
            while Instant::now() < until {
                std::hint::spin_loop();
            }
        });
    }
    let set = [(soak::SECONDS, seconds), ("RINGTREE_STALL_WARNING_S", "0")];
    let worlds = ALL_LINKS.map(|links| (links, Ranks::start(links, "soak", 4, &set)));
    std::thread::sleep(Duration::from_secs(seconds.parse().unwrap()));
    for (links, ranks) in &worlds {
        let said = hear(ranks, 4);
        assert_eq!(said, ["all well"; 4], "{links:?}");
    }
}
