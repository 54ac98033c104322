//! Asynchronous operations on borrowed buffers.

use super::Communicator;
use super::buffer::{Buffer, BufferMut, written_on_host};
use super::pairs::sent;
use crate::engine::Ticket;
use crate::engine::cache::MessageEnd;
use crate::engine::group::Memory;
use crate::error::Result;
use crate::op::ReduceOp;
use crate::plan::layout::Kept;
use crate::plan::spec::Collective;
use crate::protocol::call::Call;
use crate::sys::memory::{Lender, Loan, Region, lending};
use std::cell::RefCell;

impl Communicator {
    /// Runs `body`, in which operations on borrowed buffers can be under way while the caller
    /// computes. Every one of them has ended when `scope` returns, even if `body` panics; the
    /// first error of one that was not waited for is returned.
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
    /// What `body` returns, or the error of an operation that was not waited for.
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

    /// Runs `body`, which issues sends and receives, and returns when all of them have ended. Their
    /// order does not matter, but for that of the messages between the same two ranks: where all
    /// ranks send first and then receive, or the other way round, no rank waits for another.
    /// Messages need not travel before `body` has returned, so it had better not compute.
    ///
    /// ```
    /// let gathered = ringtree::simulate(4, |comm| {
    ///     let own = vec![comm.rank() as u64; 1 << 16];
    ///     let mut all = vec![vec![0u64; 1 << 16]; comm.world_size()];
    ///     let me = comm.rank();
    ///     comm.group(|group| {
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
    /// What `body` returns, or the first error of a message. If `body` fails, what it had issued
    /// is still waited for.
    pub fn group<'buffers, R>(
        &self,
        body: impl FnOnce(&Exchange<'_, 'buffers>) -> Result<R>,
    ) -> Result<R> {
        self.scope(|scope| body(&Exchange(scope)))
    }
}

/// Issues operations on buffers that outlive the scope.
pub struct Scope<'scope, 'buffers> {
    comm: &'scope Communicator,
    lender: &'scope Lender<'buffers>,
    pending: RefCell<Vec<Ticket>>,
}

/// An operation of a scope on the buffer to which `R` is the reference. Dropping it leaves the
/// waiting to the end of the scope.
#[must_use = "an error of the operation comes from `wait`, or else from the scope"]
pub struct ScopedWork<'work, 'scope, 'buffers, R> {
    scope: &'work Scope<'scope, 'buffers>,
    ticket: Ticket,
    loan: Loan<R>,
}

/// Issues the messages of a [group](Communicator::group).
pub struct Exchange<'scope, 'buffers>(&'scope Scope<'scope, 'buffers>);

impl<'scope, 'buffers> Scope<'scope, 'buffers> {
    /// Starts an all-reduce of `buffer`, as [`Communicator::all_reduce`].
    ///
    /// ```
    /// use ringtree::ReduceOp;
    /// let sums = ringtree::simulate(2, |comm| {
    ///     let mut layers = vec![vec![1.0f32; 3]; 2];
    ///     comm.scope(|scope| {
    ///         for layer in &mut layers {
    ///             scope.all_reduce(layer, ReduceOp::Sum)?;
    ///         }
    ///         Ok(())
    ///     })?;
    ///     Ok::<_, ringtree::Error>(layers)
    /// });
    /// assert_eq!(sums[0], Ok(vec![vec![2.0; 3]; 2]));
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_async`].
    pub fn all_reduce<B: BufferMut + ?Sized>(
        &self,
        buffer: &'buffers mut B,
        op: ReduceOp,
    ) -> Result<ScopedWork<'_, 'scope, 'buffers, &'buffers mut B>> {
        self.start(Call::new(Collective::AllReduce, 0).op(op), buffer)
    }

    /// Starts a broadcast of `buffer`, as [`Communicator::broadcast`].
    ///
    /// ```
    /// let copies = ringtree::simulate(3, |comm| {
    ///     let mut weights = [comm.rank() as f32; 2];
    ///     comm.scope(|scope| scope.broadcast(&mut weights, 2)?.wait().map(drop))?;
    ///     Ok::<_, ringtree::Error>(weights)
    /// });
    /// assert_eq!(copies, vec![Ok([2.0, 2.0]); 3]);
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::broadcast_async`].
    pub fn broadcast<B: BufferMut + ?Sized>(
        &self,
        buffer: &'buffers mut B,
        root: usize,
    ) -> Result<ScopedWork<'_, 'scope, 'buffers, &'buffers mut B>> {
        self.start(Call::new(Collective::Broadcast, 0).root(root), buffer)
    }

    /// Starts a reduce-scatter of `buffer`, as [`Communicator::reduce_scatter`].
    ///
    /// ```
    /// use ringtree::ReduceOp;
    /// let blocks = ringtree::simulate(2, |comm| {
    ///     let mut numbers = [1, 2, 3];
    ///     comm.scope(|scope| {
    ///         scope.reduce_scatter(&mut numbers, ReduceOp::Sum)?.wait().map(drop)
    ///     })?;
    ///     Ok::<_, ringtree::Error>(numbers[comm.block(3)].to_vec())
    /// });
    /// assert_eq!(blocks, [Ok(vec![2, 4]), Ok(vec![6])]);
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::reduce_scatter_async`].
    pub fn reduce_scatter<B: BufferMut + ?Sized>(
        &self,
        buffer: &'buffers mut B,
        op: ReduceOp,
    ) -> Result<ScopedWork<'_, 'scope, 'buffers, &'buffers mut B>> {
        self.start(Call::new(Collective::ReduceScatter, 0).op(op), buffer)
    }

    /// Starts an all-gather of `buffer`, as [`Communicator::all_gather`].
    ///
    /// ```
    /// let gathered = ringtree::simulate(2, |comm| {
    ///     let mut ranks = [0u8; 2];
    ///     ranks[comm.rank()] = 10 + comm.rank() as u8;
    ///     comm.scope(|scope| scope.all_gather(&mut ranks)?.wait().map(drop))?;
    ///     Ok::<_, ringtree::Error>(ranks)
    /// });
    /// assert_eq!(gathered, vec![Ok([10, 11]); 2]);
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::all_gather_async`].
    pub fn all_gather<B: BufferMut + ?Sized>(
        &self,
        buffer: &'buffers mut B,
    ) -> Result<ScopedWork<'_, 'scope, 'buffers, &'buffers mut B>> {
        self.start(Call::new(Collective::AllGather, 0), buffer)
    }

    /// Starts a gather of `buffer`, as [`Communicator::gather`].
    ///
    /// ```
    /// let gathered = ringtree::simulate(2, |comm| {
    ///     let mut ranks = [10 + comm.rank() as u8; 2];
    ///     comm.scope(|scope| scope.gather(&mut ranks, 1)?.wait().map(drop))?;
    ///     Ok::<_, ringtree::Error>(ranks)
    /// });
    /// assert_eq!(gathered[1], Ok([10, 11]));
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::gather_async`].
    pub fn gather<B: BufferMut + ?Sized>(
        &self,
        buffer: &'buffers mut B,
        root: usize,
    ) -> Result<ScopedWork<'_, 'scope, 'buffers, &'buffers mut B>> {
        self.start(Call::new(Collective::Gather, 0).root(root), buffer)
    }

    /// Starts a scatter of `buffer`, as [`Communicator::scatter`].
    ///
    /// ```
    /// let dealt = ringtree::simulate(2, |comm| {
    ///     let mut numbers = [comm.rank() as f32; 2];
    ///     comm.scope(|scope| scope.scatter(&mut numbers, 1)?.wait().map(drop))?;
    ///     Ok::<_, ringtree::Error>(numbers)
    /// });
    /// assert_eq!(dealt[0].as_ref().map(|numbers| numbers[0]), Ok(1.0));
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::scatter_async`].
    pub fn scatter<B: BufferMut + ?Sized>(
        &self,
        buffer: &'buffers mut B,
        root: usize,
    ) -> Result<ScopedWork<'_, 'scope, 'buffers, &'buffers mut B>> {
        self.start(Call::new(Collective::Scatter, 0).root(root), buffer)
    }

    /// Starts an all-to-all of `buffer`, as [`Communicator::all_to_all`].
    ///
    /// ```
    /// let transposed = ringtree::simulate(2, |comm| {
    ///     let mut row = [comm.rank() as u8; 2];
    ///     comm.scope(|scope| scope.all_to_all(&mut row)?.wait().map(drop))?;
    ///     Ok::<_, ringtree::Error>(row)
    /// });
    /// assert_eq!(transposed, [Ok([0, 1]), Ok([0, 1])]);
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::all_to_all_async`].
    pub fn all_to_all<B: BufferMut + ?Sized>(
        &self,
        buffer: &'buffers mut B,
    ) -> Result<ScopedWork<'_, 'scope, 'buffers, &'buffers mut B>> {
        self.start(Call::new(Collective::AllToAll, 0), buffer)
    }

    /// Starts sending `buffer` to `peer`, as [`Communicator::send_async`].
    ///
    /// ```
    /// let received = ringtree::simulate(2, |comm| {
    ///     let (peer, own, mut theirs) = (1 - comm.rank(), [comm.rank() as f32; 4], [0.0f32; 4]);
    ///     comm.scope(|scope| {
    ///         let sent = scope.send(&own, peer)?;
    ///         let received = scope.recv(&mut theirs, peer)?.wait()?;
    ///         received[0] += 10.0; // while `own` may still be on its way
    ///         sent.wait().map(drop)
    ///     })?;
    ///     Ok::<_, ringtree::Error>(theirs[..2].to_vec())
    /// });
    /// assert_eq!(received, [Ok(vec![11.0, 1.0]), Ok(vec![10.0, 0.0])]);
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::send_async`].
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

    /// Starts receiving into `buffer` what `peer` sends, as [`Communicator::recv_async`].
    ///
    /// # Errors
    /// As [`Communicator::recv_async`].
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

    fn start<B: BufferMut + ?Sized>(
        &self,
        call: Call,
        buffer: &'buffers mut B,
    ) -> Result<ScopedWork<'_, 'scope, 'buffers, &'buffers mut B>> {
        let layout = Kept::of(buffer.layout());
        let (region, loan) = self.lend(buffer)?;
        let layout = layout.layout();
        let posted = |memory: &mut Memory| self.comm.post_collective(call, layout, memory);
        let ticket = self.issue(Memory::in_place(region), posted)?;
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
        self.lender.lend(buffer, written_on_host)
    }

    fn lend_shared<B: Buffer + ?Sized>(
        &self,
        buffer: &'buffers B,
    ) -> Result<(Region, Loan<&'buffers B>)> {
        self.lender
            .lend_shared(buffer, |whole: &B| whole.memory().on_host())
    }

    /// Notes the operation that `start` starts. If it cannot, it leaves the memory where it is.
    fn issue(
        &self,
        mut memory: Memory,
        start: impl FnOnce(&mut Memory) -> Result<Ticket>,
    ) -> Result<Ticket> {
        let started = start(&mut memory);
        match &started {
            Ok(ticket) => self.pending.borrow_mut().push(*ticket),
            Err(_) => self.lender.take_back(memory.input.or(memory.output)),
        }
        started
    }

    /// Waits for one operation; its region comes back, unless that was done before.
    fn end(&self, ticket: Ticket) -> (Option<Region>, Result<()>) {
        let mut pending = self.pending.borrow_mut();
        let Some(at) = pending.iter().position(|each| *each == ticket) else {
            return (None, Ok(()));
        };
        pending.remove(at);
        drop(pending);
        match self.comm.0.parts.runtime.get() {
            Ok(runtime) => {
                let (memory, result) = runtime.wait(ticket);
                (memory.input.or(memory.output), result)
            }
            Err(refusal) => (None, Err(refusal)),
        }
    }

    /// Waits for every operation that is left; returns the first error.
    fn finish(&self) -> Result<()> {
        let mut result = Ok(());
        loop {
            let next = self.pending.borrow().first().copied();
            let Some(ticket) = next else { return result };
            let (region, end) = self.end(ticket);
            self.lender.take_back(region);
            result = result.and(end);
        }
    }
}

impl Drop for Scope<'_, '_> {
    fn drop(&mut self) {
        // Only after a panic in the body is anything left; its errors have nowhere to go.
        let _ = self.finish();
    }
}

impl<R> ScopedWork<'_, '_, '_, R> {
    /// Waits for the operation, and gives back the reference to its buffer: it can be used while
    /// other operations of the scope are under way.
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
    /// Any of [`crate::Error`]; the buffer can be used again when the scope has ended.
    pub fn wait(self) -> Result<R> {
        let (region, result) = self.scope.end(self.ticket);
        let buffer = self.scope.lender.settle(region, self.loan);
        result.map(|()| buffer.expect("invariant: an operation returns the region it was given"))
    }
}

impl<'buffers> Exchange<'_, 'buffers> {
    /// Sends `buffer` to `peer` as part of the group.
    ///
    /// # Errors
    /// As [`Communicator::send_async`].
    pub fn send<B: Buffer + ?Sized>(&self, buffer: &'buffers B, peer: usize) -> Result<()> {
        let (region, _) = self.0.lend_shared(buffer)?;
        self.issue(MessageEnd::To(peer), sent(region))
    }

    /// Receives into `buffer` what `peer` sends as part of the group.
    ///
    /// # Errors
    /// As [`Communicator::recv_async`].
    pub fn recv<B: BufferMut + ?Sized>(&self, buffer: &'buffers mut B, peer: usize) -> Result<()> {
        let (region, _) = self.0.lend(buffer)?;
        self.issue(MessageEnd::From(peer), Memory::in_place(region))
    }

    fn issue(&self, end: MessageEnd, memory: Memory) -> Result<()> {
        let begin = |memory: &mut Memory| self.0.comm.begin_pair(end, memory);
        self.0.issue(memory, begin).map(drop)
    }
}
