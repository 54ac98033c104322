//! Tests long calls that fail midway, and resource leaks over many calls.

use super::world::{Act, Rank, World, ok};
use ringtree::ErrorKind;
use ringtree::cuda::DeviceBuffer;
use ringtree::plan::Algorithm;
use ringtree::{ReduceOp, Result};
use std::time::Duration;

pub(crate) fn act(role: &str) -> Option<Act> {
    Some(match role {
        "driver fails" => driver_fails,
        "long call" => long_call,
        "attach repeatedly" => attach_repeatedly,
        "many buffers" => many_buffers,
        "dies attaching" => dies_attaching,
        _ => return None,
    })
}

/// The driver of one rank rejects everything from some point in a long call onward. All ranks get
/// an error, and their streams continue.
#[test]
fn driver_failure_midway_blocks_no_stream() {
    for from in ["7", "15", "30"] {
        for rank in ["0", "1"] {
            for settings in [&[][..], &[("STRICT", "1"), ("ONE_THREAD", "1")]] {
                let world = World::new(2, "mapped").with("FAIL_FROM", from);
                let world = world.with("FAIL_RANK", rank);
                let settings = settings.iter();
                let world = settings.fold(world, |world, (name, value)| world.with(name, value));
                world.expect("driver fails", ok(2));
            }
        }
    }
}

fn driver_fails(rank: &Rank) -> Result<String> {
    let Rank {
        comm,
        device,
        stream,
    } = rank;
    let mut buffer = DeviceBuffer::new(device, stream, &vec![1u8; 150_000_000])?;
    comm.use_algorithm(Some(Algorithm::Flat))?;
    // The other rank may fail while this rank is still in the barrier.
    let called = comm.barrier();
    let called = called.and_then(|()| comm.broadcast(&mut buffer, 1));
    let Err(error) = called.and_then(|()| comm.synchronize()) else {
        return Ok("good".into());
    };
    if error.kind() != ErrorKind::Device {
        return Ok(format!("{error:?}"));
    }
    let text = error.to_string();
    assert!(text.contains("999"), "{text}");
    // The stream must not remain blocked.
    stream.synchronize()?;
    Ok("ok".into())
}

/// The other rank never issues a call of several rounds. The error must name this late rank.
#[test]
fn timeout_of_long_call_names_late_rank() {
    let world = World::new(2, "mapped").impatient();
    world.expect("long call", vec!["deadline", "late"]);
}

fn long_call(rank: &Rank) -> Result<String> {
    let Rank {
        comm,
        device,
        stream,
    } = rank;
    let mut buffer = DeviceBuffer::new(device, stream, &vec![1u8; 150_000_000])?;
    comm.barrier()?;
    if comm.rank() == 1 {
        std::thread::sleep(Duration::from_secs(6));
        return Ok("late".into());
    }
    comm.use_algorithm(Some(Algorithm::Flat))?;
    let called = comm.broadcast(&mut buffer, 1);
    let end = called.and_then(|()| comm.synchronize());
    let text = match end {
        Err(error) if error.kind() == ErrorKind::Deadline => error.to_string(),
        end => return Ok(format!("{end:?}")),
    };
    assert!(text.contains("rank 1"), "{text}");
    stream.synchronize()?;
    Ok("deadline".into())
}

/// Returns the number of this process's descriptors, the number of its mappings, and the kilobytes
/// of its private writable mappings. (The fake driver keeps the addresses of freed memory reserved,
/// so that any use of them aborts the process.)
fn resources() -> (usize, usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmData:"));
    let size = size.unwrap().trim().trim_end_matches(" kB").parse();
    (
        std::fs::read_dir("/proc/self/fd").unwrap().count(),
        maps.lines().count(),
        size.unwrap(),
    )
}

#[test]
fn repeated_attach_leaks_nothing() {
    for path in ["mapped", "shm"] {
        World::new(2, path).expect("attach repeatedly", ok(2));
    }
}

fn attach_repeatedly(rank: &Rank) -> Result<String> {
    let Rank {
        comm,
        device,
        stream,
    } = rank;
    let once = || {
        let mut buffer = DeviceBuffer::new(device, stream, &[1.0f32; 3000])?;
        comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
        comm.synchronize()?;
        comm.attach(device)
    };
    (0..20).try_for_each(|_| once())?;
    let before = resources();
    (0..100).try_for_each(|_| once())?;
    let after = resources();
    comm.barrier()?;
    for _ in 0..30 {
        let other = comm.duplicate()?;
        other.attach(device)?;
        let mut buffer = DeviceBuffer::new(device, stream, &[1.0f32; 3000])?;
        other.all_reduce(&mut buffer, ReduceOp::Sum)?;
    }
    comm.barrier()?;
    if after.0 > before.0 || after.1 > before.1 + 20 || after.2 > before.2 + 4096 {
        return Ok(format!("{before:?} became {after:?}"));
    }
    Ok("ok".into())
}

/// Buffers are created, reduced and dropped while their streams are busy.
#[test]
fn buffers_dropped_while_in_use_leak_nothing() {
    for path in ["mapped", "shm"] {
        World::new(2, path).expect("many buffers", ok(2));
    }
}

fn many_buffers(rank: &Rank) -> Result<String> {
    let Rank {
        comm,
        device,
        stream,
    } = rank;
    let step = || {
        let mut buffer = DeviceBuffer::new(device, stream, &vec![1.0f32; 250_000])?;
        comm.all_reduce(&mut buffer, ReduceOp::Sum)
    };
    (0..30).try_for_each(|_| step())?;
    let before = resources();
    (0..200).try_for_each(|_| step())?;
    comm.synchronize()?;
    let after = resources();
    comm.barrier()?;
    if after.2 > before.2 + (40 << 10) {
        return Ok(format!("{before:?} became {after:?}"));
    }
    Ok("ok".into())
}

/// A rank exits at some point inside `attach`: the other ranks get an error, and none hangs.
#[test]
fn attach_reports_rank_that_exits() {
    for pause in ["3", "20", "21", "23", "30", "50"] {
        let world = World::new(3, "mapped").with("PAUSE_MS", pause);
        let gone = "rank 1 is gone";
        world.expect("dies attaching", vec![gone, "nothing: ", gone]);
    }
}

fn dies_attaching(rank: &Rank) -> Result<String> {
    let pause = std::env::var("PAUSE_MS").unwrap().parse().unwrap();
    rank.comm.barrier()?;
    if rank.comm.rank() == 1 {
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(pause));
            // SAFETY: ends the process, as a kill does.
            unsafe { libc::_exit(0) };
        });
    }
    loop {
        match rank.comm.attach(&rank.device) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::PeerLost && error.peer() == Some(1) => {
                return Ok("rank 1 is gone".into());
            }
            Err(error) => return Err(error),
        }
    }
}
