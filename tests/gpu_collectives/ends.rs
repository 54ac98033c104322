//! How calls end that cannot end well.

use crate::SEGMENT_BYTES;
use crate::ranks::{Rank, Way, device, options, rendezvous, transport};
use ringtree::comm::attach::AttachOptions;
use ringtree::comm::device_buffer::DeviceBuffer;
use ringtree::device::fake::{Fake, Options};
use ringtree::device::{Device, Stream};
use ringtree::limits::DEVICE_CALLS_MAX;
use ringtree::plan::Algorithm;
use ringtree::{Communicator, Error, ReduceOp, Result};
use std::sync::Arc;
use std::time::Duration;

/// Ranks that give up early, each a thread; what their scripts return.
fn some<R: Send>(
    world_size: usize,
    way: Way,
    device: &Arc<dyn Device>,
    script: impl Fn(&Rank) -> Result<R> + Sync,
) -> Vec<Result<R>> {
    let rendezvous = rendezvous();
    let rank = |rank: usize| {
        let builder = Communicator::builder().rank(rank).world_size(world_size);
        let builder = builder.rendezvous(&rendezvous);
        let builder = builder.timeout(Duration::from_secs(3));
        let comm = builder.transport(transport(way)).connect()?;
        script(&Rank::with(comm, device, options(way))?)
    };
    std::thread::scope(|scope| {
        let rank = &rank;
        let ranks: Vec<_> = (0..world_size)
            .map(|number| scope.spawn(move || rank(number)))
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Two of them.
fn pair<R: Send>(way: Way, script: impl Fn(&Rank) -> Result<R> + Sync) -> Vec<Result<R>> {
    some(2, way, &device(Options::default()).unwrap(), script)
}

fn buffer(rank: &Rank) -> Result<DeviceBuffer<f32>> {
    DeviceBuffer::new(&rank.device, &rank.stream, &[1.0; 3000])
}

#[test]
fn at_the_deadline_the_stream_goes_on_and_the_failure_is_told() {
    for way in Way::ALL {
        let ends = pair(way, |rank| {
            if rank.comm.rank() == 1 {
                // Stays, and does not call.
                std::thread::sleep(Duration::from_secs(5));
                return Ok(Ok(()));
            }
            let mut buffer = buffer(rank)?;
            rank.comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
            buffer.read()?;
            let first = rank.comm.synchronize();
            assert_eq!(rank.comm.synchronize(), first, "told once, told always");
            Ok(first)
        });
        assert!(matches!(ends[0], Ok(Err(Error::Deadline(_)))), "{ends:?}");
    }
}

#[test]
fn a_host_buffer_where_others_have_a_devices_is_another_call() {
    for way in Way::ALL {
        let ends = pair(way, |rank| {
            if rank.comm.rank() == 1 {
                return rank.comm.all_reduce(&mut [1.0f32; 3000], ReduceOp::Sum);
            }
            let mut buffer = buffer(rank)?;
            rank.comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
            rank.comm.synchronize()
        });
        for end in ends {
            let Err(Error::Mismatch(text)) = end else {
                panic!("{end:?}");
            };
            assert!(text.contains("on devices"), "{text}");
        }
    }
}

#[test]
fn what_devices_do_not_do_is_refused_and_nothing_is_lost() {
    let captured: Arc<dyn Stream> = Fake::new().captured_stream().unwrap();
    let ends = pair(Way::Mapped, |rank| {
        let comm = &rank.comm;
        let mut buffer = buffer(rank)?;
        let refused = [
            comm.send(&buffer, 1 - comm.rank()),
            comm.scope(|scope| scope.all_reduce(&mut buffer, ReduceOp::Sum)?.wait()),
            comm.all_gather_into(&[1.0f32; 1500], &mut buffer),
            comm.all_reduce(&mut buffer, ReduceOp::Band),
            comm.broadcast(&mut buffer, 7),
            comm.attach_with(&rank.device, AttachOptions::new().segment_bytes(100)),
            DeviceBuffer::new(&rank.device, &rank.stream, &[1.0f32])
                .map(|one| {
                    DeviceBuffer::<f32>::from_memory(
                        &rank.device,
                        &captured,
                        one.device_memory().clone(),
                    )
                })
                .and_then(|mut one| comm.all_reduce(&mut one, ReduceOp::Sum)),
        ];
        for (nth, end) in refused.into_iter().enumerate() {
            assert!(matches!(end, Err(Error::Usage(_))), "{nth}: {end:?}");
        }
        comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
        comm.synchronize()?;
        let sum = buffer.read()?;
        comm.barrier()?;
        Ok(sum[2999])
    });
    assert_eq!(ends, [Ok(2.0), Ok(2.0)]);
}

#[test]
fn without_a_device_a_devices_buffer_is_refused() {
    let device = device(Options::default()).unwrap();
    let builder = Communicator::builder().rank(0).world_size(1);
    let comm = builder.rendezvous("127.0.0.1:0").connect().unwrap();
    let stream = device.stream().unwrap();
    let mut buffer = DeviceBuffer::new(&device, &stream, &[1.0f32]).unwrap();
    let end = comm.all_reduce(&mut buffer, ReduceOp::Sum);
    assert!(matches!(end, Err(Error::Usage(_))), "{end:?}");
    assert_eq!(comm.synchronize(), Ok(()));
    // Several of them, with a segment that many fit in.
    comm.attach_with(&device, AttachOptions::new().segment_bytes(SEGMENT_BYTES))
        .unwrap();
    for _ in 0..600 {
        comm.all_reduce(&mut buffer, ReduceOp::Avg).unwrap();
    }
    comm.synchronize().unwrap();
    assert_eq!(buffer.read().unwrap(), [1.0]);
}

/// Rank 0's own stream is late: no other rank is to blame.
#[test]
fn a_stream_that_does_not_come_to_the_call_is_told_of() {
    let ends = pair(Way::Mapped, |rank| {
        let words = rank.device.words(1)?;
        let mut buffer = buffer(rank)?;
        if rank.comm.rank() == 0 {
            rank.stream.wait_word(&words.word(0)?, 1)?;
        } else {
            // The other's time runs out first.
            std::thread::sleep(Duration::from_secs(1));
        }
        rank.comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
        let end = rank.comm.synchronize();
        words.word(0)?.store(1);
        Ok(end)
    });
    let Ok(Err(Error::Deadline(text))) = &ends[0] else {
        panic!("{ends:?}");
    };
    assert!(text.contains("the buffer's stream"), "{text}");
}

/// A call that ends before an older one does not let the older one's stream go on, however many
/// calls with other buffers lie between them.
#[test]
fn a_stream_waits_for_its_own_call() {
    let device = device(Options::default()).unwrap();
    let ends = some(3, Way::Signalled, &device, |rank| {
        let comm = &rank.comm;
        let (words, other) = (rank.device.words(1)?, rank.device.stream()?);
        let content = [comm.rank() as f32; 100];
        let mut older = DeviceBuffer::new(&rank.device, &rank.stream, &content)?;
        let mut younger = DeviceBuffer::new(&rank.device, &other, &content)?;
        comm.use_algorithm(Some(Algorithm::Flat))?;
        if comm.rank() == 0 {
            rank.stream.wait_word(&words.word(0)?, 1)?;
        }
        comm.broadcast(&mut older, 1)?;
        for _ in 1..DEVICE_CALLS_MAX {
            comm.broadcast(&mut [0u8], 2)?;
        }
        comm.broadcast(&mut younger, 2)?;
        let younger = younger.read()?[0];
        words.word(0)?.store(1);
        let older = older.read()?[0];
        comm.synchronize()?;
        comm.barrier()?;
        Ok([older, younger])
    });
    assert_eq!(ends, vec![Ok([1.0, 2.0]); 3]);
}

/// What a failed call had begun is not written over what comes after it.
#[test]
fn a_failed_call_leaves_the_buffer_alone_when_the_stream_goes_on() {
    let ways = [Way::Mapped, Way::Signalled];
    for (seed, way) in (0..8).flat_map(|seed| ways.map(|way| (seed, way))) {
        let options = Options {
            pauses: Some(seed),
            ..Options::default()
        };
        let Some(device) = device(options) else {
            return;
        };
        let ends = some(2, way, &device, |rank| {
            let (comm, stream) = (&rank.comm, &rank.stream);
            let mut buffer = DeviceBuffer::new(&rank.device, stream, &vec![1i64; 100_000])?;
            comm.use_algorithm(Some(Algorithm::Flat))?;
            stream.synchronize()?;
            // Where the machine is slow, the other has failed by now.
            let _ = comm.all_reduce(&mut buffer, ReduceOp::Sum);
            if comm.rank() == 1 {
                // Somewhere in the middle.
                std::thread::sleep(Duration::from_millis(6));
                comm.fail(&Error::System("enough".into()));
            }
            let _ = comm.synchronize();
            buffer.write(&vec![7; 100_000])?;
            stream.synchronize()?;
            std::thread::sleep(Duration::from_millis(30));
            Ok(buffer.read()?.iter().all(|element| *element == 7))
        });
        assert_eq!(ends, [Ok(true), Ok(true)], "{seed}, {way:?}");
    }
}

/// Streams go on over whatever is there when a rank has given up, and hand it on; whoever says that
/// a call was good has the right sum all the same. Rank 0 waits for the slow rank 2 when it gives
/// up, and rank 1 has all it waits for before it hears of that.
#[test]
fn what_is_reported_good_is_good_whoever_gives_up_meanwhile() {
    let Some(common) = device(Options {
        pauses: Some(0),
        ..Options::default()
    }) else {
        return;
    };
    for (seed, way) in (0..20).flat_map(|seed| Way::ALL.map(|way| (seed, way))) {
        // Most of them fail, some before the call.
        let _ends = some(3, way, &common, |rank| {
            let comm = &rank.comm;
            let pauses = (comm.rank() == 2).then_some(seed);
            let device: Arc<dyn Device> = Arc::new(Fake::with(Options {
                pauses,
                ..Options::default()
            }));
            comm.attach_with(&device, options(way))?;
            let stream = device.stream()?;
            let mut buffer = DeviceBuffer::new(&device, &stream, &[1i64; 100])?;
            comm.use_algorithm(Some(Algorithm::Ring))?;
            stream.synchronize()?;
            let called = comm.all_reduce(&mut buffer, ReduceOp::Sum);
            if comm.rank() == 0 {
                std::thread::sleep(Duration::from_micros(500));
                comm.fail(&Error::System("enough".into()));
            }
            if called.and_then(|()| comm.synchronize()).is_ok() {
                assert_eq!(buffer.read()?, [3; 100], "{seed}, {way:?}");
            }
            Ok(())
        });
    }
}

#[test]
fn attaching_again_loses_no_call() {
    let device = device(Options::default()).unwrap();
    let ends = some(1, Way::Staged, &device, |rank| {
        let words = rank.device.words(1)?;
        let mut buffer = buffer(rank)?;
        rank.stream.wait_word(&words.word(0)?, 1)?;
        rank.comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
        // The call cannot end; so it ends here, and badly.
        let end = rank.comm.attach_with(
            &rank.device,
            AttachOptions::new().segment_bytes(SEGMENT_BYTES),
        );
        words.word(0)?.store(1);
        Ok(end)
    });
    assert!(matches!(ends[0], Ok(Err(Error::Deadline(_)))), "{ends:?}");
}

/// Whoever leaves in a call that cannot end is in it until its deadline.
#[test]
fn a_call_has_ended_before_its_rank_is_gone() {
    for way in Way::ALL {
        let ends = pair(way, |rank| {
            let mut buffer = buffer(rank)?;
            if rank.comm.rank() == 0 {
                rank.comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
            } else {
                // Stays, and does not call.
                std::thread::sleep(Duration::from_secs(5));
            }
            Ok(buffer)
        });
        for buffer in ends {
            // Its stream has gone on.
            buffer.unwrap().read().unwrap();
        }
    }
}

/// Simulated ranks take turns, also while they wait for devices.
#[test]
fn simulated_ranks_wait_for_devices_and_for_each_other() {
    let ends: Vec<Result<i32>> = ringtree::simulate(3, |comm| {
        let device: Arc<dyn Device> = Arc::new(Fake::with(Options {
            pauses: Some(comm.rank() as u64),
            ..Options::default()
        }));
        comm.attach_with(&device, AttachOptions::new().segment_bytes(SEGMENT_BYTES))?;
        let mut buffer = DeviceBuffer::new(&device, &device.stream()?, &[1i32; 30_000])?;
        comm.use_algorithm(Some(Algorithm::Ring))?;
        for _ in 0..3 {
            comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
        }
        comm.synchronize()?;
        Ok(buffer.read()?[29_999])
    });
    assert_eq!(ends, vec![Ok(27); 3]);
}

#[test]
fn an_empty_buffer_of_bytes_is_empty() {
    let device = device(Options::default()).unwrap();
    let stream = device.stream().unwrap();
    let buffer = DeviceBuffer::<u8>::new(&device, &stream, &[]).unwrap();
    assert!(buffer.is_empty());
    assert!(buffer.read().unwrap().is_empty());
}
