//! Represents a collective as a value and runs it on memory whose element type is known only at run
//! time.

use crate::sys::Memory;
use ringtree::with_element;
use ringtree::{
    Collective, Communicator, Dtype, Element, Error, ErrorKind, Layout, ReduceOp, Result,
};
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
    /// The numbers of elements to send to each rank and to receive from each rank, in an all-to-all
    /// whose blocks differ in length.
    pub(crate) counts: Option<(Vec<usize>, Vec<usize>)>,
}

impl Call {
    /// Creates a collective that reads and writes the same memory.
    pub(crate) fn in_place(
        collective: Collective,
        dtype: Dtype,
        op: ReduceOp,
        root: usize,
        memory: Memory,
    ) -> Self {
        Self {
            collective,
            dtype,
            op,
            root,
            is_in_place: true,
            input: Memory::none(),
            output: memory,
            counts: None,
        }
    }

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
        if *is_in_place || has_own_block(comm, *collective, input, output, size_of::<T>()) {
            return output.write_whole::<T>(|all| {
                ringtree::internal::calls::collective(comm, *collective, all, op, root)
            });
        }
        let lengths = (input.lengths(), output.lengths());
        let read: Cow<'_, [T]> = match input.overlaps::<T>(output) {
            true => Cow::Owned(input.whole::<T>()?.into_owned()),
            false => input.whole::<T>()?,
        };
        match collective {
            Collective::ReduceScatter => reduce_scatter(comm, read, output, layout(&lengths.0), op),
            Collective::Gather | Collective::Scatter => {
                let parts = match collective {
                    Collective::Gather => &lengths.1,
                    _ => &lengths.0,
                };
                if !parts.is_empty() && layout(parts) != Layout::Even {
                    return Err(Error::new(
                        ErrorKind::Usage,
                        format!(
                            "all blocks in a {collective} must have the same length; got {parts:?} \
                         elements"
                        ),
                    ));
                }
                output.write_whole::<T>(|all| match collective {
                    Collective::Gather => comm.gather_into(&*read, all, root),
                    _ => comm.scatter_into(&*read, all, root),
                })
            }
            _ => output.write_whole::<T>(|all| match collective {
                Collective::AllReduce => comm.all_reduce_into(&*read, all, op),
                Collective::Reduce => comm.reduce_into(&*read, all, op, root),
                Collective::AllGather => {
                    comm.all_gather_into(&*read, &mut layout(&lengths.1).of(all))
                }
                Collective::AllToAll => {
                    let (send, receive) = match counts {
                        Some((send, receive)) => (Layout::Counts(send), Layout::Counts(receive)),
                        None => (Layout::Even, Layout::Even),
                    };
                    comm.all_to_all_into(&send.of(&*read), &mut receive.of(all))
                }
                other => Err(Error::new(
                    ErrorKind::Usage,
                    format!("{other} works only in place, on one buffer"),
                )),
            }),
        }
    }

    /// Returns `true` if ringtree's own threads can run the call, because it works in place on
    /// contiguous memory.
    pub(crate) fn can_be_posted(&self) -> bool {
        let is_one = with_element!(self.dtype, T => self.output.is_one::<T>());
        let takes_part = matches!(
            self.collective,
            Collective::AllReduce | Collective::Broadcast | Collective::Reduce
        );
        takes_part && is_one && self.is_in_place
    }

    /// Starts the call on ringtree's own threads. [`Call::can_be_posted`] must be `true`.
    pub(crate) fn post(self, comm: &Communicator) -> Result<Box<dyn Operation>> {
        let Self {
            collective,
            op,
            root,
            output,
            ..
        } = self;
        with_element!(self.dtype, T => {
            let held = output.held::<T>()?;
            let started = match collective {
                Collective::AllReduce => comm.start_all_reduce(held, op),
                Collective::Reduce => comm.start_reduce(held, op, root),
                _ => comm.start_broadcast(held, root),
            };
            Ok(Box::new(started?))
        })
    }
}

/// Returns `true` if the call is an all-gather whose input is this rank's own block of the output.
fn has_own_block(
    comm: &Communicator,
    collective: Collective,
    input: &Memory,
    output: &Memory,
    size: usize,
) -> bool {
    let own = comm.block(output.total());
    let is_even = layout(&output.lengths()) == Layout::Even;
    let lies_there = match size {
        1 => input.is_part_of::<u8>(output, own.start),
        2 => input.is_part_of::<u16>(output, own.start),
        4 => input.is_part_of::<u32>(output, own.start),
        _ => input.is_part_of::<u64>(output, own.start),
    };
    collective == Collective::AllGather && is_even && input.total() == own.len() && lies_there
}

/// Returns the layout of a buffer that consists of parts of these lengths. The lengths, and
/// therefore the layout, are the same on all ranks.
fn layout(lengths: &[usize]) -> Layout<'_> {
    match lengths.windows(2).all(|pair| pair[0] == pair[1]) {
        true => Layout::Even,
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
