//! A rank leaves cleanly and its process exits. Then a second rank is killed, leaves, or fails.
//! Every rank that waits for the second rank must get an error that names it.

use crate::long::short_or_long;
use crate::ranks::{ALL_LINKS, Links, REPORT_PREFIX, ROLE, Suite, exit, wait_for_resume};
use ringtree::{Communicator, Error, ErrorKind, Result};
use rustix::process::Signal;
use std::env::var;
use std::time::{Duration, Instant};

const RANKS: usize = 4;
/// The second rank must be named within this time, which is long before the deadline of a call on
/// any machine. Calls without a timeout have no deadline.
const NAMED_WITHIN: Duration = Duration::from_secs(30);
/// The calls in which the remaining ranks wait for the second rank.
const CALLS: [&str; 5] = [
    "recv",
    "patient recv",
    "async recv",
    "barrier",
    "patient barrier",
];
/// The ways in which the second rank ends.
const ENDS: [&str; 5] = [
    "killed",
    "leaves",
    "fails",
    "runs out of time",
    "mismatches",
];
/// Starts ranks that run this module's `child_entry`.
const SUITE: Suite = Suite(module_path!());

#[test]
fn child_entry() {
    if var(ROLE).is_ok() {
        exit(rank());
    }
}

fn rank() -> Result<String> {
    let number = |name: &str| var(name).unwrap().parse::<usize>().unwrap();
    let (left, ending) = (number("TEST_LEFT"), number("TEST_ENDING"));
    let (call, end) = (var("TEST_CALL").unwrap(), var("TEST_END").unwrap());
    let comm = Communicator::from_env()?;
    let rank = comm.rank();
    let others: Vec<_> = (0..RANKS).filter(|one| *one != left).collect();
    // If the call is a barrier, use a communicator of the remaining ranks, and otherwise one of all
    // ranks. In addition, all ranks drop a handle of the world early.
    let (on, numbers) = match call.contains("barrier") {
        false => (Some(comm.duplicate()?), (0..RANKS).collect()),
        true if rank == left => (None, others.clone()),
        true => (Some(comm.subgroup(&others)?), others.clone()),
    };
    comm.barrier()?;
    drop(comm);
    let Some(on) = on.filter(|_| rank != left) else {
        return Ok("left".into());
    };
    let number_of = |rank: usize| numbers.iter().position(|one| *one == rank).unwrap();
    eprintln!("{REPORT_PREFIX}waits");
    wait_for_resume();
    if rank != ending {
        let peer = number_of(ending);
        let patient = on.without_timeout();
        eprintln!("{REPORT_PREFIX}calls");
        return match &*call {
            "recv" => on.recv(&mut [0u8], peer),
            "patient recv" => patient.recv(&mut [0u8], peer),
            "async recv" => {
                on.start_recv(vec![0u8], peer)?.wait()?;
                Ok(())
            }
            "barrier" => on.barrier(),
            _ => patient.barrier(),
        }
        .map(|()| "got through".into());
    }
    let another = number_of(*others.iter().find(|one| **one != ending).unwrap());
    match &*end {
        "fails" => on.abort(&Error::new(ErrorKind::System, "no space on the disk")),
        "runs out of time" => {
            return on
                .with_timeout(Duration::from_millis(100))
                .recv(&mut [0u8], another)
                .map(|()| "got through".into());
        }
        "mismatches" => {
            on.send(&[1u8; 3], another)?;
            on.recv(&mut [0u8], another)?;
        }
        _ => {}
    }
    Ok("ended".into())
}

/// One case: the rank that has left, the rank that ends and how it ends, the links, and the call in
/// which the other ranks wait.
#[derive(Clone, Copy, Debug)]
struct Row {
    left: usize,
    ending: usize,
    end: &'static str,
    links: Links,
    call: &'static str,
}

/// Returns all cases in long runs. Otherwise, returns a selection in which each way to end is
/// combined with each value of every other field.
fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    let mut number = 0;
    for end in ENDS {
        for links in ALL_LINKS {
            for left in [0, 1] {
                // The rank that ends is the lowest remaining rank, which is now the coordinator, or
                // the highest.
                for ending in [1 - left, RANKS - 1] {
                    let calls = short_or_long(1, CALLS.len());
                    for place in 0..calls {
                        let call = CALLS[(number + place) % CALLS.len()];
                        // A point-to-point message cannot mismatch a barrier.
                        let is_possible = end != "mismatches" || !call.contains("barrier");
                        rows.extend(is_possible.then_some(Row {
                            left,
                            ending,
                            end,
                            links,
                            call,
                        }));
                    }
                    number += 1;
                }
            }
        }
    }
    rows
}

fn check(row: Row) {
    let Row {
        left,
        ending,
        end,
        links,
        call,
    } = row;
    let settings = [
        ("TEST_LEFT", left.to_string()),
        ("TEST_ENDING", ending.to_string()),
        ("TEST_CALL", call.into()),
        ("TEST_END", end.into()),
    ];
    let mut ranks = SUITE.start_each(links, "stays", RANKS, |_, command| {
        command.envs(settings.clone());
    });
    let stay: Vec<_> = (0..RANKS).filter(|rank| *rank != left).collect();
    let wait: Vec<_> = stay
        .iter()
        .copied()
        .filter(|rank| *rank != ending)
        .collect();
    for (rank, said) in ranks.next_reports(&[0, 1, 2, 3]).0.iter().enumerate() {
        let expected = if rank == left { "left" } else { "waits" };
        assert_eq!(said, expected, "{row:?}");
    }
    ranks.end(left);
    ranks.resume(&wait);
    ranks.next_reports(&wait);
    let began = Instant::now();
    match end {
        "killed" => ranks.signal(ending, Signal::KILL),
        _ => ranks.resume(&[ending]),
    }
    let (said, last) = ranks.next_reports(&wait);
    for text in said {
        let names = |what: &str| {
            let own = format!("rank {ending} {what}");
            text.contains(&own) || text.contains(&format!("(world rank {ending}) {what}"))
        };
        let is_reported = match end {
            "killed" => names("is gone"),
            "leaves" => names("left after call"),
            "fails" => text.contains("no space on the disk"),
            "runs out of time" => names("timed out in"),
            _ => names("sends 3 u8"),
        };
        assert!(is_reported, "{row:?}: {text}");
    }
    assert!(last - began < NAMED_WITHIN, "{row:?}: {:?}", last - began);
    println!("{row:?}: {:?}", last - began);
}

#[test]
fn remaining_ranks_learn_how_another_rank_ends_after_departure() {
    let rows = rows();
    // Run several cases at the same time, because the ranks sleep most of the time.
    for some in rows.chunks(4) {
        std::thread::scope(|scope| {
            for row in some {
                scope.spawn(|| check(*row));
            }
        });
    }
}
