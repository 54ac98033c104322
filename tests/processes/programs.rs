//! Six programs as users write them, taken from the examples. They run as processes over TCP,
//! shared memory, and both. They also run on simulated ranks, where each rank in turn is killed at
//! many steps of the program.
//!
//! Each program checks its own results, so a rank that succeeds has the right results.

#[allow(dead_code)]
#[path = "../../examples/07_expert_exchange.rs"]
mod expert_exchange;
#[allow(dead_code)]
#[path = "../../examples/11_grid.rs"]
mod grid;
#[allow(dead_code)]
#[path = "../../examples/10_inference.rs"]
pub(crate) mod inference;
#[allow(dead_code)]
#[path = "../../examples/12_metrics.rs"]
mod metrics;
#[allow(dead_code)]
#[path = "../../examples/08_pipeline.rs"]
mod pipeline;
#[allow(dead_code)]
#[path = "../../examples/14_tokio.rs"]
mod tokio_server;
#[allow(dead_code)]
#[path = "../../examples/09_uneven_shards.rs"]
mod uneven_shards;

use crate::long::short_or_long;
use crate::ranks::{ALL_LINKS, REPORT_PREFIX, ROLE, Suite, concurrently, exit};
use ringtree::internal::sim::Network;
use ringtree::sim::{World, sleep};
use ringtree::{Communicator, Error, ErrorKind, Result};
use rustix::process::Signal;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Number of ranks of every program. The grid program requires exactly this number.
const RANKS: usize = 4;
/// All survivors must learn of a death within this time.
const REPORTED_WITHIN: Duration = Duration::from_secs(3);
/// Maximum number of steps of a program at which each rank is killed. With RINGTREE_TEST_LONG, the
/// maximum is forty times as large.
const STEPS_MAX: usize = 15;

type Program = fn(&Communicator) -> Result<String>;

const PROGRAMS: [(&str, Program); 6] = [
    ("expert exchange", expert_exchange::program),
    ("pipeline", run_pipeline),
    ("uneven shards", uneven_shards::program),
    ("inference", run_inference),
    ("grid", grid::program),
    ("metrics", metrics::program),
];

fn program(name: &str) -> Program {
    let known = PROGRAMS.iter().find(|(one, _)| *one == name);
    known.expect("a program of this name").1
}

fn is_simulated(comm: &Communicator) -> bool {
    comm.info().transport == "sim"
}

/// Runs the pipeline with activations of 4 MiB between processes, or of 40 KiB in simulated links
/// that hold 1,000 bytes.
fn run_pipeline(comm: &Communicator) -> Result<String> {
    let elements = if is_simulated(comm) {
        10_000
    } else {
        pipeline::ELEMENTS
    };
    pipeline::program(comm, elements)
}

fn run_inference(comm: &Communicator) -> Result<String> {
    let times = match is_simulated(comm) {
        true => inference::serve(comm, |time| sleep(comm, time)),
        false => inference::serve(comm, std::thread::sleep),
    };
    Ok(format!("{} all-reduces", times?.len()))
}

// ---- simulated ranks ----

fn world(name: &str) -> World {
    let mut world = World::new(RANKS);
    if name == "pipeline" {
        world.network.window_bytes = 1000;
    }
    world.network.bandwidth_bytes_per_s = 1e9;
    world.network.faults.delay_max = Duration::from_micros(20);
    world
}

/// The results of the program and of the barrier after it. Without the barrier, ranks might leave
/// before the other ranks have completed the program.
type Ends = (Result<String>, Result<()>);

/// Kills each rank in turn at many steps of the program. Asserts that every survivor soon gets the
/// right result or an error that names the dead rank.
fn check_death_at_every_step(name: &str) {
    let program = program(name);
    let code = |comm: &Communicator| -> Ends { (program(comm), comm.barrier()) };
    let ends = world(name).run(code);
    assert!(
        ends.iter().all(|end| end.0.is_ok() && end.1.is_ok()),
        "{ends:?}"
    );

    let times = world(name).event_times(code);
    let steps_max = short_or_long(STEPS_MAX, 40 * STEPS_MAX);
    let stride = times.len().div_ceil(steps_max);
    let mut failed = 0;
    for victim in 0..RANKS {
        // The victims die at different steps.
        for at in times.iter().skip(victim * stride / RANKS).step_by(stride) {
            let mut world = world(name);
            world.network.faults.deaths = vec![(victim, *at)];
            let network = Network::new(world.network.clone(), RANKS);
            let network = Arc::new(Mutex::new(network));
            let ends = ringtree::internal::sim::run_on(&world, &network, code);
            let took = network.lock().unwrap().now() - *at;
            let said = format!("rank {victim} dies at {at:?} and all end after {took:?}: {ends:?}");
            assert!(took < REPORTED_WITHIN, "{said}");
            failed += usize::from(check(&ends, victim, &said));
        }
    }
    // Most deaths occur while other ranks need the victim.
    let deaths = RANKS * times.len().div_ceil(stride);
    println!(
        "{name}: {} steps, {deaths} deaths, {failed} reported",
        times.len()
    );
    assert!(
        failed > deaths / 2,
        "only {failed} of {deaths} deaths were reported"
    );
}

/// Checks the results of the survivors. Returns `true` if any survivor got an error.
fn check(ends: &[Ends], victim: usize, said: &str) -> bool {
    let survivors = || {
        let all = ends.iter().enumerate();
        all.filter(|(rank, _)| *rank != victim).map(|(_, end)| end)
    };
    for (program, barrier) in survivors() {
        let errors = program
            .as_ref()
            .err()
            .into_iter()
            .chain(barrier.as_ref().err());
        for error in errors {
            assert!(names(error, victim), "{said}");
        }
        // No rank passes the barrier without the dead rank.
        assert!(ends[victim].0.is_ok() || barrier.is_err(), "{said}");
    }
    survivors().any(|(_, barrier)| barrier.is_err())
}

fn names(error: &Error, victim: usize) -> bool {
    error.kind() == ErrorKind::PeerLost && names_rank(&error.to_string(), victim)
}

/// Returns `true` if `text` reports that this rank is gone. The text may use the rank's number in
/// any group.
fn names_rank(text: &str, victim: usize) -> bool {
    let forms = [
        format!("rank {victim} is gone"),
        format!("(world rank {victim}) is gone"),
        format!("rank {victim} of the world is gone"),
    ];
    forms.iter().any(|form| text.contains(form))
}

#[test]
fn death_during_expert_exchange_is_named() {
    check_death_at_every_step("expert exchange");
}

#[test]
fn death_during_pipeline_is_named() {
    check_death_at_every_step("pipeline");
}

#[test]
fn death_during_uneven_training_is_named() {
    check_death_at_every_step("uneven shards");
}

#[test]
fn death_during_inference_is_named() {
    check_death_at_every_step("inference");
}

#[test]
fn death_during_grid_is_named() {
    check_death_at_every_step("grid");
}

#[test]
fn death_during_value_exchange_is_named() {
    check_death_at_every_step("metrics");
}

// ---- ranks as processes ----

/// Starts ranks that run this module's `child_entry`.
const SUITE: Suite = Suite(module_path!());

#[test]
fn child_entry() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    exit(match role.as_str() {
        "tokio" => Communicator::from_env().and_then(tokio_server::program),
        role => play(role),
    })
}

/// Runs a program repeatedly, so that the test has time to kill a rank.
fn play(role: &str) -> Result<String> {
    let comm = Communicator::from_env()?;
    program(role)(&comm)?;
    eprintln!("{REPORT_PREFIX}{RESULTS_ARE_RIGHT}");
    loop {
        program(role)(&comm)?;
    }
}

const RESULTS_ARE_RIGHT: &str = "the results are right";

#[test]
fn processes_get_right_results_and_name_killed_rank() {
    let victim = 2;
    for links in ALL_LINKS {
        let all = PROGRAMS.map(|(name, _)| (name, SUITE.start(links, name, RANKS, &[])));
        for (name, ranks) in all {
            let said = ranks.next_reports(&[0, 1, 2, 3]).0;
            assert_eq!(said, [RESULTS_ARE_RIGHT; RANKS], "{name} over {links:?}");
            ranks.signal(victim, Signal::KILL);
            for end in ranks.next_reports(&[0, 1, 3]).0 {
                let is_reported = end.starts_with("lost ") && names_rank(&end, victim);
                assert!(is_reported, "{name} over {links:?}: {end}");
            }
        }
    }
}

#[test]
fn tokio_server_answers_all_clients() {
    concurrently(ALL_LINKS, |links| {
        let (said, _) = SUITE.start(links, "tokio", 3, &[]).next_reports(&[0, 1, 2]);
        let all_answered = said[0].starts_with("rank 0 of 3 has answered 8 clients");
        assert!(all_answered, "{links:?}: {said:?}");
    });
}
