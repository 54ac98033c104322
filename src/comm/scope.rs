//! Asynchronous operations on borrowed buffers.

use super::Communicator;
use super::buffer::BufferMut;
use crate::engine::Ticket;
use crate::error::Result;
use crate::op::ReduceOp;
use crate::plan::spec::Collective;
use crate::protocol::call::Call;
use crate::sys::memory::{Lender, lending};
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
    ///         work.wait()
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
}

/// Issues operations on buffers that outlive the scope.
pub struct Scope<'scope, 'buffers> {
    comm: &'scope Communicator,
    lender: &'scope Lender<'buffers>,
    pending: RefCell<Vec<Ticket>>,
}

/// An operation of a scope. Dropping it leaves the waiting to the end of the scope.
#[must_use = "an error of the operation comes from `wait`, or else from the scope"]
pub struct ScopedWork<'work, 'scope, 'buffers> {
    scope: &'work Scope<'scope, 'buffers>,
    ticket: Ticket,
}

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
    ) -> Result<ScopedWork<'_, 'scope, 'buffers>> {
        self.start(Call::new(Collective::AllReduce, 0).op(op), buffer)
    }

    /// Starts a broadcast of `buffer`, as [`Communicator::broadcast`].
    ///
    /// ```
    /// let copies = ringtree::simulate(3, |comm| {
    ///     let mut weights = [comm.rank() as f32; 2];
    ///     comm.scope(|scope| scope.broadcast(&mut weights, 2)?.wait()).map(|()| weights)
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
    ) -> Result<ScopedWork<'_, 'scope, 'buffers>> {
        self.start(Call::new(Collective::Broadcast, 0).root(root), buffer)
    }

    /// Starts a reduce-scatter of `buffer`, as [`Communicator::reduce_scatter`].
    ///
    /// ```
    /// use ringtree::ReduceOp;
    /// let blocks = ringtree::simulate(2, |comm| {
    ///     let mut numbers = [1, 2, 3];
    ///     comm.scope(|scope| scope.reduce_scatter(&mut numbers, ReduceOp::Sum)?.wait())?;
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
    ) -> Result<ScopedWork<'_, 'scope, 'buffers>> {
        self.start(Call::new(Collective::ReduceScatter, 0).op(op), buffer)
    }

    /// Starts an all-gather of `buffer`, as [`Communicator::all_gather`].
    ///
    /// ```
    /// let gathered = ringtree::simulate(2, |comm| {
    ///     let mut ranks = [0u8; 2];
    ///     ranks[comm.rank()] = 10 + comm.rank() as u8;
    ///     comm.scope(|scope| scope.all_gather(&mut ranks)?.wait()).map(|()| ranks)
    /// });
    /// assert_eq!(gathered, vec![Ok([10, 11]); 2]);
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::all_gather_async`].
    pub fn all_gather<B: BufferMut + ?Sized>(
        &self,
        buffer: &'buffers mut B,
    ) -> Result<ScopedWork<'_, 'scope, 'buffers>> {
        self.start(Call::new(Collective::AllGather, 0), buffer)
    }

    /// Starts a gather of `buffer`, as [`Communicator::gather`].
    ///
    /// ```
    /// let gathered = ringtree::simulate(2, |comm| {
    ///     let mut ranks = [10 + comm.rank() as u8; 2];
    ///     comm.scope(|scope| scope.gather(&mut ranks, 1)?.wait()).map(|()| ranks)
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
    ) -> Result<ScopedWork<'_, 'scope, 'buffers>> {
        self.start(Call::new(Collective::Gather, 0).root(root), buffer)
    }

    /// Starts a scatter of `buffer`, as [`Communicator::scatter`].
    ///
    /// ```
    /// let dealt = ringtree::simulate(2, |comm| {
    ///     let mut numbers = [comm.rank() as f32; 2];
    ///     comm.scope(|scope| scope.scatter(&mut numbers, 1)?.wait()).map(|()| numbers)
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
    ) -> Result<ScopedWork<'_, 'scope, 'buffers>> {
        self.start(Call::new(Collective::Scatter, 0).root(root), buffer)
    }

    /// Starts an all-to-all of `buffer`, as [`Communicator::all_to_all`].
    ///
    /// ```
    /// let transposed = ringtree::simulate(2, |comm| {
    ///     let mut row = [comm.rank() as u8; 2];
    ///     comm.scope(|scope| scope.all_to_all(&mut row)?.wait()).map(|()| row)
    /// });
    /// assert_eq!(transposed, [Ok([0, 1]), Ok([0, 1])]);
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::all_to_all_async`].
    pub fn all_to_all<B: BufferMut + ?Sized>(
        &self,
        buffer: &'buffers mut B,
    ) -> Result<ScopedWork<'_, 'scope, 'buffers>> {
        self.start(Call::new(Collective::AllToAll, 0), buffer)
    }

    fn start<B: BufferMut + ?Sized>(
        &self,
        call: Call,
        buffer: &'buffers mut B,
    ) -> Result<ScopedWork<'_, 'scope, 'buffers>> {
        let (layout, memory) = buffer.laid_mut();
        let slice = memory.on_host()?;
        let call = Call {
            count: slice.len(),
            ..call
        };
        let region = self.lender.lend(slice);
        match self.comm.start_region(call, layout, region) {
            Ok(ticket) => {
                self.pending.borrow_mut().push(ticket);
                Ok(ScopedWork {
                    scope: self,
                    ticket,
                })
            }
            Err((error, region)) => {
                self.lender.take_back(region);
                Err(error)
            }
        }
    }

    /// Waits for one operation, unless that was done before.
    fn end(&self, ticket: Ticket) -> Result<()> {
        let mut pending = self.pending.borrow_mut();
        let Some(at) = pending.iter().position(|each| *each == ticket) else {
            return Ok(());
        };
        pending.remove(at);
        drop(pending);
        let (memory, result) = self.comm.0.parts.runtime.wait(ticket);
        self.lender.take_back(memory.output);
        result
    }

    /// Waits for every operation that is left; returns the first error.
    fn finish(&self) -> Result<()> {
        let mut result = Ok(());
        loop {
            let next = self.pending.borrow().first().copied();
            let Some(ticket) = next else { return result };
            result = result.and(self.end(ticket));
        }
    }
}

impl Drop for Scope<'_, '_> {
    fn drop(&mut self) {
        // Only after a panic in the body is anything left; its errors have nowhere to go.
        let _ = self.finish();
    }
}

impl ScopedWork<'_, '_, '_> {
    /// Waits for the operation; the buffer can be used again when the scope has ended.
    ///
    /// # Errors
    /// Any of [`crate::Error`].
    pub fn wait(self) -> Result<()> {
        self.scope.end(self.ticket)
    }
}
