//! How calls end that cannot end well: with a rank that is killed, or stands still, while the
//! others' streams wait for it.

use super::said::{Orders, Part, Rank, Said};
use ringtree::comm::device_buffer::DeviceBuffer;
use ringtree::{ReduceOp, Result};
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
    Said::There.say();
    let last = comm.world_size() - 1;
    if comm.rank() == last {
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    }
    comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
    Said::There.say();
    // The stream goes on, with whatever is there; or this never ends, and the checker says so.
    buffer.read()?;
    let end = comm.synchronize();
    let next = comm.all_reduce(&mut buffer, ReduceOp::Sum);
    let is_right = |end: &Result<()>| match orders.part {
        Part::Killed => {
            matches!(end, Err(error) if error.is_peer_lost() && error.peer() == Some(last))
        }
        _ => matches!(end, Err(error) if error.is_timeout()),
    };
    let what = match orders.part {
        Part::Killed => "was killed",
        _ => "stood still",
    };
    for (which, end) in [("an operation", end), ("the operation behind it", next)] {
        match &end {
            Ok(()) => rank.found(&format!(
                "{which} was reported good although rank {last} {what} in it"
            )),
            Err(_) if is_right(&end) => {}
            Err(error) => rank.found(&format!(
                "rank {last} {what}, but {which} ended with: {error}"
            )),
        }
    }
    Said::Checked(2).say();
    Ok(())
}
