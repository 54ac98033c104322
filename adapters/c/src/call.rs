//! Represents a call as a value, and runs or starts it for any element type.
//!
//! *Buffers.* A collective reads `send` and writes `recv`. In a rooted collective, some ranks use
//! only one of the two buffers, and the pointer to the other buffer is ignored. A call works in
//! place if one of the buffers is located exactly at its position within the other. Any other
//! overlap is an error.

use crate::memory::elements;
use crate::types;
use bytemuck::allocation::try_zeroed_vec;
use ringtree::comm::buffer::{Memory, MemoryMut};
use ringtree::{
    Buffer, BufferMut, Collective, Communicator, Dtype, Element, Error, ErrorKind, Layout,
};
use ringtree::{ReduceOp, Result, Work, with_element};
use ringtree_foreign::{ForeignBuffer, Operation};
use std::ops::Range;

/// A collective that operates on C's memory.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    pub(crate) collective: Collective,
    /// Address of the elements to read.
    pub(crate) send: usize,
    /// Address of the elements to write.
    pub(crate) recv: usize,
    /// Number of elements per block, or in total if the buffers are not divided into blocks.
    pub(crate) count: usize,
    pub(crate) dtype: Dtype,
    pub(crate) op: ReduceOp,
    pub(crate) root: usize,
}

/// A contiguous range of elements.
#[derive(Clone, Copy)]
struct Span {
    address: usize,
    count: usize,
}

impl Span {
    /// Returns the elements as a buffer.
    ///
    /// # Errors
    /// Returns `ErrorKind::Usage` if the address is null or not aligned,
    /// or if the elements exceed the address space.
    fn elements<T: Element>(self) -> Result<ForeignBuffer<T>> {
        elements(self.address, self.count)
    }

    /// Checks that both ranges are valid and do not overlap.
    ///
    /// # Errors
    /// Returns `ErrorKind::Usage` if the ranges overlap. Also returns
    /// the same errors as [`Span::elements`].
    fn check_apart<T: Element>(self, other: Self) -> Result<()> {
        self.elements::<T>()?;
        other.elements::<T>()?;
        let end = |one: Self| one.address + one.count * size_of::<T>();
        let is_none = self.count == 0 || other.count == 0;
        if is_none || end(self) <= other.address || end(other) <= self.address {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Usage,
            "send and recv overlap; pass separate buffers, or make the call in place",
        ))
    }
}

/// The buffers of a call on this rank.
struct Places {
    send: Span,
    recv: Span,
    /// This rank's block of the larger buffer, if that buffer has one block per rank.
    own: Range<usize>,
    is_in_place: bool,
}

impl Call {
    /// Creates a collective from C's arguments, with root 0 and the operator `Sum`.
    ///
    /// # Errors
    /// Returns `ErrorKind::Usage` if there is no type with the number
    /// `dtype`.
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

    /// Sets the operator.
    ///
    /// # Errors
    /// Returns `ErrorKind::Usage` if there is no operator with this
    /// number.
    pub(crate) fn op(mut self, op: types::op_from_c) -> Result<Self> {
        self.op = types::op(op)?;
        Ok(self)
    }

    /// Sets the root.
    ///
    /// # Errors
    /// Returns `ErrorKind::Usage` if the root is negative.
    pub(crate) fn root(mut self, root: std::ffi::c_int) -> Result<Self> {
        self.root = types::rank("root", root)?;
        Ok(self)
    }

    /// Runs the call and returns when it has completed.
    pub(crate) fn run(&self, comm: &Communicator) -> Result<()> {
        with_element!(self.dtype, T => self.run_as::<T>(comm))
    }

    /// Starts the call. ringtree's own threads run it.
    pub(crate) fn start(&self, comm: &Communicator) -> Result<Box<dyn Operation>> {
        with_element!(self.dtype, T => {
            let started: Box<dyn Operation> = Box::new(self.start_as::<T>(comm)?);
            Ok(started)
        })
    }

    /// Returns this rank's buffers with their lengths, and determines whether the call works in
    /// place.
    fn places(&self, comm: &Communicator) -> Result<Places> {
        let (rank, ranks) = (comm.rank(), comm.world_size());
        if self.root >= ranks {
            return Err(Error::new(
                ErrorKind::Usage,
                format!(
                    "root {} is out of range: valid ranks are 0 to {}",
                    self.root,
                    ranks - 1
                ),
            ));
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
            other => {
                return Err(Error::new(
                    ErrorKind::Usage,
                    format!("{other} does not accept buffers"),
                ));
            }
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
            return ringtree::internal::calls::collective(
                comm,
                self.collective,
                &mut whole,
                op,
                root,
            );
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
            // This rank needs memory for data that it forwards.
            Collective::Reduce => comm.reduce_into(&input, &mut zeros::<T>(send.count)?, op, root),
            Collective::AllGather => comm.all_gather_into(&input, &mut output),
            Collective::ReduceScatter => comm.reduce_scatter_into(&input, &mut output, op),
            Collective::Gather => comm.gather_into(&input, &mut output, root),
            Collective::Scatter => comm.scatter_into(&input, &mut output, root),
            _ => comm.all_to_all_into(&input, &mut output),
        }
    }

    fn start_as<T: Element>(&self, comm: &Communicator) -> Result<Started<T>> {
        let Self { op, root, .. } = *self;
        let (held, bring) = self.held::<T>(comm)?;
        let work = match self.collective {
            Collective::AllReduce => comm.start_all_reduce(held, op),
            Collective::Broadcast => comm.start_broadcast(held, root),
            Collective::Reduce => comm.start_reduce(held, op, root),
            Collective::AllGather => comm.start_all_gather(held),
            Collective::ReduceScatter => comm.start_reduce_scatter(held, op),
            Collective::Gather => comm.start_gather(held, root),
            Collective::Scatter => comm.start_scatter(held, root),
            _ => comm.start_all_to_all(held),
        };
        Ok(Started { work: work?, bring })
    }

    /// Returns the buffer that a started call operates on in place. If a part of this buffer must
    /// be copied to `recv` once the call has completed, also returns the range of this part, and
    /// `recv`.
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

/// The buffer of a started call.
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

/// A collective in flight.
struct Started<T> {
    work: Work<Held<T>>,
    /// The range of the buffer to copy once the collective has completed, and the destination.
    bring: Option<(Range<usize>, ForeignBuffer<T>)>,
}

impl<T: Element> Operation for Started<T> {
    fn is_finished(&self) -> bool {
        self.work.is_finished()
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

/// A collective with blocks of different lengths.
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
    /// Runs the collective and returns when it has completed.
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
            _ => comm.all_to_all_into(&layouts.0.of(&input), &mut layouts.1.of(&mut output)),
        }
    }
}

/// Allocates `count` elements with the value zero.
///
/// # Errors
/// Returns `ErrorKind::System` if the memory is exhausted.
fn zeros<T: Element>(count: usize) -> Result<Vec<T>> {
    let refused = |()| {
        Error::new(
            ErrorKind::System,
            format!("cannot allocate {count} {}", T::DTYPE),
        )
    };
    try_zeroed_vec(count).map_err(refused)
}

fn too_long() -> Error {
    Error::new(
        ErrorKind::Usage,
        "the buffer for the blocks of all ranks exceeds the address space",
    )
}
