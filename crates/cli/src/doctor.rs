//! Implements `ringtree doctor`, which shows the facts about this machine that affect a job, the
//! settings that are in effect, and what is wrong with them.

mod cgroup;
mod machine;
mod network;
mod peer;
mod report;
mod settings;
mod sharing;
#[cfg(test)]
mod tests;

use crate::{EXIT_OK, FAILED, gpu};
use report::{Group, variable};
use ringtree::internal::bootstrap::Findings;
use std::io::Write;

/// The arguments of `ringtree doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Also connect to a process at this address and measure the round-trip time
    #[arg(long, value_name = "HOST:PORT", value_parser = peer::parse)]
    peer: Option<peer::Address>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs `ringtree doctor` and returns its exit code, which is 1 if this machine cannot satisfy
/// `RINGTREE_TRANSPORT` or if the peer cannot be reached.
pub(crate) fn execute(arguments: &Arguments) -> u8 {
    let mut problems = Vec::new();
    let mut failures = Vec::new();
    let interfaces = network::interfaces(&mut problems);
    let mut groups = vec![
        machine::versions(),
        network::examine(&interfaces, &mut problems),
    ];
    if let Some(address) = &arguments.peer {
        let mut group = Group::new("Peer");
        let reached = peer::examine(address, &interfaces, &mut group, &mut problems);
        group.add("is reachable", reached.is_ok());
        groups.push(group);
        failures.extend(reached.err());
    }
    problems.extend(failures.clone());
    groups.push(machine::processor(&mut problems));
    groups.push(machine::memory(&mut problems));
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let findings = Findings::here(cores);
    groups.push(sharing::describe(&findings));
    if let Some(problem) = sharing::problem(findings) {
        if variable("RINGTREE_TRANSPORT").as_deref() == Some("shm") {
            failures.push(problem.clone());
        }
        problems.push(problem);
    }
    let mut gpus = Group::new("GPU");
    gpus.add("GPU", gpu::listed());
    gpus.add("GPU buffers", gpu::PATH);
    groups.push(gpus);
    groups.push(settings::examine(&mut problems));
    let output = match arguments.json {
        true => report::json(groups, problems),
        false => report::text(&groups, &problems),
    };
    // A reader that has closed standard output (`| head`) is not an error.
    let _ = std::io::stdout().lock().write_all(output.as_bytes());
    for why in &failures {
        let _ = writeln!(std::io::stderr(), "ringtree doctor: {why}");
    }
    if failures.is_empty() { EXIT_OK } else { FAILED }
}
