//! How ranks come by memory of their devices.

use crate::SEGMENT_BYTES;
use crate::ranks::{Way, device, on_devices, on_threads, options};
use ringtree::comm::attach::AttachOptions;
use ringtree::comm::device_buffer::DeviceBuffer;
use ringtree::device::Device;
use ringtree::device::fake::{Fake, Options};
use ringtree::limits::DUPLICATES_MAX;
use ringtree::plan::Algorithm;
use ringtree::plan::on_device::FAN_IN_MAX;
use ringtree::sim::simulate::sleep;
use ringtree::{Error, ReduceOp};
use std::sync::Arc;
use std::time::Duration;

/// One communicator allocates while a stream waits for a call of another, which ends only if this
/// rank takes part in it meanwhile.
#[test]
fn allocating_for_one_communicator_holds_up_no_other() {
    let options = Options {
        allocating_waits: true,
        ..Options::default()
    };
    // As two processes have them: neither waits for the other's streams.
    let Some(devices) = (0..2).map(|_| device(options)).collect::<Option<Vec<_>>>() else {
        return;
    };
    let segments = AttachOptions::new().segment_bytes(SEGMENT_BYTES);
    let ends = on_devices(Way::Staged, &devices, segments, |rank| {
        let (one, other) = (&rank.comm, rank.comm.duplicate()?);
        other.attach_with(&rank.device, segments)?;
        let mut buffers = Vec::new();
        for _ in 0..2 {
            buffers.push(DeviceBuffer::new(
                &rank.device,
                &rank.stream,
                &[1i32; 5000],
            )?);
        }
        // Its ways are made here.
        one.all_reduce(&mut buffers[0], ReduceOp::Sum)?;
        one.synchronize()?;
        one.barrier()?;
        if one.rank() == 1 {
            // The other's stream waits by now, and the other allocates.
            std::thread::sleep(Duration::from_millis(300));
        }
        one.all_reduce(&mut buffers[0], ReduceOp::Sum)?;
        other.all_reduce(&mut buffers[1], ReduceOp::Sum)?;
        other.synchronize()?;
        one.synchronize()?;
        let sums = (buffers[0].read()?[4999], buffers[1].read()?[4999]);
        other.barrier()?;
        Ok(sums)
    });
    assert_eq!(ends, [Ok((4, 2)), Ok((4, 2))]);
}

/// However often: each time with other segments, and calls that the next must not take for its own.
#[test]
fn a_communicator_takes_one_device_after_another() {
    for way in Way::ALL {
        let device = device(Options::default()).unwrap();
        let ends = on_threads(2, way, &device, |rank| {
            let mut sums = Vec::new();
            for times in 1..=70 {
                let by = match times % 3 {
                    0 => Way::Mapped,
                    _ => way,
                };
                let segments = options(by).segment_bytes(16 * times);
                rank.comm.attach_with(&rank.device, segments)?;
                let mut buffer = DeviceBuffer::new(&rank.device, &rank.stream, &[1u8; 500])?;
                rank.comm.broadcast(&mut buffer, times % 2)?;
                rank.comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
                sums.push(buffer.read()?[499]);
            }
            // Attaching took none of their numbers.
            let duplicates = (0..DUPLICATES_MAX).map(|_| rank.comm.duplicate());
            let duplicates: Vec<_> = duplicates.collect::<Result<_, _>>()?;
            Ok((sums, duplicates.len()))
        });
        let expected = (vec![2; 70], DUPLICATES_MAX as usize);
        assert_eq!(ends, [Ok(expected.clone()), Ok(expected)], "{way:?}");
    }
}

/// A device that is refused takes nothing away from the one before.
#[test]
fn a_device_that_is_refused_leaves_the_one_before() {
    let without = Options {
        word_operations: false,
        ..Options::default()
    };
    let Some(without) = device(without) else {
        return;
    };
    let device = device(Options::default()).unwrap();
    for way in [Way::Mapped, Way::Signalled] {
        let ends = on_threads(2, way, &device, |rank| {
            let refused = rank.comm.attach_with(&without, options(Way::Signalled));
            assert!(matches!(refused, Err(Error::Usage(_))), "{refused:?}");
            let mut buffer = rank.comm.alloc_on_device(&rank.stream, 30_000)?;
            buffer.write(&[1i32; 30_000])?;
            for _ in 0..4 {
                rank.comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
            }
            rank.comm.synchronize()?;
            Ok((buffer.read()?[29_999], rank.comm.device_transport()))
        });
        assert_eq!(ends, vec![Ok((16, Some("cuda".to_owned()))); 2], "{way:?}");
    }
}

/// One rank asks for what no device does, and is told so before the others could miss its call.
#[test]
fn a_call_that_is_refused_has_no_number() {
    let world_size = FAN_IN_MAX + 1;
    let ends = ringtree::simulate(world_size, |comm| {
        let device: Arc<dyn Device> = Arc::new(Fake::new());
        comm.attach_with(&device, AttachOptions::new().segment_bytes(16))?;
        let stream = device.stream()?;
        let mut buffer = DeviceBuffer::new(&device, &stream, &[1u8])?;
        if comm.rank() == 0 {
            comm.use_algorithm(Some(Algorithm::Flat))?;
            let refused = comm.all_reduce(&mut buffer, ReduceOp::Sum);
            assert!(matches!(refused, Err(Error::Usage(_))), "{refused:?}");
            comm.use_algorithm(None)?;
        }
        comm.barrier()
    });
    assert_eq!(ends, vec![Ok(()); world_size]);
}

/// Ranks that share a host and no GPU allocate nothing for each other.
#[test]
fn slots_are_for_those_that_use_the_same_gpu() {
    let fakes: Vec<_> = [0, 1, 1, 2, 1]
        .map(|gpu| {
            Fake::with(Options {
                gpu,
                ..Options::default()
            })
        })
        .into();
    let devices: Vec<_> = fakes
        .iter()
        .map(|fake| -> Arc<dyn Device> { Arc::new(fake.clone()) })
        .collect();
    let segments = AttachOptions::new().segment_bytes(SEGMENT_BYTES);
    let ends = on_devices(Way::Mapped, &devices, segments, |rank| {
        let allocated = fakes[rank.comm.rank()].allocated_bytes();
        let ways = rank.comm.device_transport();
        let mut buffer = DeviceBuffer::new(&rank.device, &rank.stream, &[1i32; 5000])?;
        rank.comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
        Ok((allocated, ways, buffer.read()?[4999]))
    });
    let row = ringtree::engine::device::links::slots_bytes(SEGMENT_BYTES);
    for (rank, (slots, ways)) in [
        (0, "shm"),
        (2 * row, "cuda+shm"),
        (2 * row, "cuda+shm"),
        (0, "shm"),
        (2 * row, "cuda+shm"),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(ends[rank], Ok((slots, Some(ways.to_owned()), 5)));
    }
}

/// Simulated ranks take turns, also while one waits for a device.
#[test]
fn simulated_ranks_wait_for_a_late_one() {
    let ends = ringtree::simulate(2, |comm| {
        let device: Arc<dyn Device> = Arc::new(Fake::new());
        comm.attach_with(&device, AttachOptions::new().segment_bytes(16))?;
        let stream = device.stream()?;
        let mut buffer = DeviceBuffer::new(&device, &stream, &[1u8; 1000])?;
        if comm.rank() == 1 {
            sleep(comm, Duration::from_secs(20));
        }
        comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
        if comm.rank() == 0 {
            // With a call under way.
            sleep(comm, Duration::from_secs(5));
        }
        comm.synchronize()?;
        buffer.read()
    });
    assert_eq!(ends, vec![Ok(vec![2; 1000]); 2]);
}
