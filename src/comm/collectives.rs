//! Implements collectives in which the buffers have the same length on all ranks.
//!
//! Reduce-scatter and all-gather treat a buffer as a sequence of blocks, one per rank (see
//! [`Communicator::block`]). Every call completes or fails within the timeout of its handle.

use super::buffer::{Buffer, BufferMut, MemoryMut, written, written_on_host};
use super::work::{Failed, Work, release};
use super::{Communicator, Issued};
use crate::dtype::Element;
use crate::engine::Ticket;
use crate::engine::bind::{Lengths, Placement};
use crate::engine::cache::{Key, Prepared};
use crate::engine::group::{Memory, Order, Start};
use crate::error::{Error, Result};
use crate::op::ReduceOp;
use crate::plan::algorithms::entry;
use crate::plan::layout::{Kept, Layout};
use crate::plan::spec::{Algorithm, Collective};
use crate::protocol::call::{Call, Split};
use crate::sys::memory::{Region, lend, lend_both};
use std::sync::Arc;

impl Communicator {
    /// Replaces `buffer` on every rank with the reduction of all ranks' buffers.
    ///
    /// Every rank gets the same bits.
    ///
    /// ```
    /// use ringtree::ReduceOp;
    /// let means = ringtree::simulate(2, |comm| {
    ///     let mut gradients = vec![comm.rank() as f32; 3];
    ///     comm.all_reduce(&mut gradients, ReduceOp::Avg).map(|()| gradients)
    /// });
    /// assert_eq!(means[0], Ok(vec![0.5; 3]));
    /// ```
    ///
    /// # Errors
    /// Returns one of the [errors that all calls share](Communicator#errors).
    pub fn all_reduce<B: BufferMut + ?Sized>(&self, buffer: &mut B, op: ReduceOp) -> Result<()> {
        self.in_place(Call::new(Collective::AllReduce, 0).op(op), buffer)
    }

    /// Like [`Communicator::all_reduce`], but reads from `input`, which remains unchanged, and
    /// writes the result to `output`.
    ///
    /// ```
    /// use ringtree::ReduceOp;
    /// let largest = ringtree::simulate(3, |comm| {
    ///     let mut output = [0];
    ///     comm.all_reduce_into(&[comm.rank() as i32], &mut output, ReduceOp::Max).map(|()| output)
    /// });
    /// assert_eq!(largest, vec![Ok([2]); 3]);
    /// ```
    ///
    /// # Errors
    /// Returns one of the [errors that all calls share](Communicator#errors), such as
    /// [`Usage`](crate::ErrorKind::Usage) if the lengths differ.
    pub fn all_reduce_into<I, O>(&self, input: &I, output: &mut O, op: ReduceOp) -> Result<()>
    where
        I: Buffer + ?Sized,
        O: BufferMut<Element = I::Element> + ?Sized,
    {
        let (input, output) = (input.memory().on_host()?, written_on_host(output)?);
        check_length("output", output.len(), input.len())?;
        self.into(
            Call::new(Collective::AllReduce, input.len()).op(op),
            input,
            output,
            Layout::Even,
        )
    }

    /// Replaces `buffer` on every rank with the buffer of `root`.
    ///
    /// ```
    /// let weights = ringtree::simulate(4, |comm| {
    ///     let mut weights = [comm.rank() as f64; 2];
    ///     comm.broadcast(&mut weights, 1).map(|()| weights)
    /// });
    /// assert_eq!(weights, vec![Ok([1.0, 1.0]); 4]);
    /// ```
    ///
    /// # Errors
    /// Returns one of the [errors that all calls share](Communicator#errors).
    pub fn broadcast<B: BufferMut + ?Sized>(&self, buffer: &mut B, root: usize) -> Result<()> {
        self.in_place(Call::new(Collective::Broadcast, 0).root(root), buffer)
    }

    /// Replaces `buffer` on `root` with the reduction of all ranks' buffers. Afterwards, the
    /// contents of `buffer` are unspecified on all ranks except `root`.
    ///
    /// ```
    /// use ringtree::ReduceOp;
    /// let sums = ringtree::simulate(4, |comm| {
    ///     let mut number = [1u64 << comm.rank()];
    ///     comm.reduce(&mut number, ReduceOp::Sum, 2).map(|()| number)
    /// });
    /// assert_eq!(sums[2], Ok([15]));
    /// ```
    ///
    /// # Errors
    /// Returns one of the [errors that all calls share](Communicator#errors).
    pub fn reduce<B>(&self, buffer: &mut B, op: ReduceOp, root: usize) -> Result<()>
    where
        B: BufferMut + ?Sized,
    {
        self.in_place(Call::new(Collective::Reduce, 0).op(op).root(root), buffer)
    }

    /// Like [`Communicator::reduce`], but reads from `input`, which remains unchanged, and writes
    /// the result to `output`. The contents of `output` are unspecified on all ranks except `root`.
    ///
    /// ```
    /// use ringtree::ReduceOp;
    /// let ends = ringtree::simulate(3, |comm| {
    ///     let (own, mut product) = ([comm.rank() as i64 + 2], [0]);
    ///     comm.reduce_into(&own, &mut product, ReduceOp::Prod, 0).map(|()| (own, product))
    /// });
    /// assert_eq!(ends[0], Ok(([2], [24])));
    /// ```
    ///
    /// # Errors
    /// Returns one of the [errors that all calls share](Communicator#errors), such as
    /// [`Usage`](crate::ErrorKind::Usage) if the lengths differ.
    pub fn reduce_into<I, O>(
        &self,
        input: &I,
        output: &mut O,
        op: ReduceOp,
        root: usize,
    ) -> Result<()>
    where
        I: Buffer + ?Sized,
        O: BufferMut<Element = I::Element> + ?Sized,
    {
        let (input, output) = (input.memory().on_host()?, written_on_host(output)?);
        check_length("output", output.len(), input.len())?;
        let call = Call::new(Collective::Reduce, input.len());
        self.into(call.op(op).root(root), input, output, Layout::Even)
    }

    /// Replaces this rank's own block of `buffer` with the reduction of that block across all
    /// ranks. Afterwards, the contents of the rest of the buffer are unspecified.
    ///
    /// ```
    /// use ringtree::ReduceOp;
    /// let blocks = ringtree::simulate(2, |comm| {
    ///     let mut numbers = [1, 2, 3];
    ///     comm.reduce_scatter(&mut numbers, ReduceOp::Sum)?;
    ///     Ok::<_, ringtree::Error>(numbers[comm.block(3)].to_vec())
    /// });
    /// assert_eq!(blocks, [Ok(vec![2, 4]), Ok(vec![6])]);
    /// ```
    ///
    /// # Errors
    /// Returns one of the [errors that all calls share](Communicator#errors).
    pub fn reduce_scatter<B>(&self, buffer: &mut B, op: ReduceOp) -> Result<()>
    where
        B: BufferMut + ?Sized,
    {
        self.in_place(Call::new(Collective::ReduceScatter, 0).op(op), buffer)
    }

    /// Like [`Communicator::reduce_scatter`], but reads from `input`, which contains all blocks and
    /// remains unchanged, and writes this rank's own block of the result to `output`.
    ///
    /// ```
    /// use ringtree::ReduceOp;
    /// let blocks = ringtree::simulate(3, |comm| {
    ///     let mut own = [0u16; 2];
    ///     comm.reduce_scatter_into(&[1u16, 2, 3, 4, 5, 6], &mut own, ReduceOp::Sum).map(|()| own)
    /// });
    /// assert_eq!(blocks, [Ok([3, 6]), Ok([9, 12]), Ok([15, 18])]);
    /// ```
    ///
    /// # Errors
    /// Returns one of the [errors that all calls share](Communicator#errors), such as
    /// [`Usage`](crate::ErrorKind::Usage) if the length of `output` differs from that of the block,
    /// or if `op` is [`ReduceOp::PreMulSum`].
    pub fn reduce_scatter_into<I, O>(&self, input: &I, output: &mut O, op: ReduceOp) -> Result<()>
    where
        I: Buffer + ?Sized,
        O: BufferMut<Element = I::Element> + ?Sized,
    {
        let layout = input.layout();
        let input = input.memory().on_host()?;
        let output = written_on_host(output)?;
        let own = ("output", output.len());
        self.check_block(own, layout, input.len(), I::Element::DTYPE)?;
        if op.factor().is_some() {
            return Err(Error::usage(format!(
                "reduce_scatter_into does not support {op} because the scaled input does not fit \
                 into its output; scale a copy and use reduce_scatter"
            )));
        }
        let call = Call::new(Collective::ReduceScatter, input.len());
        self.into(call.op(op), input, output, layout)
    }

    /// Replaces `buffer` on every rank with the blocks of all ranks, in rank order. Each rank
    /// contributes only its own block of `buffer`.
    ///
    /// ```
    /// let gathered = ringtree::simulate(3, |comm| {
    ///     let mut ranks = [0u8; 3];
    ///     ranks[comm.rank()] = comm.rank() as u8;
    ///     comm.all_gather(&mut ranks).map(|()| ranks)
    /// });
    /// assert_eq!(gathered, vec![Ok([0, 1, 2]); 3]);
    /// ```
    ///
    /// # Errors
    /// Returns one of the [errors that all calls share](Communicator#errors).
    pub fn all_gather<B: BufferMut + ?Sized>(&self, buffer: &mut B) -> Result<()> {
        self.in_place(Call::new(Collective::AllGather, 0), buffer)
    }

    /// Replaces `output` on every rank with the inputs of all ranks, in rank order.
    ///
    /// ```
    /// let gathered = ringtree::simulate(2, |comm| {
    ///     let mut output = [0.0; 4];
    ///     comm.all_gather_into(&[comm.rank() as f32; 2], &mut output).map(|()| output)
    /// });
    /// assert_eq!(gathered[1], Ok([0.0, 0.0, 1.0, 1.0]));
    /// ```
    ///
    /// # Errors
    /// Returns one of the [errors that all calls share](Communicator#errors), such as
    /// [`Usage`](crate::ErrorKind::Usage) if `input` and this rank's block of `output` have
    /// different lengths.
    pub fn all_gather_into<I, O>(&self, input: &I, output: &mut O) -> Result<()>
    where
        I: Buffer + ?Sized,
        O: BufferMut<Element = I::Element> + ?Sized,
    {
        let input = input.memory().on_host()?;
        let layout = Kept::of(output.layout());
        let layout = layout.layout();
        let output = written_on_host(output)?;
        let own = ("input", input.len());
        self.check_block(own, layout, output.len(), I::Element::DTYPE)?;
        let call = Call::new(Collective::AllGather, output.len());
        self.into(call, input, output, layout)
    }

    /// Waits until every rank has called `barrier`.
    ///
    /// ```
    /// assert!(ringtree::simulate(5, |comm| comm.barrier()).into_iter().all(|end| end.is_ok()));
    /// ```
    ///
    /// # Errors
    /// Returns one of the [errors that all calls share](Communicator#errors).
    pub fn barrier(&self) -> Result<()> {
        self.in_place(Call::barrier(), &mut [0u8])
    }

    /// Starts an all-reduce and returns immediately. [`Work::wait`] returns the buffer.
    ///
    /// ```
    /// use ringtree::ReduceOp;
    /// let sums = ringtree::simulate(2, |comm| {
    ///     let work = comm.all_reduce_async(vec![1.0f32; 4], ReduceOp::Sum)?;
    ///     // ... compute something else ...
    ///     work.wait()
    /// });
    /// assert_eq!(sums[0], Ok(vec![2.0; 4]));
    /// ```
    ///
    /// # Errors
    /// Returns [`Failed`], which contains the buffer, if the call is invalid or the communicator
    /// has failed. [`Work::wait`] returns all other [errors](Communicator#errors).
    pub fn all_reduce_async<B>(&self, buffer: B, op: ReduceOp) -> Result<Work<B>, Failed<B>>
    where
        B: BufferMut + Send + 'static,
    {
        self.start(Call::new(Collective::AllReduce, 0).op(op), buffer)
    }

    /// Like [`Communicator::all_reduce_async`], but starts a [`Communicator::broadcast`].
    ///
    /// ```
    /// let copies = ringtree::simulate(3, |comm| {
    ///     comm.broadcast_async(vec![comm.rank() as u8; 2], 2)?.wait()
    /// });
    /// assert_eq!(copies, vec![Ok(vec![2, 2]); 3]);
    /// ```
    ///
    /// # Errors
    /// Returns [`Failed`], which contains the buffer, if the call is invalid or the communicator
    /// has failed. [`Work::wait`] returns all other [errors](Communicator#errors).
    pub fn broadcast_async<B>(&self, buffer: B, root: usize) -> Result<Work<B>, Failed<B>>
    where
        B: BufferMut + Send + 'static,
    {
        self.start(Call::new(Collective::Broadcast, 0).root(root), buffer)
    }

    /// Like [`Communicator::all_reduce_async`], but starts a [`Communicator::reduce`].
    ///
    /// ```
    /// use ringtree::ReduceOp;
    /// let sums = ringtree::simulate(3, |comm| {
    ///     comm.reduce_async(vec![comm.rank() as i32], ReduceOp::Sum, 1)?.wait()
    /// });
    /// assert_eq!(sums[1], Ok(vec![3]));
    /// ```
    ///
    /// # Errors
    /// Returns [`Failed`], which contains the buffer, if the call is invalid or the communicator
    /// has failed. [`Work::wait`] returns all other [errors](Communicator#errors).
    pub fn reduce_async<B>(
        &self,
        buffer: B,
        op: ReduceOp,
        root: usize,
    ) -> Result<Work<B>, Failed<B>>
    where
        B: BufferMut + Send + 'static,
    {
        self.start(Call::new(Collective::Reduce, 0).op(op).root(root), buffer)
    }

    /// Like [`Communicator::all_reduce_async`], but starts a [`Communicator::reduce_scatter`].
    ///
    /// ```
    /// use ringtree::ReduceOp;
    /// let sums = ringtree::simulate(2, |comm| {
    ///     let sums = comm.reduce_scatter_async(vec![1.0f64, 2.0], ReduceOp::Sum)?.wait()?;
    ///     Ok::<_, ringtree::Error>(sums[comm.block(2)].to_vec())
    /// });
    /// assert_eq!(sums, [Ok(vec![2.0]), Ok(vec![4.0])]);
    /// ```
    ///
    /// # Errors
    /// Returns [`Failed`], which contains the buffer, if the call is invalid or the communicator
    /// has failed. [`Work::wait`] returns all other [errors](Communicator#errors).
    pub fn reduce_scatter_async<B>(&self, buffer: B, op: ReduceOp) -> Result<Work<B>, Failed<B>>
    where
        B: BufferMut + Send + 'static,
    {
        self.start(Call::new(Collective::ReduceScatter, 0).op(op), buffer)
    }

    /// Like [`Communicator::all_reduce_async`], but starts an [`Communicator::all_gather`].
    ///
    /// ```
    /// let gathered = ringtree::simulate(2, |comm| {
    ///     let mut ranks = vec![0u8; 2];
    ///     ranks[comm.rank()] = 10 + comm.rank() as u8;
    ///     comm.all_gather_async(ranks)?.wait()
    /// });
    /// assert_eq!(gathered, vec![Ok(vec![10, 11]); 2]);
    /// ```
    ///
    /// # Errors
    /// Returns [`Failed`], which contains the buffer, if the call is invalid or the communicator
    /// has failed. [`Work::wait`] returns all other [errors](Communicator#errors).
    pub fn all_gather_async<B>(&self, buffer: B) -> Result<Work<B>, Failed<B>>
    where
        B: BufferMut + Send + 'static,
    {
        self.start(Call::new(Collective::AllGather, 0), buffer)
    }
}

/// Functions that issue collectives.
impl Communicator {
    /// Runs a collective on all elements of `buffer` and waits for it to complete.
    pub(super) fn in_place<B>(&self, call: Call, buffer: &mut B) -> Result<()>
    where
        B: BufferMut + ?Sized,
    {
        let layout = Kept::of(buffer.layout());
        let layout = layout.layout();
        let memory = written(buffer)?;
        let call = Call {
            count: memory.count(),
            ..call.dtype(B::Element::DTYPE)
        };
        let call = self.laid(call, layout)?;
        match memory {
            MemoryMut::Host(slice) => lend(slice, |region| {
                let mut memory = Memory::in_place(region);
                let how = (Placement::InPlace, of_blocks(&call, layout));
                let end = self.run(call, how, &mut memory);
                (memory.output, end.map(drop))
            }),
            #[cfg(feature = "cuda")]
            MemoryMut::Device(_) if call.split != Split::Even => Err(Error::usage(
                "device buffers support only an even layout; use host memory for other layouts",
            )),
            #[cfg(feature = "cuda")]
            MemoryMut::Device(memory) => self.on_device(&mut *self.enter()?, call, memory),
        }
    }

    /// Runs a collective from `input` into `output` and waits for it to complete. `layout` is the
    /// layout of the full-length buffer.
    pub(super) fn into<T: Element>(
        &self,
        call: Call,
        input: &[T],
        output: &mut [T],
        layout: Layout,
    ) -> Result<()> {
        let call = self.laid(call.dtype(T::DTYPE), layout)?;
        self.run_into(call, input, output, of_blocks(&call, layout))
    }

    /// Like [`Communicator::into`], but with blocks of the given lengths.
    pub(super) fn run_into<T: Element>(
        &self,
        call: Call,
        input: &[T],
        output: &mut [T],
        lengths: Lengths,
    ) -> Result<()> {
        if call.op.is_some_and(|op| op.factor().is_some()) && T::DTYPE.is_float() {
            self.check_peer("root", call.root)?;
            // The rank sends its product, which only `output` has space for.
            output.copy_from_slice(input);
            return self.in_place(call, output);
        }
        let call = call.dtype(T::DTYPE);
        lend_both(input, output, |input, output| {
            let mut memory = Memory {
                input: Some(input),
                output: Some(output),
            };
            let end = self.run(call, (Placement::Into, lengths), &mut memory);
            (memory.input, memory.output, end.map(drop))
        })
    }

    /// Runs a collective and returns its number.
    #[inline]
    pub(super) fn run(
        &self,
        call: Call,
        how: (Placement, Lengths),
        memory: &mut Memory,
    ) -> Result<u64> {
        let parts = &self.0.parts;
        let runtime = parts.runtime.get()?;
        let quiet = runtime.keep_quiet();
        let mut issued = self.enter()?;
        let (sequence, prepared) = self.issue(&mut issued, call, how, memory)?;
        memory.scale(call.op.and_then(ReduceOp::factor));
        let mut start = Start {
            prepared,
            sequence,
            memory,
            timeout: self.1,
            gate: None,
        };
        let begun = runtime.begin(parts.group, &mut start);
        drop(issued);
        drop(quiet);
        match begun? {
            Some(ticket) => self.finish(ticket, memory).map(|()| sequence),
            None => Ok(sequence),
        }
    }

    /// Waits for an operation to complete and puts its memory back into `memory`.
    pub(super) fn finish(&self, ticket: Ticket, memory: &mut Memory) -> Result<()> {
        let (given_back, end) = self.0.parts.runtime.get()?.wait(ticket);
        *memory = given_back;
        end
    }

    pub(super) fn start<B>(&self, call: Call, buffer: B) -> Result<Work<B>, Failed<B>>
    where
        B: BufferMut + Send + 'static,
    {
        let layout = Kept::of(buffer.layout());
        let held = Region::hold(buffer, written_on_host);
        let (region, claim) = held.map_err(|(error, buffer)| Failed { error, buffer })?;
        let mut memory = Memory::in_place(region);
        match self.post_collective(call, layout.layout(), &mut memory) {
            Ok(ticket) => Ok(Work::new(self.0.clone(), ticket, claim)),
            Err(error) => Err(Failed {
                error,
                buffer: release(memory.output),
            }),
        }
    }

    /// Starts a collective on all elements of a buffer with this layout. The polling threads then
    /// advance it. If an error is returned, `memory` still contains the buffer.
    pub(super) fn post_collective(
        &self,
        call: Call,
        layout: Layout,
        memory: &mut Memory,
    ) -> Result<Ticket> {
        let buffer = memory.output.as_ref();
        let (count, dtype) = buffer.map_or((0, call.dtype), |one| (one.count(), one.dtype()));
        let call = Call {
            count,
            ..call.dtype(dtype)
        };
        let call = self.laid(call, layout)?;
        let how = (Placement::InPlace, of_blocks(&call, layout));
        let parts = &self.0.parts;
        let runtime = parts.runtime.get()?;
        let _quiet = runtime.keep_quiet();
        let mut issued = self.enter()?;
        let (sequence, prepared) = self.issue(&mut issued, call, how, memory)?;
        memory.scale(call.op.and_then(ReduceOp::factor));
        let mut start = Start {
            prepared,
            sequence,
            memory,
            timeout: self.1,
            gate: None,
        };
        runtime.post(parts.group, Order::Collectives, &mut start)
    }

    /// Returns the number and the program of the next call in the group's order.
    #[inline]
    pub(super) fn issue<'a>(
        &self,
        issued: &'a mut Issued,
        call: Call,
        (placement, lengths): (Placement, Lengths),
        memory: &Memory,
    ) -> Result<(u64, &'a Arc<Prepared>)> {
        self.check_peer("root", call.root)?;
        let key = Key {
            call: Call {
                algorithm: forced(issued.algorithm, call),
                op: call.op.map(ReduceOp::agreed),
                ..call
            },
            placement,
            is_exposed: issued.exposes(memory),
        };
        let prepared = issued.cache.laid(key, lengths)?;
        issued.collectives += 1;
        Ok((issued.collectives, prepared))
    }
}

/// Returns the block lengths of a call, which are the same on all ranks.
fn of_blocks<'a>(call: &Call, layout: Layout<'a>) -> Lengths<'a> {
    let layout = match call.split {
        Split::Even => Layout::Even,
        Split::Ceil | Split::Counts(_) => layout,
    };
    Lengths {
        count: call.count,
        input: layout,
        output: layout,
    }
}

/// Returns the forced algorithm if it supports the collective, or `None` to choose one.
pub(super) fn forced(algorithm: Option<Algorithm>, call: Call) -> Option<Algorithm> {
    let collective = call.collective()?;
    algorithm.filter(|algorithm| entry(collective, *algorithm).is_some())
}

pub(super) fn check_length(what: &str, length: usize, wanted: usize) -> Result<()> {
    if length == wanted {
        return Ok(());
    }
    Err(Error::usage(format!(
        "{what} has {length} elements, but must have {wanted}; pass a buffer of that length"
    )))
}
