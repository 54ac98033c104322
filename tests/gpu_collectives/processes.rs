//! Ranks as processes, all of them on one GPU: this test binary starts itself.

use crate::every_case;
use crate::pretended::REQUIRED;
use crate::ranks::{Rank, Way, device, rendezvous};
use crate::slices::slices;
use ringtree::comm::device_buffer::DeviceBuffer;
use ringtree::device::fake::Options;
use ringtree::{Communicator, Error, ReduceOp, Result};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const ROLE: &str = "RINGTREE_TEST_ROLE";
/// There if streams hand over.
const WAY: &str = "RINGTREE_TEST_SIGNALLED";
/// At the end of a role: streams hand over.
const SIGNALLED: &str = ", signalled";
/// In front of what a rank has to say, among the lines of the test harness.
const MARK: &str = "says: ";
/// A rank that waits for a dead one for so long waits for ever.
const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn child_entry() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let said = child(&role).unwrap_or_else(|error| format!("{error:?}"));
    eprintln!("{MARK}{said}");
    std::process::exit(0);
}

fn child(role: &str) -> Result<String> {
    let comm = Communicator::from_env()?;
    let gpu = if role == "apart" {
        comm.rank() as u8
    } else {
        0
    };
    // Those who are left wait for what a stream was told and did not come to.
    let pauses = (role == "killed").then_some(7);
    let options = Options {
        gpu,
        pauses,
        ..Options::default()
    };
    // A GPU cannot be several.
    let device = device(options).or_else(|| device(Options::default()));
    let device = device.expect("there is one");
    let way = match std::env::var(WAY) {
        Ok(_) => Way::Signalled,
        Err(_) => Way::Mapped,
    };
    let rank = Rank::new(comm, &device, way)?;
    let said = match role {
        "killed" => bereaved(&rank)?,
        "slices" => slices(&rank)?,
        _ => cases(&rank)?,
    };
    let _ = rank.comm.barrier();
    Ok(said)
}

fn cases(rank: &Rank) -> Result<String> {
    for case in every_case(rank.comm.world_size()) {
        let wrong = rank.check(&case)?;
        if wrong > 0 {
            return Ok(format!("{wrong} wrong elements in {case:?}"));
        }
    }
    rank.comm.synchronize()?;
    Ok("all right".into())
}

/// The last rank dies while the others' streams wait for it.
fn bereaved(rank: &Rank) -> Result<String> {
    let Rank {
        comm,
        device,
        stream,
    } = rank;
    let mut buffer = DeviceBuffer::new(device, stream, &[1.0f32; 5000])?;
    comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
    comm.synchronize()?;
    let met = comm.barrier();
    if comm.rank() + 1 == comm.world_size() {
        // Some of the calls on the way, or none.
        let nth = std::process::id() % 4;
        for _ in 0..nth {
            comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
        }
        std::process::abort();
    }
    let start = Instant::now();
    let call = |_| comm.all_reduce(&mut buffer, ReduceOp::Sum);
    let called = met.and_then(|()| (0..4).try_for_each(call));
    // The stream goes on, with whatever is there.
    buffer.read()?;
    let waited = start.elapsed();
    // Whoever hears of the death before the call is told by the call, or by the barrier.
    let lost = match called.and_then(|()| comm.synchronize()) {
        Err(Error::PeerLost { rank, .. }) => rank,
        other => return Ok(format!("it ended with {other:?}")),
    };
    let next = comm.all_reduce(&mut buffer, ReduceOp::Sum);
    let is_refused = matches!(next, Err(Error::PeerLost { .. }));
    Ok(format!(
        "lost {lost}, in time: {}, refused: {is_refused}",
        waited < PATIENCE
    ))
}

/// What each of `world_size` processes has to say, if anything.
fn start(role: &str, world_size: usize, transport: &str) -> Vec<Option<String>> {
    let rendezvous = rendezvous();
    let program = std::env::current_exe().unwrap();
    let spawn = |rank: usize| {
        Command::new(&program)
            .args(["processes::child_entry", "--exact", "--nocapture"])
            .env(ROLE, role.trim_end_matches(SIGNALLED))
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", world_size.to_string())
            .env("LOCAL_RANK", rank.to_string())
            .env("LOCAL_WORLD_SIZE", world_size.to_string())
            .env("RINGTREE_RENDEZVOUS", &rendezvous)
            .env("RINGTREE_TRANSPORT", transport)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .envs(role.ends_with(SIGNALLED).then_some((WAY, "")))
            .spawn()
            .unwrap()
    };
    let children: Vec<_> = (0..world_size).map(spawn).collect();
    let said = children.into_iter().map(|child| {
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let mut lines = text.lines();
        lines.find_map(|line| line.strip_prefix(MARK).map(str::to_owned))
    });
    said.collect()
}

#[test]
fn processes_compute_what_one_would() {
    for (role, world_size, transport) in [
        ("together", 2, "shm"),
        ("together", 3, "auto"),
        ("together, signalled", 2, "shm"),
        ("together, signalled", 3, "auto"),
        ("apart, signalled", 2, "shm"),
        ("together", 2, "tcp"),
        ("apart", 3, "shm"),
    ] {
        let said = start(role, world_size, transport);
        let right = Some("all right".to_owned());
        assert_eq!(said, vec![right; world_size], "{role} over {transport}");
    }
}

#[test]
fn slices_of_cudarcs_take_part_and_are_given_back() {
    if std::env::var_os(REQUIRED).is_none() {
        return;
    }
    for transport in ["shm", "tcp"] {
        let right = Some("all right".to_owned());
        assert_eq!(start("slices", 2, transport), vec![right; 2], "{transport}");
    }
}

#[test]
fn streams_that_wait_for_a_dead_rank_go_on_and_nothing_is_reported_good() {
    for (role, transport) in [
        ("killed", "shm"),
        ("killed", "tcp"),
        ("killed, signalled", "shm"),
        ("killed, signalled", "shm"),
    ] {
        let said = start(role, 3, transport);
        let lost = Some("lost 2, in time: true, refused: true".to_owned());
        assert_eq!(said, [lost.clone(), lost, None], "{role} over {transport}");
    }
}
