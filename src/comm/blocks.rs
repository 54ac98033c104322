//! Checks the lengths and the block layouts of a call's buffers.

use super::Communicator;
use super::buffer::{Buffer, BufferMut, Memory, MemoryMut};
use super::collectives::{Bound, check_length};
use crate::dtype::Dtype;
use crate::engine::bind::Placement;
use crate::engine::cache::bytes_of;
use crate::engine::group;
use crate::error::{Error, Result};
use crate::plan::internal::spec::{is_blocked, moves_blocks};
use crate::plan::{Blocks, Collective, Layout};
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
    /// Checks the buffer that an in-place call uses. The buffer has `count` elements.
    pub(super) fn bind_in_place<'a>(
        &self,
        call: Call,
        count: usize,
        layout: Layout<'a>,
    ) -> Result<Bound<'a>> {
        self.bind_layout(Call { count, ..call }, Placement::InPlace, layout)
    }

    /// Checks the input and the output of a call. Each is given as its number of elements and its
    /// layout.
    pub(super) fn bind_into<'a>(
        &self,
        call: Call,
        [input, output]: [(usize, Layout<'a>); 2],
    ) -> Result<Bound<'a>> {
        self.check_peer("root", call.root)?;
        let is_root = self.rank() == call.root;
        let by_counts = |(_, layout)| matches!(layout, Layout::Counts(_));
        let has_counts = by_counts(input) || by_counts(output);
        let (count, layout) = match call.collective() {
            Some(Collective::ReduceScatter) => {
                self.check_block(("output", output.0), input.1, input.0, call.dtype)?;
                if let Some(op) = call.op.filter(|op| op.factor().is_some()) {
                    return Err(Error::usage(format!(
                        "reduce_scatter_into does not support {op} because the scaled input does \
                         not fit into its output; scale a copy and use reduce_scatter"
                    )));
                }
                input
            }
            Some(Collective::AllGather) => {
                self.check_block(("input", input.0), output.1, output.0, call.dtype)?;
                output
            }
            Some(Collective::Gather) => {
                let count = self.count_of_blocks("input", input.0, output.1, call.dtype)?;
                if is_root {
                    check_length("output", output.0, count)?;
                }
                (count, output.1)
            }
            Some(Collective::Scatter) => {
                let count = self.count_of_blocks("output", output.0, input.1, call.dtype)?;
                if is_root {
                    check_length("input", input.0, count)?;
                }
                (count, input.1)
            }
            Some(Collective::AllToAll) if has_counts => {
                return self.bind_by_counts(call, [input, output]);
            }
            _ => {
                check_length("output", output.0, input.0)?;
                (input.0, Layout::Even)
            }
        };
        self.bind_layout(Call { count, ..call }, Placement::Into, layout)
    }

    /// Checks the buffers of an all-to-all whose blocks can have any length. Also compares the
    /// counts of all ranks, and therefore waits for the other ranks.
    fn bind_by_counts<'a>(
        &self,
        call: Call,
        [input, output]: [(usize, Layout<'a>); 2],
    ) -> Result<Bound<'a>> {
        let (Layout::Counts(sent), Layout::Counts(received)) = (input.1, output.1) else {
            return Err(Error::usage(
                "all_to_all_into needs counts for both buffers or for neither",
            ));
        };
        for (what, (length, layout)) in [("input", input), ("output", output)] {
            check_length(what, length, self.total(layout, 0, call.dtype)?)?;
        }
        let rank = self.rank();
        if sent[rank] != received[rank] {
            return Err(Error::usage(format!(
                "rank {rank} sends {} elements to itself, but receives {} from itself; pass equal \
                 counts",
                sent[rank], received[rank]
            )));
        }
        let call = Call {
            count: 0,
            split: Split::Counts(0),
            ..call
        };
        if self.world_size() > 1 {
            self.agree_on_counts(call, sent, received)?;
        }
        Ok(Bound::new(call, Placement::Into, [input.1, output.1]))
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
            let layouts = [Layout::Even; 2];
            let call = Bound::new(all_reduce.agreeing(), Placement::InPlace, layouts);
            let end = self.run(call, &mut memory);
            (memory.output, end)
        })?;
        if sum == [0] {
            return Ok(());
        }
        let mut theirs: Vec<u64> = received.iter().map(|count| *count as u64).collect();
        self.in_place(Call::new(Collective::AllToAll, 0).agreeing(), &mut theirs)?;
        let mut both = sent.iter().map(|sent| *sent as u64).zip(theirs).enumerate();
        let Some((peer, (sent, received))) = both.find(|(_, (sent, theirs))| sent != theirs) else {
            // The barrier fails with the error from a rank that finds a difference.
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

    /// Returns the total number of elements in all blocks, given that this rank's block has `own`
    /// elements.
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
    fn check_block(
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

    /// Returns the number of elements that `layout` gives to a buffer of `count` elements. The
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

    /// Binds the call to the layout of its full-length buffer. Returns an error if the call does
    /// not support that layout.
    #[inline]
    fn bind_layout<'a>(
        &self,
        call: Call,
        placement: Placement,
        layout: Layout<'a>,
    ) -> Result<Bound<'a>> {
        let (split, layout) = match layout {
            Layout::Even => (Split::Even, layout),
            Layout::Ceil | Layout::Counts(_) => self.split_of(&call, layout)?,
        };
        Ok(Bound::new(Call { split, ..call }, placement, [layout; 2]))
    }

    /// Returns how the call splits its buffer if `layout` is not even, and the layout that the call
    /// actually uses.
    fn split_of<'a>(&self, call: &Call, layout: Layout<'a>) -> Result<(Split, Layout<'a>)> {
        let collective = call.collective().filter(|one| is_blocked(*one));
        let moves_blocks = collective.is_some_and(moves_blocks);
        match layout {
            _ if collective.is_none() => Ok((Split::Even, Layout::Even)),
            Layout::Counts(_) if moves_blocks => Err(Error::usage(
                "all_to_all does not support counts; use all_to_all_into",
            )),
            Layout::Counts(counts) => {
                let total = self.total(layout, call.count, call.dtype)?;
                check_length("the buffer", call.count, total)?;
                Ok((Split::by(counts), layout))
            }
            Layout::Ceil if !moves_blocks => Ok((Split::Ceil, layout)),
            // All blocks of an in-place all-to-all have the same length, so the layout is even.
            Layout::Ceil | Layout::Even => Ok((Split::Even, Layout::Even)),
        }
    }
}

fn too_many() -> Error {
    Error::usage(
        "a buffer that holds all blocks cannot fit in memory; check its length or the counts",
    )
}
