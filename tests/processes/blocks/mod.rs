//! Calls on one block a rank: in every form, on every kind of buffer, in every layout; on simulated
//! ranks and on real processes, over TCP, through shared memory and with both.

mod counts;
mod forms;

use crate::ranks::{ALL_LINKS, ROLE, Suite, concurrently, exit};
use ringtree::{Communicator, Result};

/// Its ranks enter here.
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
        other => panic!("no role is called {other}"),
    })
}

/// Runs the role in processes, over all links.
fn over_processes(role: &str, world_size: usize, look: impl Fn(&[String]) + Sync) {
    let all: Vec<_> = (0..world_size).collect();
    concurrently(ALL_LINKS, |links| {
        eprintln!("{role} over {links:?}");
        look(&SUITE.start(links, role, world_size, &[]).hear(&all).0);
    });
}
