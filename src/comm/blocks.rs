//! Implements gather, scatter and all-to-all. Also checks block layouts.
//!
//! Reduce-scatter and all-gather, which also accept layouts, are in `collectives`.

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
    /// Replaces `buffer` on `root` with the blocks of all ranks, in rank order. Each rank
    /// contributes only its own block of `buffer`. Afterwards, the contents of `buffer` are
    /// unspecified on all ranks except `root`.
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
    /// Returns one of the [errors that all calls share](Communicator#errors).
    #[doc(alias = "MPI_Gather")]
    #[doc(alias = "MPI_Gatherv")]
    pub fn gather<B: BufferMut + ?Sized>(&self, buffer: &mut B, root: usize) -> Result<()> {
        self.in_place(Call::new(Collective::Gather, 0).root(root), buffer)
    }

    /// Replaces `output` on `root` with the inputs of all ranks, in rank order.
    ///
    /// Ranks other than `root` can pass an empty `output` because only the `output` on `root` is
    /// used. All inputs must have the same length, unless all ranks pass an `output` that has the
    /// same [counts](Layout::Counts).
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
    /// Returns one of the [errors that all calls share](Communicator#errors), such as
    /// [`Usage`](crate::ErrorKind::Usage) if a length does not match the layout.
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

    /// Replaces each rank's own block of `buffer` with the corresponding block of the buffer on
    /// `root`. Afterwards, the contents of the rest of the buffer are unspecified, except on
    /// `root`, where the entire buffer remains unchanged.
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
    /// Returns one of the [errors that all calls share](Communicator#errors).
    #[doc(alias = "MPI_Scatter")]
    #[doc(alias = "MPI_Scatterv")]
    pub fn scatter<B: BufferMut + ?Sized>(&self, buffer: &mut B, root: usize) -> Result<()> {
        self.in_place(Call::new(Collective::Scatter, 0).root(root), buffer)
    }

    /// Replaces `output` on every rank with that rank's block of the `input` passed by `root`.
    ///
    /// Ranks other than `root` can pass an empty `input` because only the `input` on `root` is
    /// used. All outputs must have the same length, unless all ranks pass an `input` that has the
    /// same [counts](Layout::Counts).
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
    /// Returns one of the [errors that all calls share](Communicator#errors), such as
    /// [`Usage`](crate::ErrorKind::Usage) if a length does not match the layout.
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

    /// Exchanges blocks between all ranks. Block j of rank i becomes block i of rank j. All blocks
    /// have the same length.
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
    /// Returns one of the [errors that all calls share](Communicator#errors), such as
    /// [`Usage`](crate::ErrorKind::Usage) if the length is not a multiple of the number of ranks.
    #[doc(alias = "MPI_Alltoall")]
    pub fn all_to_all<B: BufferMut + ?Sized>(&self, buffer: &mut B) -> Result<()> {
        self.in_place(Call::new(Collective::AllToAll, 0), buffer)
    }

    /// Like [`Communicator::all_to_all`], but reads from `input`, writes to `output`, and accepts
    /// blocks of any length.
    ///
    /// The block for rank j has `send[j]` elements, and the block from rank i has `receive[i]`
    /// elements. Each rank needs to know only its own counts. If the counts of two ranks do not
    /// match, all ranks get an error that names both ranks, and no block is sent. If both layouts
    /// are [`Layout::Even`], all blocks have the same length.
    ///
    /// If the layouts have counts, the ranks first compare the counts by performing an all-reduce
    /// of a single number. This all-reduce is a separate call, and its number comes before that of
    /// the all-to-all.
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
    /// Returns one of the [errors that all calls share](Communicator#errors), such as:
    ///
    /// - [`Usage`](crate::ErrorKind::Usage) if only one of the layouts has counts, if the counts do
    ///   not match the buffers, or if `send` and `receive` give different lengths for this rank's
    ///   own block.
    /// - [`Mismatch`](crate::ErrorKind::Mismatch) if the counts of two ranks do not match.
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
                    "all_to_all_into needs counts for both buffers or for neither",
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
                "rank {rank} sends {} elements to itself, but receives {} from itself; pass equal \
                 counts",
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

    /// Returns an error on every rank if the counts of two ranks do not match, before any block of
    /// the all-to-all `call` is sent.
    ///
    /// Every rank adds a hash of each count that it sends and subtracts a hash of each count that
    /// it receives. The sum over all ranks is 0 if the counts agree. Otherwise, it is 0 with a
    /// probability of one in 2⁶⁴.
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
            // The barrier fails with the error of the rank that finds a difference.
            self.barrier()?;
            return Err(Error::protocol(
                "the ranks' counts are inconsistent, but no two ranks disagree; report this as a \
                 bug in ringtree",
            ));
        };
        let call = call.numbered(number);
        let error = Error::mismatch(format!(
            "rank {rank} sends {sent} elements to rank {peer} in {call}, but rank {peer} receives \
             {received} from it; pass the same count on both ranks"
        ));
        Err(self.first_cause(call.mark(error.with_rank(rank).with_peer(peer))))
    }

    /// Returns the total number of elements in all blocks, given that this rank's block has `own`.
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
                "Layout::Ceil cannot determine the lengths of all blocks from one block; pass \
                 counts, or make the call in place",
            )),
        }
    }

    /// Checks that `what`, which has `length` elements, is as long as this rank's block of a buffer
    /// of `count` elements. Returns the number of elements that the full-length buffer has
    /// according to its layout.
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

    /// Returns the number of elements that a buffer of `count` has according to its layout. The
    /// layout must match the number of ranks.
    fn total(&self, layout: Layout, count: usize, dtype: Dtype) -> Result<usize> {
        let n = self.world_size();
        match layout {
            Layout::Counts(counts) if counts.len() != n => Err(Error::usage(format!(
                "the layout has {} counts, but the communicator has {n} ranks; pass one count \
                 per rank",
                counts.len()
            ))),
            _ => {
                let total = layout.total(count).ok_or_else(too_many)?;
                bytes_of(total, dtype).map(|_| total)
            }
        }
    }

    /// Returns the call with the layout of its full-length buffer, if the layout fits the call.
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
                "all_to_all does not support counts; use all_to_all_into",
            )),
            Layout::Counts(counts) => {
                let total = self.total(layout, call.count, call.dtype)?;
                check_length("the buffer", call.count, total)?;
                Ok(Split::by(counts))
            }
            Layout::Ceil if !moves_blocks => Ok(Split::Ceil),
            // All blocks of an all-to-all have the same length.
            Layout::Ceil | Layout::Even => Ok(Split::Even),
        }
    }

    /// Like [`Communicator::all_reduce_async`], but starts a [`Communicator::gather`].
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
    /// Returns the same errors as [`Communicator::all_reduce_async`].
    pub fn gather_async<B>(&self, buffer: B, root: usize) -> Result<Work<B>, Failed<B>>
    where
        B: BufferMut + Send + 'static,
    {
        self.start(Call::new(Collective::Gather, 0).root(root), buffer)
    }

    /// Like [`Communicator::all_reduce_async`], but starts a [`Communicator::scatter`].
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
    /// Returns the same errors as [`Communicator::all_reduce_async`].
    pub fn scatter_async<B>(&self, buffer: B, root: usize) -> Result<Work<B>, Failed<B>>
    where
        B: BufferMut + Send + 'static,
    {
        self.start(Call::new(Collective::Scatter, 0).root(root), buffer)
    }

    /// Like [`Communicator::all_reduce_async`], but starts an [`Communicator::all_to_all`].
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
    /// Returns the same errors as [`Communicator::all_reduce_async`], such as
    /// [`Usage`](crate::ErrorKind::Usage) if the length is not a multiple of the number of ranks.
    pub fn all_to_all_async<B>(&self, buffer: B) -> Result<Work<B>, Failed<B>>
    where
        B: BufferMut + Send + 'static,
    {
        self.start(Call::new(Collective::AllToAll, 0), buffer)
    }
}

fn too_many() -> Error {
    Error::usage(
        "a buffer that holds all blocks cannot fit in memory; check its length or the counts",
    )
}
