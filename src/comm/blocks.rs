//! Calls on buffers of one block a rank: gather, scatter, all-to-all; and buffers with a layout.
//!
//! Reduce-scatter and all-gather, which stand with the other collectives, take buffers with a
//! layout as well.

use super::Communicator;
use super::buffer::{Buffer, BufferMut, Memory, MemoryMut, written_on_host};
use super::collectives::check_length;
use super::work::{Failed, Work};
use crate::dtype::{Dtype, Element};
use crate::engine::bind::{Lengths, Placement};
use crate::engine::cache::bytes_of;
use crate::engine::group;
use crate::error::{Error, Result};
use crate::plan::layout::{Blocks, Kept, Layout};
use crate::plan::spec::Collective;
use crate::protocol::call::{Call, Split, hash};
use crate::sys::memory::lend;

impl<B: Buffer> Buffer for Blocks<'_, B> {
    type Element = B::Element;

    fn memory(&self) -> Memory<'_, B::Element> {
        self.buffer().memory()
    }

    fn layout(&self) -> Layout<'_> {
        Blocks::layout(self)
    }
}

impl<B: BufferMut> BufferMut for Blocks<'_, B> {
    fn memory_mut(&mut self) -> MemoryMut<'_, B::Element> {
        self.buffer_mut().memory_mut()
    }
}

impl Communicator {
    /// The root's `buffer` becomes all ranks' own blocks, in rank order; before, only the own block
    /// of each counts, and the others' buffers are unspecified afterwards.
    ///
    /// ```
    /// let gathered = ringtree::simulate(3, |comm| {
    ///     let mut ranks = [0u8; 3];
    ///     ranks[comm.rank()] = comm.rank() as u8;
    ///     comm.gather(&mut ranks, 2).map(|()| ranks)
    /// });
    /// assert_eq!(gathered[2], Ok([0, 1, 2]));
    /// ```
    ///
    /// # Errors
    /// Any of [`Error`].
    #[doc(alias = "MPI_Gather")]
    #[doc(alias = "MPI_Gatherv")]
    pub fn gather<B: BufferMut + ?Sized>(&self, buffer: &mut B, root: usize) -> Result<()> {
        self.in_place(Call::new(Collective::Gather, 0).root(root), buffer)
    }

    /// The root's `output` becomes all ranks' `input`s, in rank order. The others' outputs are not
    /// looked at, so they may be empty. All inputs are equally long, unless `output` has
    /// [counts](Layout::Counts), which all ranks give then.
    ///
    /// ```
    /// use ringtree::Layout;
    /// let gathered = ringtree::simulate(3, |comm| {
    ///     let (own, mut all) = (vec![comm.rank(); comm.rank() + 1], Vec::new());
    ///     if comm.rank() == 0 {
    ///         all.resize(6, 0);
    ///     }
    ///     let counts = Layout::Counts(&[1, 2, 3]);
    ///     comm.gather_into(&to_i64(&own), &mut counts.of(&mut all), 0).map(|()| all)
    /// });
    /// assert_eq!(gathered[0], Ok(vec![0, 1, 1, 2, 2, 2]));
    /// # fn to_i64(ranks: &[usize]) -> Vec<i64> { ranks.iter().map(|rank| *rank as i64).collect() }
    /// ```
    ///
    /// # Errors
    /// Any of [`Error`]; [`Error::usage`] if a length does not fit the layout.
    pub fn gather_into<I, O>(&self, input: &I, output: &mut O, root: usize) -> Result<()>
    where
        I: Buffer + ?Sized,
        O: BufferMut<Element = I::Element> + ?Sized,
    {
        self.check_peer("root", root)?;
        let layout = Kept::of(output.layout());
        let layout = layout.layout();
        let (input, output) = (input.memory().on_host()?, written_on_host(output)?);
        let count = self.count_of_blocks("input", input.len(), layout, I::Element::DTYPE)?;
        let call = Call::new(Collective::Gather, count).root(root);
        if self.rank() == root {
            check_length("output", output.len(), count)?;
            return self.into(call, input, output, layout);
        }
        self.into(call, input, &mut [], layout)
    }

    /// Every rank's own block of `buffer` becomes that of the root's; the rest is unspecified, but
    /// on the root, whose buffer stays as it is.
    ///
    /// ```
    /// let blocks = ringtree::simulate(3, |comm| {
    ///     let mut numbers = [comm.rank() as u8 * 10; 6];
    ///     if comm.rank() == 1 {
    ///         numbers = [1, 2, 3, 4, 5, 6];
    ///     }
    ///     comm.scatter(&mut numbers, 1)?;
    ///     Ok::<_, ringtree::Error>(numbers[comm.block(6)].to_vec())
    /// });
    /// assert_eq!(blocks, [Ok(vec![1, 2]), Ok(vec![3, 4]), Ok(vec![5, 6])]);
    /// ```
    ///
    /// # Errors
    /// Any of [`Error`].
    #[doc(alias = "MPI_Scatter")]
    #[doc(alias = "MPI_Scatterv")]
    pub fn scatter<B: BufferMut + ?Sized>(&self, buffer: &mut B, root: usize) -> Result<()> {
        self.in_place(Call::new(Collective::Scatter, 0).root(root), buffer)
    }

    /// Every rank's `output` becomes its block of the root's `input`. The others' inputs are not
    /// looked at, so they may be empty. All outputs are equally long, unless `input` has
    /// [counts](Layout::Counts), which all ranks give then.
    ///
    /// ```
    /// let dealt = ringtree::simulate(2, |comm| {
    ///     let all = if comm.rank() == 0 { vec![1.0, 2.0, 3.0, 4.0] } else { vec![] };
    ///     let mut own = [0.0f32; 2];
    ///     comm.scatter_into(&all, &mut own, 0).map(|()| own)
    /// });
    /// assert_eq!(dealt, [Ok([1.0, 2.0]), Ok([3.0, 4.0])]);
    /// ```
    ///
    /// # Errors
    /// Any of [`Error`]; [`Error::usage`] if a length does not fit the layout.
    pub fn scatter_into<I, O>(&self, input: &I, output: &mut O, root: usize) -> Result<()>
    where
        I: Buffer + ?Sized,
        O: BufferMut<Element = I::Element> + ?Sized,
    {
        self.check_peer("root", root)?;
        let layout = input.layout();
        let input = input.memory().on_host()?;
        let output = written_on_host(output)?;
        let count = self.count_of_blocks("output", output.len(), layout, I::Element::DTYPE)?;
        let call = Call::new(Collective::Scatter, count).root(root);
        if self.rank() == root {
            check_length("input", input.len(), count)?;
            return self.into(call, input, output, layout);
        }
        self.into(call, &[], output, layout)
    }

    /// Block j of rank i's `buffer` becomes block i of rank j's. All blocks are equally long.
    ///
    /// ```
    /// let transposed = ringtree::simulate(2, |comm| {
    ///     let rank = comm.rank() as u8;
    ///     let mut row = [10 * rank, 10 * rank + 1];
    ///     comm.all_to_all(&mut row).map(|()| row)
    /// });
    /// assert_eq!(transposed, [Ok([0, 10]), Ok([1, 11])]);
    /// ```
    ///
    /// # Errors
    /// Any of [`Error`]; [`Error::usage`] if the ranks do not divide the length.
    #[doc(alias = "MPI_Alltoall")]
    pub fn all_to_all<B: BufferMut + ?Sized>(&self, buffer: &mut B) -> Result<()> {
        self.in_place(Call::new(Collective::AllToAll, 0), buffer)
    }

    /// As [`Communicator::all_to_all`], from `input` into `output`, with blocks of any lengths: the
    /// block for rank j has `send[j]` elements, and the one from rank i `receive[i]`. A rank knows
    /// its own numbers only. If those of two ranks disagree, all ranks get an error that names
    /// both, and no block is sent. With [`Layout::Even`] twice all blocks are equally long.
    ///
    /// By counts, the ranks agree on them first, by an all-reduce of one number, which is a call of
    /// its own: it has a number before that of the all-to-all.
    ///
    /// ```
    /// // Rank 0 has three elements for rank 1 and keeps none; rank 1 has one for each.
    /// let ends = ringtree::simulate(2, |comm| {
    ///     let (input, send, receive) = match comm.rank() {
    ///         0 => (vec![1, 2, 3], [0, 3], [0, 1]),
    ///         _ => (vec![4, 5], [1, 1], [3, 1]),
    ///     };
    ///     let mut output = vec![0; receive.iter().sum()];
    ///     comm.all_to_all_into(&input, &send, &mut output, &receive).map(|()| output)
    /// });
    /// assert_eq!(ends, [Ok(vec![4]), Ok(vec![1, 2, 3, 5])]);
    /// ```
    ///
    /// # Errors
    /// Any of [`Error`]; [`Error::usage`] if counts are given on one side only, do not fit the
    /// buffers, or differ for the own block; [`Error::mismatch`] if those of two ranks disagree.
    #[doc(alias = "MPI_Alltoallv")]
    pub fn all_to_all_into<'a, I, O>(
        &self,
        input: &I,
        send: impl Into<Layout<'a>>,
        output: &mut O,
        receive: impl Into<Layout<'a>>,
    ) -> Result<()>
    where
        I: Buffer + ?Sized,
        O: BufferMut<Element = I::Element> + ?Sized,
    {
        let (send, receive) = (send.into(), receive.into());
        let (input, output) = (input.memory().on_host()?, written_on_host(output)?);
        let call = Call::new(Collective::AllToAll, input.len());
        let (Layout::Counts(sent), Layout::Counts(received)) = (send, receive) else {
            if send != receive {
                return Err(Error::usage(
                    "all_to_all_into takes counts for both sides, or for neither",
                ));
            }
            check_length("output", output.len(), input.len())?;
            return self.into(call, input, output, send);
        };
        for (what, layout, length) in [
            ("input", send, input.len()),
            ("output", receive, output.len()),
        ] {
            check_length(what, length, self.total(layout, 0, I::Element::DTYPE)?)?;
        }
        let rank = self.rank();
        if sent[rank] != received[rank] {
            return Err(Error::usage(format!(
                "rank {rank} sends itself {} elements, but receives {} of itself",
                sent[rank], received[rank]
            )));
        }
        let lengths = Lengths {
            count: 0,
            input: send,
            output: receive,
        };
        let call = Call {
            count: 0,
            split: Split::Counts(0),
            ..call
        };
        if self.world_size() > 1 {
            self.agree_on_counts(call.dtype(I::Element::DTYPE), sent, received)?;
        }
        self.run_into(call, input, output, lengths)
    }

    /// An error on every rank unless each two of them count alike what one sends the other, before
    /// anything of the all-to-all `call` is sent.
    ///
    /// Every rank adds a hash of each number that it sends and subtracts that of each which it
    /// receives. The sum over all ranks is 0 if they agree, and else but for one chance in 2⁶⁴ not.
    fn agree_on_counts(&self, call: Call, sent: &[usize], received: &[usize]) -> Result<()> {
        let rank = self.rank();
        let mut sum = [0u64];
        for (peer, (sent, received)) in sent.iter().zip(received).enumerate() {
            let (to, from) = ([rank, peer, *sent], [peer, rank, *received]);
            sum[0] = sum[0].wrapping_add(hash(to)).wrapping_sub(hash(from));
        }
        let all_reduce = Call::new(Collective::AllReduce, 1).dtype(Dtype::U64);
        let number = lend(&mut sum, |region| {
            let mut memory = group::Memory::in_place(region);
            let how = (Placement::InPlace, Lengths::from(1));
            let end = self.run(all_reduce.agreeing(), how, &mut memory);
            (memory.output, end)
        })?;
        if sum == [0] {
            return Ok(());
        }
        let mut theirs: Vec<u64> = received.iter().map(|count| *count as u64).collect();
        self.in_place(Call::new(Collective::AllToAll, 0).agreeing(), &mut theirs)?;
        let mut both = sent.iter().map(|sent| *sent as u64).zip(theirs).enumerate();
        let Some((peer, (sent, received))) = both.find(|(_, (sent, theirs))| sent != theirs) else {
            // The rank that finds a difference ends this with its error.
            self.barrier()?;
            return Err(Error::protocol(
                "the ranks' counts differ, but not for any two of them",
            ));
        };
        let call = call.numbered(number);
        let error = Error::mismatch(format!(
            "rank {rank} sends {sent} elements to rank {peer} in {call}, but rank {peer} receives \
             {received} of it; the counts of two ranks must agree"
        ));
        Err(self.first_cause(call.mark(error.with_rank(rank).with_peer(peer))))
    }

    /// How many elements all blocks have together, if this rank's has `own`.
    fn count_of_blocks(
        &self,
        what: &str,
        own: usize,
        layout: Layout,
        dtype: Dtype,
    ) -> Result<usize> {
        match layout {
            Layout::Counts(_) => self.check_block((what, own), layout, 0, dtype),
            Layout::Even => own.checked_mul(self.world_size()).ok_or_else(too_many),
            Layout::Ceil => Err(Error::usage(
                "one block does not say how long the others are: give counts, or call in place",
            )),
        }
    }

    /// Checks that `what`, of `length` elements, is as long as this rank's block of a buffer of
    /// `count`. Returns how many elements the whole buffer has by its layout.
    pub(super) fn check_block(
        &self,
        (what, length): (&str, usize),
        layout: Layout,
        count: usize,
        dtype: Dtype,
    ) -> Result<usize> {
        let total = self.total(layout, count, dtype)?;
        let block = layout.block(self.rank(), self.world_size(), count);
        check_length(what, length, block.len()).map(|()| total)
    }

    /// How many elements a buffer of `count` has by its layout, which must fit the ranks.
    fn total(&self, layout: Layout, count: usize, dtype: Dtype) -> Result<usize> {
        let n = self.world_size();
        match layout {
            Layout::Counts(counts) if counts.len() != n => Err(Error::usage(format!(
                "there are {} counts for {n} ranks",
                counts.len()
            ))),
            _ => {
                let total = layout.total(count).ok_or_else(too_many)?;
                bytes_of(total, dtype).map(|_| total)
            }
        }
    }

    /// The call with the layout of its whole buffer, if they fit.
    #[inline]
    pub(super) fn laid(&self, call: Call, layout: Layout) -> Result<Call> {
        let split = match layout {
            Layout::Even => Split::Even,
            Layout::Ceil | Layout::Counts(_) => self.division_of(&call, layout)?,
        };
        Ok(Call { split, ..call })
    }

    fn division_of(&self, call: &Call, layout: Layout) -> Result<Split> {
        let collective = call.collective().filter(|one| one.is_blocked());
        let moves_blocks = collective.is_some_and(Collective::moves_blocks);
        match layout {
            _ if collective.is_none() => Ok(Split::Even),
            Layout::Counts(_) if moves_blocks => Err(Error::usage(
                "an all-to-all by counts is not in place: use all_to_all_into",
            )),
            Layout::Counts(counts) => {
                let total = self.total(layout, call.count, call.dtype)?;
                check_length("the buffer", call.count, total)?;
                Ok(Split::by(counts))
            }
            Layout::Ceil if !moves_blocks => Ok(Split::Ceil),
            // The blocks of an all-to-all are equally long.
            Layout::Ceil | Layout::Even => Ok(Split::Even),
        }
    }

    /// Starts a gather, as [`Communicator::all_reduce_async`] does an all-reduce.
    ///
    /// ```
    /// let gathered = ringtree::simulate(2, |comm| {
    ///     let mut ranks = vec![0u8; 2];
    ///     ranks[comm.rank()] = 10 + comm.rank() as u8;
    ///     comm.gather_async(ranks, 0)?.wait()
    /// });
    /// assert_eq!(gathered[0], Ok(vec![10, 11]));
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_async`].
    pub fn gather_async<B>(&self, buffer: B, root: usize) -> Result<Work<B>, Failed<B>>
    where
        B: BufferMut + Send + 'static,
    {
        self.start(Call::new(Collective::Gather, 0).root(root), buffer)
    }

    /// Starts a scatter, as [`Communicator::all_reduce_async`] does an all-reduce.
    ///
    /// ```
    /// let dealt = ringtree::simulate(2, |comm| {
    ///     let numbers = vec![comm.rank() as i32 + 5; 2];
    ///     comm.scatter_async(numbers, 0)?.wait()
    /// });
    /// assert_eq!(dealt[1].as_ref().map(|numbers| numbers[1]), Ok(5));
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_async`].
    pub fn scatter_async<B>(&self, buffer: B, root: usize) -> Result<Work<B>, Failed<B>>
    where
        B: BufferMut + Send + 'static,
    {
        self.start(Call::new(Collective::Scatter, 0).root(root), buffer)
    }

    /// Starts an all-to-all, as [`Communicator::all_reduce_async`] does an all-reduce.
    ///
    /// ```
    /// let transposed = ringtree::simulate(2, |comm| {
    ///     let rank = comm.rank() as u8;
    ///     comm.all_to_all_async(vec![10 * rank, 10 * rank + 1])?.wait()
    /// });
    /// assert_eq!(transposed, [Ok(vec![0, 10]), Ok(vec![1, 11])]);
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_async`]; [`Error::usage`] if the ranks do not divide the
    /// length.
    pub fn all_to_all_async<B>(&self, buffer: B) -> Result<Work<B>, Failed<B>>
    where
        B: BufferMut + Send + 'static,
    {
        self.start(Call::new(Collective::AllToAll, 0), buffer)
    }
}

fn too_many() -> Error {
    Error::usage("no memory holds so many elements")
}
