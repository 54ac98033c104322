//! Ranks as processes, all of them on one GPU: this test binary starts itself.

use crate::peers::gpu;
use crate::pretended::REQUIRED;
use crate::ranks::{Rank, Way, device, rendezvous};
use crate::slices::slices;
use crate::{SEGMENT_BYTES, every_case};
use ringtree::comm::attach::AttachOptions;
use ringtree::comm::device_buffer::DeviceBuffer;
use ringtree::device::Device;
use ringtree::device::fake::{Fake, Options, freed_too_early};
use ringtree::limits::DEVICE_FAREWELL;
use ringtree::plan::Algorithm;
use ringtree::{Communicator, Error, ReduceOp, Result};
use std::process::{Command, Stdio};
use std::sync::Arc;
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
    // The communicator is gone; the pretended driver has ended the process, if it had to.
    let said = match freed_too_early() {
        0 => said,
        times => format!("{said}, but memory was freed too early {times} times"),
    };
    eprintln!("{MARK}{said}");
    std::process::exit(0);
}

fn child(role: &str) -> Result<String> {
    let comm = Communicator::from_env()?;
    let options = match role {
        "apart" | "peers" => gpu(comm.rank()),
        _ => Options::default(),
    };
    // Those who are left wait for what a stream was told and did not come to.
    let slow = Options {
        pauses: (role == "killed").then_some(7),
        ..options
    };
    let device = device(slow).or_else(|| device(options));
    let device = device.expect("a device can be so");
    let way = match std::env::var(WAY) {
        Ok(_) => Way::Signalled,
        Err(_) => Way::Mapped,
    };
    let attach = crate::ranks::options(way).peer_access(role == "peers");
    let rank = Rank::with(comm, &device, attach)?;
    Ok(match role {
        "leaving" => leaving(rank)?,
        "late" => late(rank)?,
        "killed" => bereaved(&rank)?,
        "again" => again(&rank)?,
        "freed" => freed(&rank)?,
        "held up" => held_up(rank)?,
        "peers" => format!("{}, {}", ways(&rank), cases(&rank)?),
        "slices" => slices(&rank)?,
        _ => cases(&rank)?,
    })
}

/// What the rank's segments travel over.
fn ways(rank: &Rank) -> String {
    rank.comm.device_transport().unwrap_or_default()
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

/// Ranks leave their communicators one after another, each in an order of its own.
fn leaving(rank: Rank) -> Result<String> {
    let Rank {
        comm,
        device,
        stream,
    } = rank;
    let mut comms = vec![comm.duplicate()?, comm];
    let options = AttachOptions::new().segment_bytes(SEGMENT_BYTES);
    comms[0].attach_with(&device, options)?;
    for comm in &comms {
        let mut buffer = comm.alloc_on_device::<f32>(&stream, 5000)?;
        comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
        let mut other = DeviceBuffer::new(&device, &stream, &[1.0f32; 5000])?;
        comm.all_reduce(&mut other, ReduceOp::Sum)?;
        comm.synchronize()?;
    }
    let own = comms[0].rank();
    if own == 0 {
        comms.reverse();
    }
    for comm in comms {
        std::thread::sleep(Duration::from_millis(300 * own as u64));
        drop(comm);
    }
    Ok("all right".into())
}

/// The first rank leaves when it has handed over what the other comes to much later.
fn late(rank: Rank) -> Result<String> {
    let own = rank.comm.rank();
    let words = rank.device.words(1)?;
    let content = [1 - own as i32; 100];
    let mut buffer = DeviceBuffer::new(&rank.device, &rank.stream, &content)?;
    rank.comm.use_algorithm(Some(Algorithm::Flat))?;
    if own == 1 {
        rank.stream.wait_word(&words.word(0)?, 1)?;
    }
    rank.comm.broadcast(&mut buffer, 0)?;
    if own == 1 {
        // Longer than anybody waits who leaves.
        std::thread::sleep(DEVICE_FAREWELL + Duration::from_secs(1));
        words.word(0)?.store(1);
    }
    rank.comm.synchronize()?;
    let is_right = buffer.read()? == [1; 100];
    Ok(if is_right { "all right" } else { "wrong" }.into())
}

/// What was attached before is let go of in order.
fn again(rank: &Rank) -> Result<String> {
    let options = AttachOptions::new().segment_bytes(2 * SEGMENT_BYTES);
    for _ in 0..3 {
        rank.comm.attach_with(&rank.device, options)?;
        let mut buffer = rank.comm.alloc_on_device::<i32>(&rank.stream, 30_000)?;
        rank.comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
    }
    rank.comm.synchronize()?;
    cases(rank)
}

/// Attaching again frees what was there for the device before.
fn freed(rank: &Rank) -> Result<String> {
    let fake = Fake::new();
    let device: Arc<dyn Device> = Arc::new(fake.clone());
    let segments = AttachOptions::new().segment_bytes(SEGMENT_BYTES);
    let mut allocated = Vec::new();
    for _ in 0..3 {
        rank.comm.attach_with(&device, segments)?;
        allocated.push(fake.allocated_bytes());
        let mut buffer = rank
            .comm
            .alloc_on_device::<i32>(&device.stream()?, 30_000)?;
        rank.comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
    }
    let is_equal = allocated.iter().all(|bytes| *bytes == allocated[0]);
    Ok(match is_equal {
        true => "all right".into(),
        false => format!("{allocated:?} bytes"),
    })
}

/// A rank cannot close what it has mapped as long as a stream of its process waits for a call, here
/// of another communicator.
fn held_up(rank: Rank) -> Result<String> {
    let Rank {
        comm,
        device,
        stream,
    } = rank;
    let other = comm.duplicate()?;
    let options = AttachOptions::new().segment_bytes(SEGMENT_BYTES);
    other.attach_with(&device, options)?;
    let mut buffer = DeviceBuffer::new(&device, &stream, &[1i32; 5000])?;
    comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
    comm.synchronize()?;
    if comm.rank() == 1 {
        // Longer than anybody waits who leaves.
        std::thread::sleep(DEVICE_FAREWELL + Duration::from_secs(1));
        drop(comm);
        other.all_reduce(&mut buffer, ReduceOp::Sum)?;
    } else {
        other.all_reduce(&mut buffer, ReduceOp::Sum)?;
        drop(comm);
    }
    other.synchronize()?;
    let is_right = buffer.read()? == [4; 5000];
    Ok(if is_right { "all right" } else { "wrong" }.into())
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

/// Two whose GPUs reach each other, and one whose does not.
#[test]
fn processes_on_gpus_that_reach_each_other_share_their_memory() {
    let said = start("peers", 3, "shm");
    let said: Vec<_> = said.into_iter().map(Option::unwrap).collect();
    let shared = "cuda+shm, all right";
    assert_eq!(said, [shared, shared, "shm, all right"]);
}

#[test]
fn memory_is_freed_when_nobody_has_it_mapped_any_more() {
    for (role, world_size) in [
        ("leaving", 3),
        ("late", 2),
        ("held up", 2),
        ("again", 2),
        ("again, signalled", 2),
        ("freed", 2),
        ("held up", 2),
    ] {
        let right = Some("all right".to_owned());
        let said = start(role, world_size, "shm");
        assert_eq!(said, vec![right; world_size], "{role}");
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
