//! Tests tensor-parallel inference as in `examples/10_inference.rs`: workers wait for requests
//! indefinitely without occupying a core, and learn of a death immediately.

use super::programs::inference as example;
use crate::ranks::{ALL_LINKS, REPORT_PREFIX, ROLE, Suite, concurrently, exit};
use ringtree::{Communicator, Result};
use rustix::process::Signal;
use std::time::Duration;

/// Starts ranks that run this module's `child_entry`.
const SUITE: Suite = Suite(module_path!());

#[test]
fn child_entry() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    exit(match role.as_str() {
        "serve" => serve(),
        "idle" => idle(),
        other => panic!("unknown role {other}"),
    })
}

/// Runs the example with a timeout that is shorter than the idle time between requests.
fn serve() -> Result<String> {
    let comm = Communicator::from_env()?.with_timeout(Duration::from_millis(900));
    let times = example::serve(&comm, std::thread::sleep)?;
    Ok(format!("{} calls", times.len()))
}

/// Idles in a call without a timeout, and reports how much of a core it used meanwhile.
fn idle() -> Result<String> {
    let comm = Communicator::from_env()?.with_timeout(Duration::from_millis(500));
    let patient = comm.without_timeout();
    // All links are open from here on.
    patient.barrier()?;
    let (start, used) = (comm.clock(), cpu_ticks());
    if comm.rank() == 0 {
        eprintln!("{REPORT_PREFIX}started");
        std::thread::sleep(idle_time());
    }
    comm.without_timeout().broadcast(&mut [0u8; 64], 0)?;
    let idled = (comm.clock() - start).as_secs_f64();
    let used = cpu_ticks() - used;
    // A rank that polls in a loop would use all the CPU time that the other ranks leave it.
    let word = if used as f64 / 100.0 < idled / 5.0 {
        "idle"
    } else {
        "busy"
    };
    Ok(format!("{word}: {used} ticks of 10 ms in {idled:.1} s"))
}

fn idle_time() -> Duration {
    let seconds = std::env::var("IDLE_SECONDS").ok();
    Duration::from_secs(seconds.and_then(|text| text.parse().ok()).unwrap_or(3))
}

/// Returns the CPU time that this process has used, in hundredths of a second.
fn cpu_ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let fields: Vec<_> = fields.split(' ').collect();
    // utime and stime are fields 14 and 15. `fields` begins with field 3, the state.
    [11, 12]
        .map(|at| fields[at].parse::<u64>().unwrap())
        .iter()
        .sum()
}

#[test]
fn inference_example_serves_over_all_links() {
    concurrently(ALL_LINKS, |links| {
        let ranks = SUITE.start(links, "serve", 4, &[]);
        let (said, _) = ranks.next_reports(&[0, 1, 2, 3]);
        assert_eq!(said, vec!["500 calls"; 4], "{links:?}");
    });
}

#[test]
fn calls_without_timeout_use_no_core() {
    concurrently(ALL_LINKS, |links| {
        let ranks = SUITE.start(links, "idle", 4, &[]);
        assert_eq!(ranks.next_reports(&[0]).0, ["started"]);
        let (said, _) = ranks.next_reports(&[0, 1, 2, 3]);
        println!("{links:?}: {said:?}");
        assert!(
            said.iter().all(|one| one.starts_with("idle")),
            "{links:?}: {said:?}"
        );
    });
}

#[test]
fn calls_without_timeout_report_death() {
    concurrently(ALL_LINKS, |links| {
        let ranks = SUITE.start(links, "idle", 4, &[("IDLE_SECONDS", "7200")]);
        assert_eq!(ranks.next_reports(&[0]).0, ["started"]);
        std::thread::sleep(Duration::from_millis(700));
        ranks.signal(2, Signal::KILL);
        for said in ranks.next_reports(&[1, 3]).0 {
            assert!(said.starts_with("lost 2: "), "{links:?}: {said}");
        }
    });
}
