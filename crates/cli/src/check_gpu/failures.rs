//! Checks how calls fail if a rank is killed or suspended while the other ranks' streams are
//! waiting for it.

use super::messages::{Message, Part, Rank};
use ringtree::cuda::DeviceBuffer;
use ringtree::{Error, ErrorKind, ReduceOp, Result};
use std::time::Duration;

/// Runs the part as one of its ranks. The checker kills or stops the last rank.
pub(super) fn meet(part: Part, rank: &Rank) -> Result<()> {
    let Rank {
        comm,
        device,
        stream,
    } = rank;
    let mut buffer = DeviceBuffer::new(device, stream, &[1.0f32; 5000])?;
    comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
    comm.synchronize()?;
    Message::Reached.print();
    let last = comm.world_size() - 1;
    if comm.rank() == last {
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    }
    comm.all_reduce(&mut buffer, ReduceOp::Sum)?;
    Message::Reached.print();
    // The stream must continue, although the contents of the buffer are unspecified. If the stream
    // does not continue, this read hangs, and the checker reports this.
    buffer.read()?;
    let end = comm.synchronize();
    let next = comm.all_reduce(&mut buffer, ReduceOp::Sum);
    let (expected, peer, what) = match part {
        Part::Killed => (ErrorKind::PeerLost, Some(last), "was killed"),
        _ => (ErrorKind::Deadline, None, "was suspended"),
    };
    let is_right =
        |error: &Error| error.kind() == expected && (peer.is_none() || error.peer() == peer);
    for (which, end) in [("an operation", end), ("the next operation", next)] {
        match &end {
            Ok(()) => rank.found(&format!("{which} succeeded although rank {last} {what}")),
            Err(error) if is_right(error) => {}
            Err(error) => rank.found(&format!(
                "rank {last} {what}, but {which} failed with the wrong error: {error}"
            )),
        }
    }
    Message::Checked(2).print();
    Ok(())
}
