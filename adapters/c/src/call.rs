//! One call as a value, for any element type: waited for, or started.
//!
//! *Places.* A collective reads `send` and writes `recv`; of a rooted one, some ranks have only one
//! of the two, and the other pointer is not looked at. Where one lies exactly at its place in the
//! other, the call is in place. Other overlaps are refused.

use crate::memory::elements;
use crate::types;
use bytemuck::allocation::try_zeroed_vec;
use ringtree::comm::buffer::{Memory, MemoryMut};
use ringtree::{Buffer, BufferMut, Collective, Communicator, Dtype, Element, Error, Layout};
use ringtree::{ReduceOp, Result, Work, with_element};
use ringtree_foreign::{ForeignBuffer, Operation};
use std::ops::Range;

/// A collective on memory of C's.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    pub(crate) collective: Collective,
    /// Where the elements lie that are read, and those that are written.
    pub(crate) send: usize,
    pub(crate) recv: usize,
    /// Elements of a block; of all, where the buffer is not one block a rank.
    pub(crate) count: usize,
    pub(crate) dtype: Dtype,
    pub(crate) op: ReduceOp,
    pub(crate) root: usize,
}

/// Elements that lie one after the other.
#[derive(Clone, Copy)]
struct Span {
    address: usize,
    count: usize,
}

impl Span {
    /// # Errors
    /// [`Error::usage`]: there is no memory.
    fn elements<T: Element>(self) -> Result<ForeignBuffer<T>> {
        elements(self.address, self.count)
    }

    /// # Errors
    /// As [`Span::elements`]; and where some byte is in both.
    fn check_apart<T: Element>(self, other: Self) -> Result<()> {
        self.elements::<T>()?;
        other.elements::<T>()?;
        let end = |one: Self| one.address + one.count * size_of::<T>();
        let is_none = self.count == 0 || other.count == 0;
        if is_none || end(self) <= other.address || end(other) <= self.address {
            return Ok(());
        }
        Err(Error::usage(
            "send and recv overlap: they must lie apart, or exactly as the call in place has them",
        ))
    }
}

/// What a rank's memory is to a call.
struct Places {
    send: Span,
    recv: Span,
    /// This rank's block of the larger one, if that has one for each rank to give or to take.
    own: Range<usize>,
    is_in_place: bool,
}

impl Call {
    /// A collective by C's names of its parts.
    ///
    /// # Errors
    /// [`Error::usage`]: a number names nothing.
    pub(crate) fn new(
        collective: Collective,
        (send, recv, count): (usize, usize, usize),
        dtype: types::dtype_from_c,
    ) -> Result<Self> {
        Ok(Self {
            collective,
            send,
            recv,
            count,
            dtype: types::dtype(dtype)?,
            op: ReduceOp::Sum,
            root: 0,
        })
    }

    /// # Errors
    /// [`Error::usage`]: no operator has this number.
    pub(crate) fn op(mut self, op: types::op_from_c) -> Result<Self> {
        self.op = types::op(op)?;
        Ok(self)
    }

    /// # Errors
    /// [`Error::usage`]: it is negative.
    pub(crate) fn root(mut self, root: std::ffi::c_int) -> Result<Self> {
        self.root = types::rank("root", root)?;
        Ok(self)
    }

    /// Carries it out, and returns when it has ended.
    pub(crate) fn run(&self, comm: &Communicator) -> Result<()> {
        with_element!(self.dtype, T => self.run_as::<T>(comm))
    }

    /// Starts it, and leaves it to the library's own threads.
    pub(crate) fn start(&self, comm: &Communicator) -> Result<Box<dyn Operation>> {
        with_element!(self.dtype, T => {
            let started: Box<dyn Operation> = Box::new(self.start_as::<T>(comm)?);
            Ok(started)
        })
    }

    /// How many elements `send` and `recv` have on this rank, and where they lie to each other.
    fn places(&self, comm: &Communicator) -> Result<Places> {
        let (rank, ranks) = (comm.rank(), comm.world_size());
        if self.root >= ranks {
            return Err(Error::usage(format!(
                "root {} is no rank; there are {ranks}, numbered from 0",
                self.root
            )));
        }
        let count = self.count;
        let of_ranks = |ranks: usize| count.checked_mul(ranks).ok_or_else(too_long);
        let all = || of_ranks(ranks);
        let on_root = |count: usize| if rank == self.root { count } else { 0 };
        let (send, recv, is_own_apart) = match self.collective {
            Collective::AllReduce => (count, count, false),
            Collective::Broadcast => (on_root(count), count, false),
            Collective::Reduce => (count, on_root(count), false),
            Collective::AllToAll => (all()?, all()?, false),
            Collective::AllGather => (count, all()?, true),
            Collective::ReduceScatter => (all()?, count, true),
            Collective::Gather => (count, on_root(all()?), true),
            Collective::Scatter => (on_root(all()?), count, true),
            other => return Err(Error::usage(format!("{other} takes no buffers"))),
        };
        let own = match is_own_apart {
            true => of_ranks(rank)?..of_ranks(rank + 1)?,
            false => 0..count,
        };
        let offset = own.start.checked_mul(self.dtype.size());
        let at = |whole: usize| offset.and_then(|offset| whole.checked_add(offset));
        let has_both = send > 0 && recv > 0;
        let is_in_place = has_both
            && match send > recv {
                true => at(self.send) == Some(self.recv),
                false => at(self.recv) == Some(self.send),
            };
        let span = |address, count| Span { address, count };
        Ok(Places {
            send: span(self.send, send),
            recv: span(self.recv, recv),
            own,
            is_in_place,
        })
    }

    fn run_as<T: Element>(&self, comm: &Communicator) -> Result<()> {
        let Self { op, root, .. } = *self;
        let Places {
            send,
            recv,
            is_in_place,
            ..
        } = self.places(comm)?;
        if is_in_place {
            let whole = if send.count > recv.count { send } else { recv };
            let mut whole = whole.elements::<T>()?;
            return comm.collective(self.collective, &mut whole, op, root);
        }
        send.check_apart::<T>(recv)?;
        let (input, mut output) = (send.elements::<T>()?, recv.elements::<T>()?);
        match self.collective {
            Collective::AllReduce => comm.all_reduce_into(&input, &mut output, op),
            Collective::Broadcast => {
                let has_input = !input.as_slice().is_empty();
                if has_input {
                    output.as_mut_slice().copy_from_slice(input.as_slice());
                }
                comm.broadcast(&mut output, root)
            }
            Collective::Reduce if comm.rank() == root => {
                comm.reduce_into(&input, &mut output, op, root)
            }
            // What comes by this rank on its way needs a place.
            Collective::Reduce => comm.reduce_into(&input, &mut zeros::<T>(send.count)?, op, root),
            Collective::AllGather => comm.all_gather_into(&input, &mut output),
            Collective::ReduceScatter => comm.reduce_scatter_into(&input, &mut output, op),
            Collective::Gather => comm.gather_into(&input, &mut output, root),
            Collective::Scatter => comm.scatter_into(&input, &mut output, root),
            _ => comm.all_to_all_into(&input, Layout::Even, &mut output, Layout::Even),
        }
    }

    fn start_as<T: Element>(&self, comm: &Communicator) -> Result<Started<T>> {
        let Self { op, root, .. } = *self;
        let (held, bring) = self.held::<T>(comm)?;
        let work = match self.collective {
            Collective::AllReduce => comm.all_reduce_async(held, op),
            Collective::Broadcast => comm.broadcast_async(held, root),
            Collective::Reduce => comm.reduce_async(held, op, root),
            Collective::AllGather => comm.all_gather_async(held),
            Collective::ReduceScatter => comm.reduce_scatter_async(held, op),
            Collective::Gather => comm.gather_async(held, root),
            Collective::Scatter => comm.scatter_async(held, root),
            _ => comm.all_to_all_async(held),
        };
        Ok(Started { work: work?, bring })
    }

    /// What a call that goes on by itself works on, which is one buffer, in place; and what of it
    /// is to be brought to `recv` at the end.
    #[allow(clippy::type_complexity)]
    fn held<T: Element>(
        &self,
        comm: &Communicator,
    ) -> Result<(Held<T>, Option<(Range<usize>, ForeignBuffer<T>)>)> {
        let Places {
            send,
            recv,
            own,
            is_in_place,
        } = self.places(comm)?;
        if is_in_place {
            let whole = if send.count > recv.count { send } else { recv };
            return Ok((Held::Foreign(whole.elements()?), None));
        }
        send.check_apart::<T>(recv)?;
        let (input, mut output) = (send.elements::<T>()?, recv.elements::<T>()?);
        let (from, to) = (input.as_slice(), output.as_mut_slice());
        let is_root = comm.rank() == self.root;
        let scratch = |count, at: Range<usize>| {
            let mut scratch = zeros::<T>(count)?;
            scratch[at].copy_from_slice(from);
            Ok::<_, Error>(Held::Scratch(scratch))
        };
        let all = self.count.saturating_mul(comm.world_size());
        match self.collective {
            Collective::Reduce if !is_root => {
                return Ok((scratch(self.count, 0..self.count)?, None));
            }
            Collective::Gather if !is_root => return Ok((scratch(all, own)?, None)),
            Collective::ReduceScatter => {
                return Ok((scratch(all, 0..all)?, Some((own, output))));
            }
            Collective::Scatter if !is_root => {
                return Ok((scratch(all, 0..0)?, Some((own, output))));
            }
            Collective::Scatter => {
                to.copy_from_slice(&from[own]);
                return Ok((Held::Foreign(input), None));
            }
            Collective::Broadcast if !is_root => {}
            Collective::AllGather | Collective::Gather => to[own].copy_from_slice(from),
            _ => to.copy_from_slice(from),
        }
        Ok((Held::Foreign(output), None))
    }
}

/// What a started call works on.
enum Held<T> {
    Foreign(ForeignBuffer<T>),
    Scratch(Vec<T>),
}

impl<T: Element> Buffer for Held<T> {
    type Element = T;

    fn memory(&self) -> Memory<'_, T> {
        match self {
            Self::Foreign(elements) => elements.memory(),
            Self::Scratch(elements) => elements.memory(),
        }
    }

    fn layout(&self) -> Layout<'_> {
        Layout::Even
    }
}

impl<T: Element> BufferMut for Held<T> {
    fn memory_mut(&mut self) -> MemoryMut<'_, T> {
        match self {
            Self::Foreign(elements) => elements.memory_mut(),
            Self::Scratch(elements) => elements.memory_mut(),
        }
    }
}

/// A collective under way, and what of its buffer is to be brought where at its end.
struct Started<T> {
    work: Work<Held<T>>,
    bring: Option<(Range<usize>, ForeignBuffer<T>)>,
}

impl<T: Element> Operation for Started<T> {
    fn has_ended(&self) -> bool {
        self.work.has_ended()
    }

    fn wait(self: Box<Self>) -> Result<()> {
        let Self { work, bring } = *self;
        let held = work.wait().map_err(|failed| failed.error)?;
        if let (Some((part, mut place)), Held::Scratch(elements)) = (bring, held) {
            place.as_mut_slice().copy_from_slice(&elements[part]);
        }
        Ok(())
    }
}

/// A collective whose blocks have lengths of their own.
pub(crate) struct ByCounts {
    pub(crate) collective: Collective,
    pub(crate) send: usize,
    pub(crate) recv: usize,
    pub(crate) send_counts: Vec<usize>,
    pub(crate) recv_counts: Vec<usize>,
    pub(crate) dtype: Dtype,
    pub(crate) op: ReduceOp,
}

impl ByCounts {
    /// Carries it out, and returns when it has ended.
    pub(crate) fn run(&self, comm: &Communicator) -> Result<()> {
        with_element!(self.dtype, T => self.run_as::<T>(comm))
    }

    fn run_as<T: Element>(&self, comm: &Communicator) -> Result<()> {
        let sum = |counts: &[usize]| {
            let mut counts = counts.iter();
            counts.try_fold(0usize, |sum, one| sum.checked_add(*one))
        };
        let span = |address, counts| {
            let count = sum(counts).ok_or_else(too_long)?;
            Ok::<_, Error>(Span { address, count })
        };
        let (send, recv) = (
            span(self.send, &self.send_counts)?,
            span(self.recv, &self.recv_counts)?,
        );
        send.check_apart::<T>(recv)?;
        let (input, mut output) = (send.elements::<T>()?, recv.elements::<T>()?);
        let layouts = (
            Layout::Counts(&self.send_counts),
            Layout::Counts(&self.recv_counts),
        );
        match self.collective {
            Collective::AllGather => comm.all_gather_into(&input, &mut layouts.1.of(&mut output)),
            Collective::ReduceScatter => {
                comm.reduce_scatter_into(&layouts.0.of(&input), &mut output, self.op)
            }
            _ => comm.all_to_all_into(&input, layouts.0, &mut output, layouts.1),
        }
    }
}

/// # Errors
/// [`Error::system`]: there is no memory for them.
fn zeros<T: Element>(count: usize) -> Result<Vec<T>> {
    let refused = |()| Error::system(format!("there is no memory for {count} {}", T::DTYPE));
    try_zeroed_vec(count).map_err(refused)
}

fn too_long() -> Error {
    Error::usage("a buffer of one block a rank would be longer than memory")
}
