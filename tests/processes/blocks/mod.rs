//! Tests calls on one block per rank, in every form, with every kind of buffer and in every layout.
//! They run on simulated ranks, and on real processes over TCP, through shared memory, and over
//! both.

mod counts;
mod forms;

use crate::ranks::{ALL_LINKS, ROLE, Suite, concurrently, exit};
use ringtree::{Communicator, Result};

/// Starts ranks that run this module's `child_entry`.
const SUITE: Suite = Suite(module_path!());

#[test]
fn child_entry() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let rank = |run: fn(&Communicator) -> Result<String>| run(&Communicator::from_env()?);
    exit(match role.as_str() {
        "forms" => rank(forms::wrong),
        "counts" => rank(counts::some_wrong),
        "pairs" => rank(counts::pairs),
        other => panic!("unknown role {other}"),
    })
}

/// Runs the role in processes over all links. Passes the ranks' reports to `check`.
fn over_processes(role: &str, world_size: usize, check: impl Fn(&[String]) + Sync) {
    let all: Vec<_> = (0..world_size).collect();
    concurrently(ALL_LINKS, |links| {
        eprintln!("{role} over {links:?}");
        check(
            &SUITE
                .start(links, role, world_size, &[])
                .next_reports(&all)
                .0,
        );
    });
}
