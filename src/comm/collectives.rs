//! The collectives.
//!
//! A buffer of `count` elements has the same count on all ranks. Reduce-scatter and all-gather see
//! it as one block a rank, see [`Communicator::block`]. Every call ends by the communicator's
//! timeout; after an error other than [`Error::Usage`] buffers are unspecified.

use super::buffer::{Buffer, BufferMut, MemoryMut};
use super::planned::{Cache, Planned, Wanted};
use super::work::Work;
use super::{Communicator, Issued, Parts};
use crate::dtype::{Dtype, Element};
use crate::engine::Ticket;
use crate::engine::group::ChannelKind;
use crate::engine::posting::{Posting, Progress};
use crate::error::{Error, Result};
use crate::op::ReduceOp;
use crate::plan::Topology;
use crate::plan::algorithms::entry;
use crate::plan::spec::{Algorithm, Collective};
use crate::sys::memory::{Region, lend};

/// What a collective is asked to do, beside its buffer.
#[derive(Clone, Copy)]
pub(super) struct Ask {
    pub(super) collective: Collective,
    pub(super) op: Option<ReduceOp>,
    pub(super) root: usize,
}

impl Ask {
    pub(super) fn new(collective: Collective) -> Self {
        Self {
            collective,
            op: None,
            root: 0,
        }
    }

    pub(super) fn op(self, op: ReduceOp) -> Self {
        Self {
            op: Some(op),
            ..self
        }
    }

    pub(super) fn root(self, root: usize) -> Self {
        Self { root, ..self }
    }
}

impl Communicator {
    /// Every rank's `buffer` becomes the reduction of all of them.
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
    /// Any of [`Error`].
    pub fn all_reduce<B: BufferMut + ?Sized>(&self, buffer: &mut B, op: ReduceOp) -> Result<()> {
        self.in_place(Ask::new(Collective::AllReduce).op(op), buffer)
    }

    /// As [`Communicator::all_reduce`], from `input`, which stays as it is, into `output`.
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
    /// Any of [`Error`]; [`Error::Usage`] if the lengths differ.
    pub fn all_reduce_into<I, O>(&self, input: &I, output: &mut O, op: ReduceOp) -> Result<()>
    where
        I: Buffer + ?Sized,
        O: BufferMut<Element = I::Element> + ?Sized,
    {
        copy_whole(input, output)?;
        self.all_reduce(output, op)
    }

    /// Every rank's `buffer` becomes the root's.
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
    /// Any of [`Error`].
    pub fn broadcast<B: BufferMut + ?Sized>(&self, buffer: &mut B, root: usize) -> Result<()> {
        self.in_place(Ask::new(Collective::Broadcast).root(root), buffer)
    }

    /// The root's `buffer` becomes the reduction of all of them; the others' are unspecified.
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
    /// Any of [`Error`].
    pub fn reduce<B>(&self, buffer: &mut B, op: ReduceOp, root: usize) -> Result<()>
    where
        B: BufferMut + ?Sized,
    {
        self.in_place(Ask::new(Collective::Reduce).op(op).root(root), buffer)
    }

    /// As [`Communicator::reduce`], from `input` into `output`, which is unspecified but on the
    /// root.
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
    /// Any of [`Error`]; [`Error::Usage`] if the lengths differ.
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
        copy_whole(input, output)?;
        self.reduce(output, op, root)
    }

    /// This rank's own block of `buffer` becomes that block of the reduction of all buffers; the
    /// rest is unspecified.
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
    /// Any of [`Error`].
    pub fn reduce_scatter<B>(&self, buffer: &mut B, op: ReduceOp) -> Result<()>
    where
        B: BufferMut + ?Sized,
    {
        self.in_place(Ask::new(Collective::ReduceScatter).op(op), buffer)
    }

    /// As [`Communicator::reduce_scatter`], from the whole `input` into `output`, which is as long
    /// as this rank's block.
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
    /// Any of [`Error`]; [`Error::Usage`] if `output` is not as long as the block.
    pub fn reduce_scatter_into<I, O>(&self, input: &I, output: &mut O, op: ReduceOp) -> Result<()>
    where
        I: Buffer + ?Sized,
        O: BufferMut<Element = I::Element> + ?Sized,
    {
        let input = input.memory().on_host()?;
        let output = output.memory_mut().on_host()?;
        let block = self.block(input.len());
        check_length("output", output.len(), block.len())?;
        let mut whole = input.to_vec();
        self.reduce_scatter(&mut whole, op)?;
        output.copy_from_slice(&whole[block]);
        Ok(())
    }

    /// Every rank's `buffer` becomes all ranks' own blocks, in rank order; before, only the own
    /// block of each counts.
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
    /// Any of [`Error`].
    pub fn all_gather<B: BufferMut + ?Sized>(&self, buffer: &mut B) -> Result<()> {
        self.in_place(Ask::new(Collective::AllGather), buffer)
    }

    /// `output` becomes all ranks' `input`s, in rank order.
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
    /// Any of [`Error`]; [`Error::Usage`] if `input` is not as long as this rank's block of
    /// `output`.
    pub fn all_gather_into<I, O>(&self, input: &I, output: &mut O) -> Result<()>
    where
        I: Buffer + ?Sized,
        O: BufferMut<Element = I::Element> + ?Sized,
    {
        let input = input.memory().on_host()?;
        let output = output.memory_mut().on_host()?;
        let block = self.block(output.len());
        check_length("input", input.len(), block.len())?;
        output[block].copy_from_slice(input);
        self.in_place(Ask::new(Collective::AllGather), output)
    }

    /// Nobody returns before everybody has called.
    ///
    /// ```
    /// assert!(ringtree::simulate(5, |comm| comm.barrier()).into_iter().all(|end| end.is_ok()));
    /// ```
    ///
    /// # Errors
    /// Any of [`Error`].
    pub fn barrier(&self) -> Result<()> {
        self.in_place(Ask::new(Collective::Barrier).op(ReduceOp::Bor), &mut [0u8])
    }

    /// Starts an all-reduce and returns at once; `work.wait()` gives the buffer back.
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
    /// [`Error::Usage`], or the first cause if the communicator has failed; the rest comes from
    /// `wait`.
    pub fn all_reduce_async<T: Element>(&self, buffer: Vec<T>, op: ReduceOp) -> Result<Work<T>> {
        self.start(Ask::new(Collective::AllReduce).op(op), buffer)
    }

    /// Starts a broadcast, as [`Communicator::all_reduce_async`] does an all-reduce.
    ///
    /// ```
    /// let copies = ringtree::simulate(3, |comm| {
    ///     comm.broadcast_async(vec![comm.rank() as u8; 2], 2)?.wait()
    /// });
    /// assert_eq!(copies, vec![Ok(vec![2, 2]); 3]);
    /// ```
    ///
    /// # Errors
    /// As there.
    pub fn broadcast_async<T: Element>(&self, buffer: Vec<T>, root: usize) -> Result<Work<T>> {
        self.start(Ask::new(Collective::Broadcast).root(root), buffer)
    }

    /// Starts a reduce, as [`Communicator::all_reduce_async`] does an all-reduce.
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
    /// As there.
    pub fn reduce_async<T: Element>(
        &self,
        buffer: Vec<T>,
        op: ReduceOp,
        root: usize,
    ) -> Result<Work<T>> {
        self.start(Ask::new(Collective::Reduce).op(op).root(root), buffer)
    }

    /// Starts a reduce-scatter, as [`Communicator::all_reduce_async`] does an all-reduce.
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
    /// As there.
    pub fn reduce_scatter_async<T: Element>(
        &self,
        buffer: Vec<T>,
        op: ReduceOp,
    ) -> Result<Work<T>> {
        self.start(Ask::new(Collective::ReduceScatter).op(op), buffer)
    }

    /// Starts an all-gather, as [`Communicator::all_reduce_async`] does an all-reduce.
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
    /// As there.
    pub fn all_gather_async<T: Element>(&self, buffer: Vec<T>) -> Result<Work<T>> {
        self.start(Ask::new(Collective::AllGather), buffer)
    }
}

/// Issuing.
impl Communicator {
    /// Runs a collective on `buffer` to its end.
    fn in_place<B>(&self, ask: Ask, buffer: &mut B) -> Result<()>
    where
        B: BufferMut + ?Sized,
    {
        let mut issued = self.enter()?;
        let slice = match buffer.memory_mut() {
            MemoryMut::Host(slice) => slice,
            MemoryMut::Device(memory) => {
                return self.on_device(&mut issued, ask, B::Element::DTYPE, memory);
            }
        };
        let wanted = self.wanted(ask, slice.len(), B::Element::DTYPE)?;
        let runtime = &self.0.parts.runtime;
        let bytes = bytemuck::cast_slice_mut(slice);
        let wanted = Wanted {
            lends: issued.lends(bytes),
            ..wanted
        };
        let (sequence, planned) = self.issue(&mut issued, wanted)?;
        let mut progress = Progress::default();
        let Parts { group, timeout, .. } = self.0.parts;
        if runtime.run_in_order(group, &planned.prepared, sequence, bytes, &mut progress) {
            return Ok(());
        }
        let planned = planned.clone();
        lend(slice, |region| {
            let posting = planned.posting(sequence, region, timeout);
            let posting = Posting {
                progress,
                ..posting
            };
            runtime.run(group, ChannelKind::Collectives, posting)
        })
    }

    fn start<T: Element>(&self, ask: Ask, buffer: Vec<T>) -> Result<Work<T>> {
        let count = buffer.len();
        match self.start_region(ask, count, Region::own(buffer)) {
            Ok(ticket) => Ok(Work::new(std::sync::Arc::clone(&self.0), ticket)),
            Err((error, _)) => Err(error),
        }
    }

    /// Starts a collective on `count` elements of `region`, which comes back if it cannot.
    pub(super) fn start_region(
        &self,
        ask: Ask,
        count: usize,
        region: Region,
    ) -> std::result::Result<Ticket, (Error, Region)> {
        let mut issued = match self.enter() {
            Ok(issued) => issued,
            Err(error) => return Err((error, region)),
        };
        let wanted = self.wanted(ask, count, region.dtype());
        let lends = issued.lends(region.bytes());
        let next = wanted.and_then(|wanted| self.issue(&mut issued, Wanted { lends, ..wanted }));
        let (sequence, planned) = match next {
            Ok((sequence, planned)) => (sequence, planned.clone()),
            Err(error) => return Err((error, region)),
        };
        let posting = planned.posting(sequence, region, self.0.parts.timeout);
        self.0
            .parts
            .runtime
            .post(self.0.parts.group, ChannelKind::Collectives, posting)
    }

    pub(super) fn wanted(&self, ask: Ask, count: usize, dtype: Dtype) -> Result<Wanted> {
        let Ask {
            collective,
            op,
            root,
        } = ask;
        self.check_peer("root", root)?;
        Ok(Wanted {
            collective,
            count,
            dtype,
            op,
            root,
            forced: None,
            lends: false,
        })
    }

    /// The planned form of a call that is about to be made.
    pub(super) fn plan<'a>(
        &self,
        cache: &'a mut Cache,
        algorithm: Option<Algorithm>,
        wanted: Wanted,
    ) -> Result<&'a Planned> {
        // A forced algorithm holds where it can be used; the rest is chosen as ever.
        let forced = algorithm.filter(|own| entry(wanted.collective, *own).is_some());
        let wanted = Wanted { forced, ..wanted };
        let topology = Topology {
            world_size: self.world_size(),
            ranks_per_host: self.0.parts.ranks_per_host,
        };
        cache.get(wanted, self.rank(), topology, &self.0.parts.tuning)
    }

    /// The next call of the group's order, with its number.
    pub(super) fn issue<'a>(
        &self,
        issued: &'a mut Issued,
        wanted: Wanted,
    ) -> Result<(u64, &'a Planned)> {
        let planned = self.plan(&mut issued.planned, issued.algorithm, wanted)?;
        issued.collectives += 1;
        Ok((issued.collectives, planned))
    }

    /// What would run for a call on `count` elements of `dtype` from or to `root` (0 where there is
    /// none), and the seconds it is expected to take.
    ///
    /// ```
    /// use ringtree::Dtype;
    /// use ringtree::plan::{Algorithm, Collective};
    /// let previews = ringtree::simulate(2, |comm| {
    ///     comm.use_algorithm(Some(Algorithm::Ring))?;
    ///     comm.preview(Collective::AllReduce, 1000, Dtype::F32, 0)
    /// });
    /// let (algorithm, seconds) = previews[0].clone()?;
    /// assert_eq!(algorithm, Algorithm::Ring);
    /// assert!(seconds > 0.0);
    /// # Ok::<(), ringtree::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Usage`] if `root` is no rank, or another thread is in the communicator.
    pub fn preview(
        &self,
        collective: Collective,
        count: usize,
        dtype: Dtype,
        root: usize,
    ) -> Result<(Algorithm, f64)> {
        let op = collective.reduces().then_some(ReduceOp::Sum);
        let wanted = self.wanted(
            Ask {
                collective,
                op,
                root,
            },
            count,
            dtype,
        )?;
        let issued = &mut *self.enter()?;
        let planned = self.plan(&mut issued.planned, issued.algorithm, wanted)?;
        Ok((planned.algorithm, planned.predicted_s))
    }
}

fn check_length(what: &str, length: usize, wanted: usize) -> Result<()> {
    if length == wanted {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "{what} has {length} elements, but must have {wanted}"
    )))
}

fn copy_whole<I, O>(input: &I, output: &mut O) -> Result<()>
where
    I: Buffer + ?Sized,
    O: BufferMut<Element = I::Element> + ?Sized,
{
    let input = input.memory().on_host()?;
    let output = output.memory_mut().on_host()?;
    check_length("output", output.len(), input.len())?;
    output.copy_from_slice(input);
    Ok(())
}
