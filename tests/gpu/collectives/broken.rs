//! Long calls that break in the middle, and what is left over of many.

use super::world::{Act, Rank, World, ok};
use ringtree::ErrorKind;
use ringtree::cuda::DeviceBuffer;
use ringtree::plan::Algorithm;
use ringtree::{ReduceOp, Result};
use std::time::Duration;

pub(crate) fn act(role: &str) -> Option<Act> {
    Some(match role {
        "cut off" => cut_off,
        "long alone" => long_alone,
        "again and again" => again_and_again,
        "many buffers" => many_buffers,
        "dies attaching" => dies_attaching,
        _ => return None,
    })
}

/// The driver of one rank refuses everything from somewhere in a long call on: all ranks are told,
/// and their streams go on.
#[test]
fn a_driver_that_fails_in_the_middle_of_a_long_call_holds_no_stream_up() {
    for from in ["7", "15", "30"] {
        for rank in ["0", "1"] {
            for settings in [&[][..], &[("STRICT", "1"), ("ONE_THREAD", "1")]] {
                let world = World::new(2, "mapped").with("FAIL_FROM", from);
                let world = world.with("FAIL_RANK", rank);
                let settings = settings.iter();
                let world = settings.fold(world, |world, (name, value)| world.with(name, value));
                world.expect("cut off", ok(2));
            }
        }
    }
}

fn cut_off(rank: &Rank) -> Result<String> {
    let Rank {
        comm,
        device,
        stream,
    } = rank;
    let mut buffer = DeviceBuffer::new(device, stream, &vec![1u8; 150_000_000])?;
    comm.use_algorithm(Some(Algorithm::Flat))?;
    // The other rank may fail while this one is still in the barrier.
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
    // The stream goes on.
    stream.synchronize()?;
    Ok("ok".into())
}

/// A call of several rounds that the other rank never makes: who is late is told.
#[test]
fn in_a_long_call_too_the_rank_that_is_late_is_named() {
    let world = World::new(2, "mapped").impatient();
    world.expect("long alone", vec!["deadline", "late"]);
}

fn long_alone(rank: &Rank) -> Result<String> {
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

/// What this process has: descriptors, mappings, kilobytes of private ones that can be written.
/// (The pretended driver keeps the addresses of what was freed: their use ends the process.)
fn held() -> (usize, usize, usize) {
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
fn a_device_that_is_attached_again_and_again_leaves_nothing_behind() {
    for path in ["mapped", "shm"] {
        World::new(2, path).expect("again and again", ok(2));
    }
}

fn again_and_again(rank: &Rank) -> Result<String> {
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
    let before = held();
    (0..100).try_for_each(|_| once())?;
    let after = held();
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

/// Buffers that are made, reduced and dropped while their streams are busy.
#[test]
fn buffers_that_are_dropped_while_streams_use_them_leave_nothing_behind() {
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
    let before = held();
    (0..200).try_for_each(|_| step())?;
    comm.synchronize()?;
    let after = held();
    comm.barrier()?;
    if after.2 > before.2 + (40 << 10) {
        return Ok(format!("{before:?} became {after:?}"));
    }
    Ok("ok".into())
}

/// A rank that dies somewhere inside `attach`: the others are told, and none hangs.
#[test]
fn a_rank_that_dies_while_a_device_is_attached_is_told_of() {
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
