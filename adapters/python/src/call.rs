//! Represents a collective as a value and runs it on memory whose element type is known only at run
//! time.

use crate::sys::Memory;
use ringtree::plan::Collective;
use ringtree::with_element;
use ringtree::{Communicator, Dtype, Element, Error, ErrorKind, Layout, ReduceOp, Result};
use ringtree_foreign::Operation;
use std::borrow::Cow;

/// A collective that operates on Python's memory.
pub(crate) struct Call {
    pub(crate) collective: Collective,
    pub(crate) dtype: Dtype,
    pub(crate) op: ReduceOp,
    pub(crate) root: usize,
    /// `true` if the collective reads and writes `output` and has no input.
    pub(crate) is_in_place: bool,
    /// The memory to read: one part, or one part per rank.
    pub(crate) input: Memory,
    /// The memory to write: one part, or one part per rank.
    pub(crate) output: Memory,
    /// The numbers of elements in the blocks of the input and of the output, if the program passed
    /// them.
    pub(crate) counts: [Option<Vec<usize>>; 2],
}

impl Call {
    /// Runs the collective and returns when it has completed.
    pub(crate) fn carry_out(&mut self, comm: &Communicator) -> Result<()> {
        with_element!(self.dtype, T => self.run::<T>(comm))
    }

    fn run<T: Element>(&mut self, comm: &Communicator) -> Result<()> {
        let Self {
            collective,
            op,
            root,
            is_in_place,
            input,
            output,
            counts,
            ..
        } = self;
        let (op, root) = (*op, *root);
        if *collective == Collective::Barrier {
            return comm.barrier();
        }
        let is_gather = *collective == Collective::AllGather;
        if *is_in_place || is_gather && has_own_block::<T>(comm, input, (output, &counts[1])) {
            let blocks = given(&counts[1]);
            return output.write_whole::<T>(|all| {
                let mut all = blocks.of(all);
                ringtree::internal::calls::collective(comm, *collective, &mut all, op, root)
            });
        }
        let lengths = (input.lengths(), output.lengths());
        let read: Cow<'_, [T]> = match input.overlaps::<T>(output) {
            true => Cow::Owned(input.whole::<T>()?.into_owned()),
            false => input.whole::<T>()?,
        };
        let from = layout(&counts[0], &lengths.0);
        let to = layout(&counts[1], &lengths.1);
        match collective {
            Collective::ReduceScatter => reduce_scatter(comm, read, output, from, op),
            Collective::Gather if to != given(&counts[1]) => Err(uneven(*collective, &lengths.1)),
            Collective::Scatter if from != given(&counts[0]) => {
                Err(uneven(*collective, &lengths.0))
            }
            _ => output.write_whole::<T>(|all| match collective {
                Collective::AllReduce => comm.all_reduce_into(&*read, all, op),
                Collective::Reduce => comm.reduce_into(&*read, all, op, root),
                Collective::Gather => comm.gather_into(&*read, &mut to.of(all), root),
                Collective::Scatter => comm.scatter_into(&from.of(&*read), all, root),
                Collective::AllGather => comm.all_gather_into(&*read, &mut to.of(all)),
                Collective::AllToAll => {
                    let (from, to) = (given(&counts[0]), given(&counts[1]));
                    comm.all_to_all_into(&from.of(&*read), &mut to.of(all))
                }
                other => Err(Error::new(
                    ErrorKind::Usage,
                    format!("{other} works only in place, on one buffer"),
                )),
            }),
        }
    }

    /// Returns `true` if ringtree's own threads can run the call. In that case, the call's memory
    /// is contiguous, and the call need not wait for other ranks before it starts.
    pub(crate) fn can_be_posted(&self) -> bool {
        let is_one = with_element!(self.dtype, T => {
            let is_apart = self.is_in_place || !self.input.overlaps::<T>(&self.output);
            self.input.is_one::<T>() && self.output.is_one::<T>() && is_apart
        });
        let has_counts = self.counts.iter().any(Option::is_some);
        let has_parts = self.input.lengths().len() > 1 || self.output.lengths().len() > 1;
        is_one
            && !has_parts
            && match self.collective {
                Collective::ReduceScatter => {
                    self.is_in_place || !matches!(self.op, ReduceOp::PreMulSum(_))
                }
                Collective::AllToAll => !has_counts,
                _ => true,
            }
    }

    /// Starts the call on ringtree's own threads. [`Call::can_be_posted`] must be `true`.
    pub(crate) fn post(self, comm: &Communicator) -> Result<Box<dyn Operation>> {
        match (self.collective, self.is_in_place) {
            (Collective::Barrier, _) => Ok(Box::new(comm.start_barrier()?)),
            (_, true) => with_element!(self.dtype, T => self.post_in_place::<T>(comm)),
            (_, false) => with_element!(self.dtype, T => self.post_into::<T>(comm)),
        }
    }

    fn post_in_place<T: Element>(self, comm: &Communicator) -> Result<Box<dyn Operation>> {
        let (op, root) = (self.op, self.root);
        let held = self.output.held::<T>()?;
        let all = given(&self.counts[1]).of(held).into_owned();
        let started = match self.collective {
            Collective::AllReduce => comm.start_all_reduce(all, op),
            Collective::Reduce => comm.start_reduce(all, op, root),
            Collective::Broadcast => comm.start_broadcast(all, root),
            Collective::ReduceScatter => comm.start_reduce_scatter(all, op),
            Collective::AllGather => comm.start_all_gather(all),
            Collective::Gather => comm.start_gather(all, root),
            Collective::Scatter => comm.start_scatter(all, root),
            _ => comm.start_all_to_all(all),
        };
        Ok(Box::new(started?))
    }

    fn post_into<T: Element>(self, comm: &Communicator) -> Result<Box<dyn Operation>> {
        let (op, root) = (self.op, self.root);
        let (input, output) = (self.input.held::<T>()?, self.output.held::<T>()?);
        let input = given(&self.counts[0]).of(input).into_owned();
        let output = given(&self.counts[1]).of(output).into_owned();
        let started = match self.collective {
            Collective::AllReduce => comm.start_all_reduce_into(input, output, op),
            Collective::Reduce => comm.start_reduce_into(input, output, op, root),
            Collective::ReduceScatter => comm.start_reduce_scatter_into(input, output, op),
            Collective::AllGather => comm.start_all_gather_into(input, output),
            Collective::Gather => comm.start_gather_into(input, output, root),
            Collective::Scatter => comm.start_scatter_into(input, output, root),
            _ => comm.start_all_to_all_into(input, output),
        };
        Ok(Box::new(started?))
    }
}

/// Returns the error for a call whose blocks differ in length although all ranks must know their
/// lengths.
fn uneven(collective: Collective, lengths: &[usize]) -> Error {
    Error::new(
        ErrorKind::Usage,
        format!("all blocks in a {collective} must have the same length; got {lengths:?} elements"),
    )
}

/// Returns `true` if the input of an all-gather is this rank's own block of the output.
fn has_own_block<T: Element>(
    comm: &Communicator,
    input: &Memory,
    (output, counts): (&Memory, &Option<Vec<usize>>),
) -> bool {
    let own = comm.block(output.total());
    let is_even = layout(counts, &output.lengths()) == Layout::Even;
    is_even && input.total() == own.len() && input.is_part_of::<T>(output, own.start)
}

/// Returns the layout of a buffer for which the program passed these counts.
fn given(counts: &Option<Vec<usize>>) -> Layout<'_> {
    counts.as_deref().map_or(Layout::Even, Layout::Counts)
}

/// Returns the layout of a buffer that has these counts or, by default, consists of parts of these
/// lengths. The layout is the same on all ranks.
fn layout<'a>(counts: &'a Option<Vec<usize>>, lengths: &'a [usize]) -> Layout<'a> {
    let is_even = lengths.windows(2).all(|pair| pair[0] == pair[1]);
    match counts.is_some() || is_even {
        true => given(counts),
        false => Layout::Counts(lengths),
    }
}

fn reduce_scatter<T: Element>(
    comm: &Communicator,
    input: Cow<'_, [T]>,
    output: &mut Memory,
    layout: Layout<'_>,
    op: ReduceOp,
) -> Result<()> {
    match (input, op) {
        (Cow::Borrowed(input), op) if !matches!(op, ReduceOp::PreMulSum(_)) => {
            output.write_whole::<T>(|own| comm.reduce_scatter_into(&layout.of(input), own, op))
        }
        (input, _) => {
            let mut all = input.into_owned();
            comm.reduce_scatter(&mut layout.of(&mut all[..]), op)?;
            let block = match layout {
                Layout::Counts(lengths) => {
                    let start = lengths[..comm.rank()].iter().sum::<usize>();
                    start..start + lengths[comm.rank()]
                }
                _ => comm.block(all.len()),
            };
            output.write_whole::<T>(|own| {
                if own.len() != block.len() {
                    return Err(Error::new(ErrorKind::Usage, format!(
                        "output has {} elements, but must have {}; pass a buffer of that length",
                        own.len(),
                        block.len()
                    )));
                }
                own.copy_from_slice(&all[block]);
                Ok(())
            })
        }
    }
}
