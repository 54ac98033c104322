//! Point to point: send and receive, in one order for each directed pair of ranks.

use super::buffer::{Buffer, BufferMut};
use super::{Communicator, Issued};
use crate::engine::cache::Prepared;
use crate::engine::group::{Memory, Order, Start};
use crate::error::{Error, Result};
use crate::sys::memory::{Region, lend, lend_shared};
use std::sync::{Arc, MutexGuard};

impl Communicator {
    /// Sends `buffer` to `peer`, which must receive as many elements of the same type. May return
    /// before it does, and may wait until it does.
    ///
    /// ```
    /// let received = ringtree::simulate(2, |comm| {
    ///     let mut number = [0u32];
    ///     if comm.rank() == 0 {
    ///         comm.send(&[42u32], 1)?;
    ///     } else {
    ///         comm.recv(&mut number, 0)?;
    ///     }
    ///     Ok::<_, ringtree::Error>(number[0])
    /// });
    /// assert_eq!(received, [Ok(0), Ok(42)]);
    /// ```
    ///
    /// # Errors
    /// Any of [`Error`]; [`Error::mismatch`] if the peer receives something else.
    pub fn send<B: Buffer + ?Sized>(&self, buffer: &B, peer: usize) -> Result<()> {
        let slice = buffer.memory().on_host()?;
        lend_shared(slice, |region| self.pair(true, peer, slice.len(), region))
    }

    /// Receives into `buffer` what `peer` sends.
    ///
    /// ```
    /// let passed_on = ringtree::simulate(3, |comm| {
    ///     let (rank, mut numbers) = (comm.rank(), vec![1.0f64; 2]);
    ///     if rank > 0 {
    ///         comm.recv(&mut numbers, rank - 1)?;
    ///         numbers[0] += 1.0;
    ///     }
    ///     if rank < 2 {
    ///         comm.send(&numbers, rank + 1)?;
    ///     }
    ///     Ok::<_, ringtree::Error>(numbers)
    /// });
    /// assert_eq!(passed_on[2], Ok(vec![3.0, 1.0]));
    /// ```
    ///
    /// # Errors
    /// Any of [`Error`]; [`Error::mismatch`] if the peer sends something else.
    pub fn recv<B: BufferMut + ?Sized>(&self, buffer: &mut B, peer: usize) -> Result<()> {
        let slice = buffer.memory_mut().on_host()?;
        let count = slice.len();
        lend(slice, |region| self.pair(false, peer, count, region))
    }

    fn pair(
        &self,
        sends: bool,
        peer: usize,
        count: usize,
        region: Region,
    ) -> (Option<Region>, Result<()>) {
        let prepared = match self.next_of_pair(sends, peer, count, &region) {
            Ok(next) => next,
            Err(error) => return (Some(region), Err(error)),
        };
        let (_issued, sequence, prepared) = prepared;
        let mut memory = match sends {
            true => Memory {
                input: Some(region),
                output: None,
            },
            false => Memory::in_place(region),
        };
        let parts = &self.0.parts;
        let mut start = Start {
            prepared: &prepared,
            sequence,
            memory: &mut memory,
            timeout: self.1,
            gate: None,
        };
        let end = parts.runtime.run(parts.group, Order::Pairs, &mut start);
        (memory.input.or(memory.output), end)
    }

    /// The communicator, entered; the number of the next message, and its program.
    fn next_of_pair(
        &self,
        sends: bool,
        peer: usize,
        count: usize,
        region: &Region,
    ) -> Result<(MutexGuard<'_, Issued>, u64, Arc<Prepared>)> {
        let mut issued = self.enter()?;
        let rank = self.rank();
        self.check_peer("peer", peer)?;
        if peer == rank {
            return Err(Error::usage(format!(
                "rank {rank} cannot send to or receive from itself"
            )));
        }
        let prepared = issued.cache.message(sends, peer, count, region.dtype())?;
        let key = if sends { (rank, peer) } else { (peer, rank) };
        let sequence = issued.pairs.entry(key).or_insert(0);
        *sequence += 1;
        let sequence = *sequence;
        Ok((issued, sequence, prepared))
    }
}
