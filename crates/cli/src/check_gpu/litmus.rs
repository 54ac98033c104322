//! Checks that a GPU that reads a peer's memory always sees the latest writes.
//!
//! Each repetition multiplies every element by the number of ranks, modulo 2^32, using only
//! collectives that follow each other without involving the host. All elements and the number of
//! ranks are odd, so each repetition changes every element. If an element is read too early even
//! once, while it still has its previous value, it remains wrong because no later product corrects
//! it.

use super::messages::{Message, Rank};
use ringtree::cuda::DeviceBuffer;
use ringtree::{Communicator, ReduceOp, Result};
use std::time::{Duration, Instant};

/// Size of the buffer in bytes.
const BYTES: usize = 64 << 20;
/// Number of repetitions.
const REPETITIONS: u32 = 1000;
/// Number of repetitions between checks of the buffer.
const BATCH: u32 = 50;
/// Time after which no further batch begins.
const TIME_MAX: Duration = Duration::from_secs(25);

/// Runs the check as one of an odd number of ranks.
pub(super) fn check(rank: &Rank, bytes_max: usize) -> Result<()> {
    let comm = &rank.comm;
    let count = BYTES.min(bytes_max) / size_of::<u32>();
    let first = |at: usize| (at as u32).wrapping_mul(0x9e37_79b1) | 1;
    let content: Vec<_> = (0..count).map(first).collect();
    let mut buffer = DeviceBuffer::new(&rank.device, &rank.stream, &content)?;
    let start = Instant::now();
    let mut done = 0;
    let mut ends = [0u64];
    while ends == [0] {
        (done..done + BATCH).try_for_each(|nth| multiply(comm, &mut buffer, nth))?;
        done += BATCH;
        let factor = (comm.world_size() as u32).wrapping_pow(done);
        let is_wrong = |(at, one): &(usize, u32)| *one != first(*at).wrapping_mul(factor);
        let read = buffer.read()?.into_iter().enumerate();
        let wrong = read.filter(is_wrong).count();
        comm.synchronize()?;
        if wrong > 0 {
            rank.found(&format!("{wrong} wrong elements after {done} repetitions"));
        }
        let is_last = wrong > 0 || done >= REPETITIONS || start.elapsed() > TIME_MAX;
        ends = [u64::from(is_last)];
        comm.all_reduce(&mut ends, ReduceOp::Max)?;
    }
    if comm.rank() == 0 {
        Message::Checked(done as usize).print();
    }
    comm.barrier()
}

/// Runs one repetition. Repetitions alternate between three ways to multiply.
fn multiply(comm: &Communicator, buffer: &mut DeviceBuffer<u32>, nth: u32) -> Result<()> {
    let root = nth as usize % comm.world_size();
    match nth % 3 {
        0 => comm.all_reduce(buffer, ReduceOp::Sum),
        1 => {
            comm.reduce(buffer, ReduceOp::Sum, root)?;
            comm.broadcast(buffer, root)
        }
        _ => {
            comm.reduce_scatter(buffer, ReduceOp::Sum)?;
            comm.all_gather(buffer)
        }
    }
}
