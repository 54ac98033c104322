//! Runs asynchronous operations on borrowed buffers.

use super::Communicator;
use super::buffer::{Buffer, BufferMut, writable_on_host};
use super::pairs::sent;
use crate::engine::Ticket;
use crate::engine::cache::MessageEnd;
use crate::engine::group::Memory;
use crate::error::Result;
use crate::plan::internal::layout::Kept;
use crate::protocol::call::Call;
use crate::sys::memory::{Lender, Loan, Region, lending};
use std::cell::RefCell;

impl Communicator {
    /// Runs `body`, which can start operations on borrowed buffers and compute while they are in
    /// flight.
    ///
    /// All operations have completed when `scope` returns, even if `body` panics. Create the
    /// buffers, including those of a [`Layout`](crate::Layout), before the scope.
    ///
    /// ```
    /// use ringtree::ReduceOp;
    /// let ends = ringtree::simulate(2, |comm| {
    ///     let (mut first, mut second) = (vec![1.0f32; 8], vec![2.0f32; 8]);
    ///     comm.scope(|scope| {
    ///         let work = scope.all_reduce(&mut first, ReduceOp::Sum)?;
    ///         scope.all_reduce(&mut second, ReduceOp::Sum)?;
    ///         // ... compute something else ...
    ///         work.wait().map(drop)
    ///     })?;
    ///     Ok::<_, ringtree::Error>((first[0], second[0]))
    /// });
    /// assert_eq!(ends, vec![Ok((2.0, 4.0)); 2]);
    /// ```
    ///
    /// # Errors
    /// If `body` fails, returns its error. Otherwise, returns the first error from any operation
    /// that `body` did not wait for.
    pub fn scope<'buffers, R>(
        &self,
        body: impl FnOnce(&Scope<'_, 'buffers>) -> Result<R>,
    ) -> Result<R> {
        lending(|lender| {
            let scope = Scope {
                comm: self,
                lender,
                pending: RefCell::default(),
            };
            let result = body(&scope);
            let rest = scope.finish();
            result.and_then(|value| rest.map(|()| value))
        })
    }

    /// Runs `body`, which issues sends and receives, and returns once all of them have completed.
    ///
    /// The order of the sends and receives does not matter, except for messages between the same
    /// two ranks. Even if all ranks first send and then receive, or first receive and then send, no
    /// rank blocks another. Messages might not be transferred until `body` returns, so `body`
    /// should not perform any computation.
    ///
    /// ```
    /// let gathered = ringtree::simulate(4, |comm| {
    ///     let own = vec![comm.rank() as u64; 1 << 16];
    ///     let mut all = vec![vec![0u64; 1 << 16]; comm.world_size()];
    ///     let me = comm.rank();
    ///     comm.batch(|group| {
    ///         let others = all.iter_mut().enumerate().filter(|(peer, _)| *peer != me);
    ///         for (peer, theirs) in others {
    ///             group.send(&own, peer)?;
    ///             group.recv(theirs, peer)?;
    ///         }
    ///         Ok(())
    ///     })?;
    ///     Ok::<_, ringtree::Error>(all.iter().map(|one| one[0]).sum::<u64>() + me as u64)
    /// });
    /// assert_eq!(gathered, vec![Ok(6); 4]);
    /// ```
    ///
    /// # Errors
    /// If `body` fails, returns its error. Otherwise, returns the first error from any of the
    /// messages. Even if `body` fails, this method waits for the messages that `body` has issued.
    #[doc(alias("ncclGroupStart", "batch_isend_irecv", "MPI_Waitall"))]
    pub fn batch<'buffers, R>(
        &self,
        body: impl FnOnce(&MessageBatch<'_, 'buffers>) -> Result<R>,
    ) -> Result<R> {
        self.scope(|scope| body(&MessageBatch(scope)))
    }
}

/// A scope in which operations can borrow buffers that outlive the scope. Created by
/// [`Communicator::scope`].
pub struct Scope<'scope, 'buffers> {
    comm: &'scope Communicator,
    lender: &'scope Lender<'buffers>,
    pending: RefCell<Vec<Ticket>>,
}

/// An operation in a scope. It borrows its buffer through the reference `R`. If this value is
/// dropped, the scope still waits for the operation before it returns.
#[must_use = "call `wait` to get the operation's error here; otherwise, the scope returns it"]
pub struct ScopedWork<'work, 'scope, 'buffers, R> {
    scope: &'work Scope<'scope, 'buffers>,
    ticket: Ticket,
    loan: Loan<R>,
}

/// A batch of messages. Created by [`Communicator::batch`].
pub struct MessageBatch<'scope, 'buffers>(&'scope Scope<'scope, 'buffers>);

/// Methods that send and receive messages.
impl<'scope, 'buffers> Scope<'scope, 'buffers> {
    /// Starts sending `buffer` to `peer`, like [`Communicator::start_send`].
    ///
    /// ```
    /// let received = ringtree::simulate(2, |comm| {
    ///     let (peer, own, mut theirs) = (1 - comm.rank(), [comm.rank() as f32; 4], [0.0f32; 4]);
    ///     comm.scope(|scope| {
    ///         let sent = scope.send(&own, peer)?;
    ///         let received = scope.recv(&mut theirs, peer)?.wait()?;
    ///         received[0] += 10.0; // `own` may still be in flight
    ///         sent.wait().map(drop)
    ///     })?;
    ///     Ok::<_, ringtree::Error>(theirs[..2].to_vec())
    /// });
    /// assert_eq!(received, [Ok(vec![11.0, 1.0]), Ok(vec![10.0, 0.0])]);
    /// ```
    ///
    /// # Errors
    /// Returns an error if the call is invalid or the communicator has failed. [`ScopedWork::wait`]
    /// returns all other [errors](Communicator#errors).
    pub fn send<B: Buffer + ?Sized>(
        &self,
        buffer: &'buffers B,
        peer: usize,
    ) -> Result<ScopedWork<'_, 'scope, 'buffers, &'buffers B>> {
        let (region, loan) = self.lend_shared(buffer)?;
        let posted = |memory: &mut Memory| self.comm.post_pair(MessageEnd::To(peer), memory);
        let ticket = self.issue(sent(region), posted)?;
        Ok(self.work(ticket, loan))
    }

    /// Starts receiving a message from `peer` into `buffer`, like [`Communicator::start_recv`].
    ///
    /// # Errors
    /// Returns an error if the call is invalid or the communicator has failed. [`ScopedWork::wait`]
    /// returns all other [errors](Communicator#errors).
    pub fn recv<B: BufferMut + ?Sized>(
        &self,
        buffer: &'buffers mut B,
        peer: usize,
    ) -> Result<ScopedWork<'_, 'scope, 'buffers, &'buffers mut B>> {
        let (region, loan) = self.lend(buffer)?;
        let posted = |memory: &mut Memory| self.comm.post_pair(MessageEnd::From(peer), memory);
        let ticket = self.issue(Memory::in_place(region), posted)?;
        Ok(self.work(ticket, loan))
    }

    pub(super) fn start_in_place<B: BufferMut + ?Sized>(
        &self,
        call: Call,
        buffer: &'buffers mut B,
    ) -> Result<ScopedWork<'_, 'scope, 'buffers, &'buffers mut B>> {
        let layout = Kept::of(buffer.layout());
        let (region, loan) = self.lend(buffer)?;
        let call = call.dtype(region.dtype());
        let bound = self
            .comm
            .bind_in_place(call, region.count(), layout.layout());
        let start = |memory: &mut Memory| self.comm.post(bound?, memory);
        let ticket = self.issue(Memory::in_place(region), start)?;
        Ok(self.work(ticket, loan))
    }

    pub(super) fn start_into_output<I, O>(
        &self,
        call: Call,
        input: &'buffers I,
        output: &'buffers mut O,
    ) -> Result<ScopedWork<'_, 'scope, 'buffers, &'buffers mut O>>
    where
        I: Buffer + ?Sized,
        O: BufferMut<Element = I::Element> + ?Sized,
    {
        let layouts = (input.layout(), Kept::of(output.layout()));
        let (input, _) = self.lend_shared(input)?;
        let ends = self.lend(output).map(|(output, loan)| {
            let ends = [
                (input.count(), layouts.0),
                (output.count(), layouts.1.layout()),
            ];
            let bound = self.comm.bind_into(call.dtype(input.dtype()), ends);
            (output, loan, bound)
        });
        let (output, loan, bound) = match ends {
            Ok(ends) => ends,
            Err(error) => {
                self.lender.take_back(Some(input));
                return Err(error);
            }
        };
        let memory = Memory {
            input: Some(input),
            output: Some(output),
        };
        let ticket = self.issue(memory, |memory| self.comm.post(bound?, memory))?;
        Ok(self.work(ticket, loan))
    }

    fn work<R>(&self, ticket: Ticket, loan: Loan<R>) -> ScopedWork<'_, 'scope, 'buffers, R> {
        ScopedWork {
            scope: self,
            ticket,
            loan,
        }
    }

    fn lend<B: BufferMut + ?Sized>(
        &self,
        buffer: &'buffers mut B,
    ) -> Result<(Region, Loan<&'buffers mut B>)> {
        self.lender.lend(buffer, writable_on_host)
    }

    fn lend_shared<B: Buffer + ?Sized>(
        &self,
        buffer: &'buffers B,
    ) -> Result<(Region, Loan<&'buffers B>)> {
        self.lender
            .lend_shared(buffer, |whole: &B| whole.memory().on_host())
    }

    /// Starts an operation and adds its ticket to `pending`. If `start` fails, returns the memory
    /// to the lender.
    fn issue(
        &self,
        mut memory: Memory,
        start: impl FnOnce(&mut Memory) -> Result<Ticket>,
    ) -> Result<Ticket> {
        let started = start(&mut memory);
        match &started {
            Ok(ticket) => self.pending.borrow_mut().push(*ticket),
            Err(_) => self.take_back(memory),
        }
        started
    }

    fn take_back(&self, memory: Memory) {
        self.lender.take_back(memory.input);
        self.lender.take_back(memory.output);
    }

    /// Waits for one operation and returns its memory, which is empty if the scope has already
    /// waited for the operation.
    fn end(&self, ticket: Ticket) -> (Memory, Result<()>) {
        let mut pending = self.pending.borrow_mut();
        let Some(at) = pending.iter().position(|each| *each == ticket) else {
            return (Memory::default(), Ok(()));
        };
        pending.remove(at);
        drop(pending);
        match self.comm.core.parts.runtime.get() {
            Ok(runtime) => runtime.wait(ticket),
            Err(refusal) => (Memory::default(), Err(refusal)),
        }
    }

    /// Waits for all remaining operations and returns the first error.
    fn finish(&self) -> Result<()> {
        let mut result = Ok(());
        loop {
            let next = self.pending.borrow().first().copied();
            let Some(ticket) = next else { return result };
            let (memory, end) = self.end(ticket);
            self.take_back(memory);
            result = result.and(end);
        }
    }
}

impl Drop for Scope<'_, '_> {
    fn drop(&mut self) {
        // Operations are still pending here only if the body panicked. Their errors cannot be
        // returned.
        let _ = self.finish();
    }
}

impl<R> ScopedWork<'_, '_, '_, R> {
    /// Waits for the operation and returns the reference to its buffer.
    ///
    /// The buffer can then be used while other operations in the scope are still in flight.
    ///
    /// ```
    /// use ringtree::ReduceOp;
    /// let sums = ringtree::simulate(2, |comm| {
    ///     let (mut first, mut second) = (vec![1.0f32; 8], vec![2.0f32; 8]);
    ///     comm.scope(|scope| {
    ///         let one = scope.all_reduce(&mut first, ReduceOp::Sum)?;
    ///         let other = scope.all_reduce(&mut second, ReduceOp::Sum)?;
    ///         let so_far: f32 = one.wait()?.iter().sum(); // while `second` travels
    ///         Ok(so_far + other.wait()?[0])
    ///     })
    /// });
    /// assert_eq!(sums, vec![Ok(20.0); 2]);
    /// ```
    ///
    /// # Errors
    /// Returns one of the [errors that all calls share](Communicator#errors). After an error, the
    /// buffer can be used again only once the scope has returned.
    pub fn wait(self) -> Result<R> {
        let (memory, result) = self.scope.end(self.ticket);
        // The loan covers the output, or the input of an operation that has no output.
        let (other, own) = match memory.output {
            Some(output) => (memory.input, Some(output)),
            None => (None, memory.input),
        };
        self.scope.lender.take_back(other);
        let buffer = self.scope.lender.settle(own, self.loan);
        result.map(|()| buffer.expect("invariant: an operation returns the region it was given"))
    }
}

impl<'buffers> MessageBatch<'_, 'buffers> {
    /// Sends `buffer` to `peer` as part of the batch.
    ///
    /// # Errors
    /// Returns an error if the call is invalid or the communicator has failed.
    /// [`Communicator::batch`] returns all other [errors](Communicator#errors).
    pub fn send<B: Buffer + ?Sized>(&self, buffer: &'buffers B, peer: usize) -> Result<()> {
        let (region, _) = self.0.lend_shared(buffer)?;
        self.issue(MessageEnd::To(peer), sent(region))
    }

    /// Receives a message from `peer` into `buffer` as part of the batch.
    ///
    /// # Errors
    /// Returns an error if the call is invalid or the communicator has failed.
    /// [`Communicator::batch`] returns all other [errors](Communicator#errors).
    pub fn recv<B: BufferMut + ?Sized>(&self, buffer: &'buffers mut B, peer: usize) -> Result<()> {
        let (region, _) = self.0.lend(buffer)?;
        self.issue(MessageEnd::From(peer), Memory::in_place(region))
    }

    fn issue(&self, end: MessageEnd, memory: Memory) -> Result<()> {
        let begin = |memory: &mut Memory| self.0.comm.begin_pair(end, memory);
        self.0.issue(memory, begin).map(drop)
    }
}
