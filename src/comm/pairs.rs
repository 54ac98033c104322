//! Sends and receives messages between two ranks. Messages are ordered separately for each pair of
//! sender and receiver.

use super::Communicator;
use super::buffer::{Buffer, BufferMut, writable_on_host};
use super::work::{Work, WorkError};
use crate::dtype::Element;
use crate::engine::Ticket;
use crate::engine::cache::{MessageEnd, Prepared};
use crate::engine::group::{Memory, Order, Start};
use crate::engine::stats::Transport;
use crate::error::{Error, Result};
use crate::sys::memory::{Claim, Region, lend, lend_both, lend_shared};
use std::sync::Arc;

impl Communicator {
    /// Sends `buffer` to the rank `peer`, which must receive the same number of elements of the
    /// same type.
    ///
    /// This call may return before `peer` receives the message, or it may block until `peer` does
    /// so.
    ///
    /// Messages from one rank to another are received in the order in which they were sent, no
    /// matter which calls are used to send and receive them. If two ranks both send to each other
    /// before they receive, they can block each other. Use [`Communicator::sendrecv`] or
    /// [`Communicator::batch`] instead.
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
    /// Returns one of the [errors that all calls share](Communicator#errors), such as
    /// [`Mismatch`](crate::ErrorKind::Mismatch) if `peer` expects a different length or type.
    #[doc(alias("MPI_Send", "ncclSend"))]
    pub fn send<B: Buffer + ?Sized>(&self, buffer: &B, peer: usize) -> Result<()> {
        let slice = buffer.memory().on_host()?;
        lend_shared(slice, |region| {
            let mut memory = sent(region);
            let begun = self.begin_pair(MessageEnd::To(peer), &mut memory);
            let end = begun.and_then(|begun| self.finish(begun, &mut memory));
            (memory.input, end)
        })
    }

    /// Receives a message from the rank `peer` into `buffer`.
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
    /// Returns one of the [errors that all calls share](Communicator#errors), such as
    /// [`Mismatch`](crate::ErrorKind::Mismatch) if `peer` sends a different length or type.
    #[doc(alias("MPI_Recv", "ncclRecv"))]
    pub fn recv<B: BufferMut + ?Sized>(&self, buffer: &mut B, peer: usize) -> Result<()> {
        let slice = writable_on_host(buffer)?;
        lend(slice, |region| {
            let mut memory = Memory::in_place(region);
            let begun = self.begin_pair(MessageEnd::From(peer), &mut memory);
            let end = begun.and_then(|begun| self.finish(begun, &mut memory));
            (memory.output, end)
        })
    }

    /// Receives a message from any rank into `buffer` and returns the rank that sent it.
    ///
    /// As with [`Communicator::recv`], the message is the next one from that sender. Receives that
    /// were issued earlier get their messages first. Senders are served fairly. A rank that calls
    /// this method keeps a connection open to every other rank with which it does not share memory.
    ///
    /// ```
    /// let squares = ringtree::simulate(4, |comm| {
    ///     let mut squares = [0u64; 4];
    ///     if comm.rank() > 0 {
    ///         comm.send(&[(comm.rank() as u64).pow(2)], 0)?;
    ///     } else {
    ///         for _ in 1..comm.world_size() {
    ///             let mut square = [0];
    ///             let from = comm.recv_any(&mut square)?;
    ///             squares[from] = square[0];
    ///         }
    ///     }
    ///     Ok::<_, ringtree::Error>(squares)
    /// });
    /// assert_eq!(squares[0], Ok([0, 1, 4, 9]));
    /// ```
    ///
    /// # Errors
    /// Returns one of the [errors that all calls share](Communicator#errors), such as
    /// [`Mismatch`](crate::ErrorKind::Mismatch) if the message has a different length or type, or
    /// [`Usage`](crate::ErrorKind::Usage) if `buffer` is empty, because empty messages are not
    /// sent.
    #[doc(alias("MPI_ANY_SOURCE"))]
    pub fn recv_any<B: BufferMut + ?Sized>(&self, buffer: &mut B) -> Result<usize> {
        let slice = writable_on_host(buffer)?;
        self.check_any(slice.is_empty())?;
        lend(slice, |region| {
            let mut memory = Memory::in_place(region);
            let begun = self.begin_pair(MessageEnd::FromAny(self.world_size()), &mut memory);
            let end = begun.and_then(|ticket| {
                let (end, sender) = self.core.parts.runtime.get()?.wait_for_sender(ticket);
                memory = end.0;
                end.1.map(|()| sender)
            });
            let sender = "invariant: a received message has a sender";
            (memory.output, end.map(|from| from.expect(sender)))
        })
    }

    /// Sends `input` to rank `to` and receives `output` from rank `from` at the same time.
    ///
    /// All ranks in a ring, or both ranks of a pair, can make this call at the same time. `input`
    /// and `output` can have different lengths and types. If both `to` and `from` are this rank
    /// itself, the call copies `input` to `output`.
    ///
    /// ```
    /// let shifted = ringtree::simulate(3, |comm| {
    ///     let (rank, ranks) = (comm.rank(), comm.world_size());
    ///     let mut left = [0u64];
    ///     let (to, from) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
    ///     comm.sendrecv(&[rank as u64], to, &mut left, from)?;
    ///     Ok::<_, ringtree::Error>(left[0])
    /// });
    /// assert_eq!(shifted, [Ok(2), Ok(0), Ok(1)]);
    /// ```
    ///
    /// # Errors
    /// Returns one of the [errors that all calls share](Communicator#errors), such as
    /// [`Mismatch`](crate::ErrorKind::Mismatch) if either peer sends or expects a different length
    /// or type. If this rank is its own peer, that error is
    /// [`Usage`](crate::ErrorKind::Usage).
    #[doc(alias("MPI_Sendrecv"))]
    pub fn sendrecv<I, O>(&self, input: &I, to: usize, output: &mut O, from: usize) -> Result<()>
    where
        I: Buffer + ?Sized,
        O: BufferMut + ?Sized,
    {
        let (input, output) = (input.memory().on_host()?, writable_on_host(output)?);
        if to == self.rank() && from == to {
            let (input, output) = (
                bytemuck::cast_slice(input),
                bytemuck::cast_slice_mut(output),
            );
            return copy::<I::Element, O::Element>(input, output);
        }
        self.check_pair(from)?;
        lend_both(input, output, |input, output| {
            let (mut input, mut output) = (sent(input), Memory::in_place(output));
            let ends = self
                .begin_pair(MessageEnd::To(to), &mut input)
                .map(|sends| {
                    let receives = self.begin_pair(MessageEnd::From(from), &mut output);
                    let received = receives.and_then(|begun| self.finish(begun, &mut output));
                    self.finish(sends, &mut input).and(received)
                });
            (input.input, output.output, ends.flatten())
        })
    }

    /// Starts sending `buffer` to `peer` and returns immediately.
    ///
    /// [`Work::wait`] returns the buffer once the program can use it again, which may be before
    /// `peer` has received the message. Any number of messages can be in flight at the same time.
    /// The buffer is only read, so it can be an `Arc<[f32]>`, for example.
    ///
    /// ```
    /// use std::sync::Arc;
    /// let received = ringtree::simulate(3, |comm| {
    ///     let mut numbers = vec![0.0f32; 3];
    ///     if comm.rank() == 0 {
    ///         let weights: Arc<[f32]> = Arc::from([0.5, 1.5, 2.5]);
    ///         let to_1 = comm.start_send(Arc::clone(&weights), 1)?;
    ///         let to_2 = comm.start_send(weights, 2)?;
    ///         to_1.wait()?;
    ///         to_2.wait()?;
    ///     } else {
    ///         comm.recv(&mut numbers, 0)?;
    ///     }
    ///     Ok::<_, ringtree::Error>(numbers[2])
    /// });
    /// assert_eq!(received, [Ok(0.0), Ok(2.5), Ok(2.5)]);
    /// ```
    ///
    /// # Errors
    /// Returns [`WorkError`], which contains the buffer, if the call is invalid or the communicator
    /// has failed. [`Work::wait`] returns all other [errors](Communicator#errors).
    #[doc(alias("MPI_Isend", "isend"))]
    pub fn start_send<B>(&self, buffer: B, peer: usize) -> Result<Work<B>, WorkError<B>>
    where
        B: Buffer + Send + 'static,
    {
        let held = Region::hold_shared(buffer, |held: &B| held.memory().on_host());
        let held = held.map_err(|(error, buffer)| WorkError { error, buffer })?;
        self.start_pair(MessageEnd::To(peer), sent(held.0), held.1)
    }

    /// Starts receiving from `peer` and returns immediately. [`Work::wait`] returns the buffer,
    /// which then contains the message.
    ///
    /// ```
    /// let ends = ringtree::simulate(2, |comm| {
    ///     let peer = 1 - comm.rank();
    ///     // Both ranks post their receive, then send.
    ///     let incoming = comm.start_recv(vec![0u32; 2], peer)?;
    ///     comm.send(&[peer as u32, 7], peer)?;
    ///     Ok::<_, ringtree::Error>(incoming.wait()?)
    /// });
    /// assert_eq!(ends, [Ok(vec![0, 7]), Ok(vec![1, 7])]);
    /// ```
    ///
    /// # Errors
    /// Returns [`WorkError`], which contains the buffer, if the call is invalid or the communicator
    /// has failed. [`Work::wait`] returns all other [errors](Communicator#errors).
    #[doc(alias("MPI_Irecv", "irecv"))]
    pub fn start_recv<B>(&self, buffer: B, peer: usize) -> Result<Work<B>, WorkError<B>>
    where
        B: BufferMut + Send + 'static,
    {
        let held = Region::hold(buffer, writable_on_host);
        let held = held.map_err(|(error, buffer)| WorkError { error, buffer })?;
        self.start_pair(MessageEnd::From(peer), Memory::in_place(held.0), held.1)
    }

    fn start_pair<B>(
        &self,
        end: MessageEnd,
        memory: Memory,
        claim: Claim<B>,
    ) -> Result<Work<B>, WorkError<B>> {
        Work::start(&self.core, memory, claim, |memory| {
            self.post_pair(end, memory)
        })
    }

    /// Posts a send or a receive. The polling threads then advance it.
    pub(super) fn post_pair(&self, end: MessageEnd, memory: &mut Memory) -> Result<Ticket> {
        let parts = &self.core.parts;
        self.on_message(end, memory, |start| {
            parts.runtime.get()?.post(parts.group, Order::Pairs, start)
        })
    }

    /// Begins a send or a receive that the caller will soon wait for.
    pub(super) fn begin_pair(&self, end: MessageEnd, memory: &mut Memory) -> Result<Ticket> {
        let parts = &self.core.parts;
        self.on_message(end, memory, |start| {
            parts.runtime.get()?.begin_message(parts.group, start)
        })
    }

    fn on_message<R>(
        &self,
        end: MessageEnd,
        memory: &mut Memory,
        start: impl FnOnce(&mut Start<'_>) -> Result<R>,
    ) -> Result<R> {
        if let MessageEnd::To(peer) | MessageEnd::From(peer) = end {
            self.check_pair(peer)?;
        }
        let region = memory.input.as_ref().or(memory.output.as_ref());
        let region = region.expect("invariant: a message has a buffer");
        let content = (region.count(), region.dtype());
        let prepared = Prepared::message(self.rank(), end, content, self.tag)?;
        let prepared = Arc::new(prepared.over(self.transport_of(end)));
        start(&mut Start {
            prepared: &prepared,
            sequence: 0,
            memory,
            timeout: self.timeout,
            gate: None,
        })
    }

    /// Returns the transport under which a message is counted. The sender of a receive from any
    /// rank is not known yet, so such a receive is counted under the transport to all other ranks.
    fn transport_of(&self, end: MessageEnd) -> Transport {
        let parts = &self.core.parts;
        let hosts = &parts.hosts;
        let is_local = |peer: usize| hosts[peer] == hosts[parts.rank];
        match end {
            MessageEnd::To(peer) | MessageEnd::From(peer) => Transport::to([peer], is_local),
            MessageEnd::FromAny(ranks) => {
                let others = (0..ranks).filter(|rank| *rank != parts.rank);
                Transport::to(others, is_local)
            }
        }
    }

    /// Checks whether this rank can receive from any rank.
    fn check_any(&self, is_empty: bool) -> Result<()> {
        let why = match is_empty {
            true => "an empty message; pass at least one element",
            false if self.world_size() > 1 => return Ok(()),
            false => "a message: this is the only rank",
        };
        let line = format!("a receive from any rank cannot receive {why}");
        Err(Error::usage(line))
    }

    fn check_pair(&self, peer: usize) -> Result<()> {
        self.check_peer("peer", peer)?;
        if peer == self.rank() {
            return Err(Error::usage(format!(
                "rank {peer} cannot send to or receive from itself; copy the data instead"
            )));
        }
        Ok(())
    }
}

/// Starts receiving a message from any rank into `buffer`. [`wait_with_sender`] returns its sender.
///
/// # Errors
/// Returns [`WorkError`] with the same errors as [`Communicator::recv_any`].
pub fn start_recv_any<B>(comm: &Communicator, buffer: B) -> Result<Work<B>, WorkError<B>>
where
    B: BufferMut + Send + 'static,
{
    let held = Region::hold(buffer, |held: &mut B| {
        let slice = writable_on_host(held)?;
        comm.check_any(slice.is_empty()).map(|()| slice)
    });
    let held = held.map_err(|(error, buffer)| WorkError { error, buffer })?;
    let end = MessageEnd::FromAny(comm.world_size());
    comm.start_pair(end, Memory::in_place(held.0), held.1)
}

/// Waits for a receive. Returns the buffer and the rank that sent the message.
///
/// # Errors
/// Returns [`WorkError`] with the same errors as [`Work::wait`].
///
/// # Panics
/// Panics if `receive` is not a receive.
pub fn wait_with_sender<B>(receive: Work<B>) -> Result<(B, usize), WorkError<B>> {
    let (buffer, sender) = receive.wait_by(|runtime, ticket| runtime.wait_for_sender(ticket))?;
    Ok((
        buffer,
        sender.expect("invariant: a received message has a sender"),
    ))
}

/// Creates the memory for a send, which only reads `region`.
pub(super) fn sent(region: Region) -> Memory {
    Memory {
        input: Some(region),
        output: None,
    }
}

/// Copies a message that a rank sends to itself.
fn copy<I: Element, O: Element>(input: &[u8], output: &mut [u8]) -> Result<()> {
    if I::DTYPE == O::DTYPE && input.len() == output.len() {
        output.copy_from_slice(input);
        return Ok(());
    }
    Err(Error::usage(format!(
        "this rank sends {} {} to itself, but receives {} {}; use the same length and type for \
         both",
        input.len() / size_of::<I>(),
        I::DTYPE,
        output.len() / size_of::<O>(),
        O::DTYPE
    )))
}
