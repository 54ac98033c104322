//! How calls end that cannot end well.

use crate::SEGMENT_BYTES;
use crate::ranks::{Rank, Way, device, rendezvous, transport};
use ringtree::comm::device_buffer::DeviceBuffer;
use ringtree::device::Stream;
use ringtree::device::fake::{Fake, Options};
use ringtree::{Communicator, Error, ReduceOp, Result};
use std::sync::Arc;
use std::time::Duration;

/// Two ranks that give up early, each a thread; what their scripts return.
fn pair<R: Send>(way: Way, script: impl Fn(&Rank) -> Result<R> + Sync) -> Vec<Result<R>> {
    let device = device(Options::default()).unwrap();
    let rendezvous = rendezvous();
    let rank = |rank: usize| {
        let builder = Communicator::builder().rank(rank).world_size(2);
        let builder = builder.rendezvous(&rendezvous);
        let builder = builder.timeout(Duration::from_secs(3));
        let comm = builder.transport(transport(way)).connect()?;
        script(&Rank::new(comm, &device)?)
    };
    std::thread::scope(|scope| {
        let rank = &rank;
        let ranks = [0, 1].map(|number| scope.spawn(move || rank(number)));
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn buffer(rank: &Rank) -> Result<DeviceBuffer<f32>> {
    DeviceBuffer::new(&rank.device, &rank.stream, &[1.0; 3000])
}

#[test]
fn at_the_deadline_the_stream_goes_on_and_the_failure_is_told() {
    for way in [Way::Mapped, Way::Staged] {
        let ends = pair(way, |rank| {
            if rank.comm.rank() == 1 {
                // Stays, and does not call.
                std::thread::sleep(Duration::from_secs(5));
                return Ok(Ok(()));
            }
            let mut buffer = buffer(rank)?;
            rank.comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
            buffer.read()?;
            Ok(rank.comm.synchronize())
        });
        assert!(matches!(ends[0], Ok(Err(Error::Deadline(_)))), "{ends:?}");
    }
}

#[test]
fn a_host_buffer_where_others_have_a_devices_is_another_call() {
    let ends = pair(Way::Mapped, |rank| {
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
            comm.attach_in_segments(&rank.device, 100),
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
    comm.attach_in_segments(&device, SEGMENT_BYTES).unwrap();
    for _ in 0..600 {
        comm.all_reduce(&mut buffer, ReduceOp::Avg).unwrap();
    }
    comm.synchronize().unwrap();
    assert_eq!(buffer.read().unwrap(), [1.0]);
}

#[test]
fn an_empty_buffer_of_bytes_is_empty() {
    let device = device(Options::default()).unwrap();
    let stream = device.stream().unwrap();
    let buffer = DeviceBuffer::<u8>::new(&device, &stream, &[]).unwrap();
    assert!(buffer.is_empty());
    assert!(buffer.read().unwrap().is_empty());
}
