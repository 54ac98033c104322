//! Point to point: send and receive, in one order for each directed pair of ranks.

use super::buffer::{Buffer, BufferMut};
use super::planned;
use super::{Communicator, Issued};
use crate::engine::group::ChannelKind;
use crate::error::{Error, Result};
use crate::sys::memory::{Region, lend, lend_shared};

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
    /// Any of [`Error`]; [`Error::Mismatch`] if the peer receives something else.
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
    /// Any of [`Error`]; [`Error::Mismatch`] if the peer sends something else.
    pub fn recv<B: BufferMut + ?Sized>(&self, buffer: &mut B, peer: usize) -> Result<()> {
        let slice = buffer.memory_mut().on_host()?;
        let count = slice.len();
        lend(slice, |region| self.pair(false, peer, count, region))
    }

    fn pair(&self, sends: bool, peer: usize, count: usize, region: Region) -> (Region, Result<()>) {
        let mut issued = match self.enter() {
            Ok(issued) => issued,
            Err(error) => return (region, Err(error)),
        };
        let next = self.next_of_pair(&mut issued, sends, peer, count, &region);
        let (sequence, planned) = match next {
            Ok(next) => next,
            Err(error) => return (region, Err(error)),
        };
        let posting = planned.posting(sequence, region, self.0.parts.timeout);
        self.0
            .parts
            .runtime
            .run(self.0.parts.group, ChannelKind::Pairs, posting)
    }

    fn next_of_pair(
        &self,
        issued: &mut Issued,
        sends: bool,
        peer: usize,
        count: usize,
        region: &Region,
    ) -> Result<(u64, planned::Planned)> {
        let (rank, world_size) = (self.rank(), self.world_size());
        self.check_peer("peer", peer)?;
        if peer == rank {
            return Err(Error::Usage(format!(
                "rank {rank} cannot send to or receive from itself"
            )));
        }
        let key = if sends { (rank, peer) } else { (peer, rank) };
        let sequence = issued.pairs.entry(key).or_insert(0);
        *sequence += 1;
        let planned = planned::pair(sends, rank, peer, world_size, count, region.dtype());
        Ok((*sequence, planned))
    }
}
