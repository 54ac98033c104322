//! How calls end that cannot end well: with a rank that is killed, or stands still, while the
//! others' streams wait for it.

use super::Plant;
use super::rank::{Orders, Part, Rank, Said};
use ringtree::comm::device_buffer::DeviceBuffer;
use ringtree::{Error, ReduceOp, Result};
use std::time::Duration;

/// A rank's share: the last one is what happens to the others.
pub(super) fn meet(orders: &Orders, rank: &Rank) -> Result<()> {
    let Rank {
        comm,
        device,
        stream,
    } = rank;
    let mut buffer = DeviceBuffer::new(device, stream, &[1.0f32; 5000])?;
    comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
    comm.synchronize()?;
    // Allocating may take until no stream waits.
    let pinned = device.pin(buffer.device_memory().bytes())?;
    let behind = device.event()?;
    Said::There.say();
    let last = comm.world_size() - 1;
    if comm.rank() == last {
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    }
    comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
    let from = buffer.device_memory().whole();
    stream.copy_to_host(&from, &pinned.whole())?;
    stream.record(&behind)?;
    let found = |what: &str| Said::Found(format!("rank {}: {what}", comm.rank())).say();
    // Time enough for a stream that nothing holds back.
    std::thread::sleep(Duration::from_millis(50));
    if behind.is_done()? {
        found("its stream went on before the ranks had met");
    }
    Said::There.say();
    // The stream goes on, with whatever is there; or this never ends, and the checker says so.
    while !behind.is_done()? {
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut ends = [
        comm.synchronize(),
        comm.all_reduce(&mut buffer, ReduceOp::Sum),
    ];
    if orders.plant == Some(Plant::FailedReportedGood) {
        ends = [Ok(()), Ok(())];
    }
    let [end, next] = ends;
    let is_right = |end: &Result<()>| match orders.part {
        Part::Killed => matches!(end, Err(Error::PeerLost { rank, .. }) if *rank == last),
        _ => matches!(end, Err(Error::Deadline(_))),
    };
    let what = match orders.part {
        Part::Killed => "was killed",
        _ => "stood still",
    };
    Said::Checked(2).say();
    for (which, end) in [("an operation", end), ("the operation behind it", next)] {
        match &end {
            Ok(()) => found(&format!(
                "{which} was reported good although rank {last} {what} in it"
            )),
            Err(_) if is_right(&end) => {}
            Err(error) => found(&format!(
                "rank {last} {what}, but {which} ended with: {error}"
            )),
        }
    }
    Ok(())
}
