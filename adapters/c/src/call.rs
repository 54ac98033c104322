//! Represents a call as a value, and runs or starts it for any element type.
//!
//! *Buffers.* A collective reads `send` and writes `recv`. In a rooted collective, some ranks use
//! only one of the two buffers, and the pointer to the other buffer is ignored. A call works in
//! place if one of the buffers is located exactly at its position within the other. Any other
//! overlap is an error.
//!
//! *Forms.* Blocking and started calls use the same [`Buffers`]. No form copies a buffer, except
//! that the root of a broadcast copies `send` to `recv`.

use crate::memory::elements;
use crate::types;
use bytemuck::allocation::try_zeroed_vec;
use ringtree::comm::WorkError;
use ringtree::comm::{Memory, MemoryMut};
use ringtree::plan::Collective;
use ringtree::{
    Blocks, Buffer, BufferMut, Communicator, Dtype, Element, Error, ErrorKind, Layout, ReduceOp,
    Result, Work, with_element,
};
use ringtree_foreign::{ForeignBuffer, Operation};

/// A collective that operates on C's memory.
pub(crate) struct Call {
    collective: Collective,
    /// Address of the elements to read.
    send: usize,
    /// Address of the elements to write.
    recv: usize,
    lengths: Lengths,
    dtype: Dtype,
    op: ReduceOp,
    root: usize,
}

/// The lengths of a call's blocks, in elements.
enum Lengths {
    /// Length of each block, or of each buffer if the buffers are not divided into blocks.
    Even(usize),
    /// Lengths of the blocks of all ranks, in the buffer that contains one block per rank.
    Counts(Vec<usize>),
    /// Lengths of the blocks to and from each rank.
    Both(Vec<usize>, Vec<usize>),
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
    /// Returns [`ErrorKind::Usage`] if the address is null or not aligned,
    /// or if the elements exceed the address space.
    fn elements<T: Element>(self) -> Result<ForeignBuffer<T>> {
        elements(self.address, self.count)
    }

    /// Checks that both ranges are valid and do not overlap.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Usage`] if the ranges overlap. Also returns
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

/// The buffers of a call on this rank, as C passed them.
struct Places {
    send: Span,
    recv: Span,
    is_in_place: bool,
}

/// The buffers of a call on this rank, with the layouts of their blocks.
enum Buffers<'a, T> {
    InPlace(Blocks<'a, Held<T>>),
    Into(Blocks<'a, Held<T>>, Blocks<'a, Held<T>>),
}

impl Call {
    /// Creates a collective from C's arguments, with root 0 and the operator `Sum`.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Usage`] if there is no type with the number
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
            lengths: Lengths::Even(count),
            dtype: types::dtype(dtype)?,
            op: ReduceOp::Sum,
            root: 0,
        })
    }

    /// Sets the lengths of the blocks in the buffer that contains one block per rank.
    pub(crate) fn counts(self, counts: Vec<usize>) -> Self {
        let lengths = Lengths::Counts(counts);
        Self { lengths, ..self }
    }

    /// Sets the lengths of the blocks to each rank and from each rank, for an all-to-all.
    pub(crate) fn both_counts(self, send: Vec<usize>, recv: Vec<usize>) -> Self {
        let lengths = Lengths::Both(send, recv);
        Self { lengths, ..self }
    }

    /// Sets the operator.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Usage`] if there is no operator with this
    /// number.
    pub(crate) fn op(mut self, op: types::op_from_c) -> Result<Self> {
        self.op = types::op(op)?;
        Ok(self)
    }

    /// Sets the root.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Usage`] if the root is negative.
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
        with_element!(self.dtype, T => self.start_as::<T>(comm))
    }

    fn run_as<T: Element>(&self, comm: &Communicator) -> Result<()> {
        let (op, root) = (self.op, self.root);
        let (input, mut output) = match self.buffers::<T>(comm)? {
            Buffers::Into(input, output) => (input, output),
            Buffers::InPlace(mut whole) => {
                use ringtree::internal::calls::collective;
                return collective(comm, self.collective, &mut whole, op, root);
            }
        };
        let (input, output) = (&input, &mut output);
        match self.collective {
            Collective::AllReduce => comm.all_reduce_into(input, output, op),
            Collective::Reduce => comm.reduce_into(input, output, op, root),
            Collective::AllGather => comm.all_gather_into(input, output),
            Collective::ReduceScatter => comm.reduce_scatter_into(input, output, op),
            Collective::Gather => comm.gather_into(input, output, root),
            Collective::Scatter => comm.scatter_into(input, output, root),
            Collective::AllToAll => comm.all_to_all_into(input, output),
            other => Err(without_buffers(other)),
        }
    }

    fn start_as<T: Element>(&self, comm: &Communicator) -> Result<Box<dyn Operation>> {
        let (op, root) = (self.op, self.root);
        let (input, output) = match self.buffers::<T>(comm)? {
            Buffers::Into(input, output) => (input.into_owned(), output.into_owned()),
            Buffers::InPlace(whole) => return self.start_in_place(comm, whole.into_owned()),
        };
        boxed(match self.collective {
            Collective::AllReduce => comm.start_all_reduce_into(input, output, op),
            Collective::Reduce => comm.start_reduce_into(input, output, op, root),
            Collective::AllGather => comm.start_all_gather_into(input, output),
            Collective::ReduceScatter => comm.start_reduce_scatter_into(input, output, op),
            Collective::Gather => comm.start_gather_into(input, output, root),
            Collective::Scatter => comm.start_scatter_into(input, output, root),
            Collective::AllToAll => comm.start_all_to_all_into(input, output),
            other => return Err(without_buffers(other)),
        })
    }

    fn start_in_place<T: Element>(
        &self,
        comm: &Communicator,
        whole: Blocks<'static, Held<T>>,
    ) -> Result<Box<dyn Operation>> {
        let (op, root) = (self.op, self.root);
        boxed(match self.collective {
            Collective::AllReduce => comm.start_all_reduce(whole, op),
            Collective::Broadcast => comm.start_broadcast(whole, root),
            Collective::Reduce => comm.start_reduce(whole, op, root),
            Collective::AllGather => comm.start_all_gather(whole),
            Collective::ReduceScatter => comm.start_reduce_scatter(whole, op),
            Collective::Gather => comm.start_gather(whole, root),
            Collective::Scatter => comm.start_scatter(whole, root),
            Collective::AllToAll => comm.start_all_to_all(whole),
            other => return Err(without_buffers(other)),
        })
    }

    /// Checks this rank's buffers and returns them in the form in which the call uses them.
    fn buffers<T: Element>(&self, comm: &Communicator) -> Result<Buffers<'_, T>> {
        let Places {
            send,
            recv,
            is_in_place,
        } = self.places(comm)?;
        let has_blocks_in_send = matches!(
            self.collective,
            Collective::ReduceScatter | Collective::Scatter
        );
        let (of_send, of_recv) = match &self.lengths {
            Lengths::Even(_) => (Layout::Even, Layout::Even),
            Lengths::Counts(counts) if has_blocks_in_send => (Layout::Counts(counts), Layout::Even),
            Lengths::Counts(counts) => (Layout::Even, Layout::Counts(counts)),
            Lengths::Both(send, recv) => (Layout::Counts(send), Layout::Counts(recv)),
        };
        if is_in_place {
            let (whole, layout) = match has_blocks_in_send {
                true => (send, of_send),
                false => (recv, of_recv),
            };
            return Ok(Buffers::InPlace(
                layout.of(Held::Foreign(whole.elements()?)),
            ));
        }
        send.check_apart::<T>(recv)?;
        let (input, mut output) = (send.elements::<T>()?, recv.elements::<T>()?);
        let output = match self.collective {
            Collective::Broadcast => {
                if comm.rank() == self.root {
                    output.as_mut_slice().copy_from_slice(input.as_slice());
                }
                return Ok(Buffers::InPlace(of_recv.of(Held::Foreign(output))));
            }
            // This rank needs memory for data that it forwards.
            Collective::Reduce if comm.rank() != self.root => Held::Scratch(zeros(send.count)?),
            _ => Held::Foreign(output),
        };
        let input = of_send.of(Held::Foreign(input));
        Ok(Buffers::Into(input, of_recv.of(output)))
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
        let on_root = |count: usize| if rank == self.root { count } else { 0 };
        let ([own, before], [to_all, from_all]) = self.lengths.on(rank, ranks)?;
        let (send, recv, before) = match self.collective {
            Collective::AllReduce => (own, own, 0),
            Collective::Broadcast => (on_root(own), own, 0),
            Collective::Reduce => (own, on_root(own), 0),
            Collective::AllToAll => (to_all, from_all, 0),
            Collective::AllGather => (own, from_all, before),
            Collective::ReduceScatter => (to_all, own, before),
            Collective::Gather => (own, on_root(from_all), before),
            Collective::Scatter => (on_root(to_all), own, before),
            other => return Err(without_buffers(other)),
        };
        let offset = before.checked_mul(self.dtype.size());
        let at = |whole: usize| offset.and_then(|offset| whole.checked_add(offset));
        let is_in_place = match self.collective {
            _ if send == 0 || recv == 0 || matches!(self.lengths, Lengths::Both(..)) => false,
            Collective::ReduceScatter | Collective::Scatter => at(self.send) == Some(self.recv),
            _ => at(self.recv) == Some(self.send),
        };
        let span = |address, count| Span { address, count };
        Ok(Places {
            send: span(self.send, send),
            recv: span(self.recv, recv),
            is_in_place,
        })
    }
}

impl Lengths {
    /// Returns the length of the block of `rank` and the number of elements before it, and then
    /// the lengths of a buffer to all ranks and of a buffer from all ranks.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Usage`] if a length exceeds the address space.
    fn on(&self, rank: usize, ranks: usize) -> Result<([usize; 2], [usize; 2])> {
        let too_long = || {
            Error::new(
                ErrorKind::Usage,
                "the buffer for the blocks of all ranks exceeds the address space",
            )
        };
        let sum = |counts: &[usize]| {
            let mut counts = counts.iter();
            let sum = counts.try_fold(0usize, |sum, count| sum.checked_add(*count));
            sum.ok_or_else(too_long)
        };
        match self {
            Self::Even(count) => {
                let all = count.checked_mul(ranks).ok_or_else(too_long)?;
                Ok(([*count, count * rank], [all, all]))
            }
            Self::Counts(counts) => {
                let all = sum(counts)?;
                Ok(([counts[rank], sum(&counts[..rank])?], [all, all]))
            }
            Self::Both(send, recv) => Ok(([0, 0], [sum(send)?, sum(recv)?])),
        }
    }
}

/// A buffer of a call.
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

fn boxed<B: Send + 'static>(
    work: std::result::Result<Work<B>, WorkError<B>>,
) -> Result<Box<dyn Operation>> {
    Ok(Box::new(work?))
}

/// Allocates `count` elements with the value zero.
///
/// # Errors
/// Returns [`ErrorKind::System`] if the memory is exhausted.
fn zeros<T: Element>(count: usize) -> Result<Vec<T>> {
    let refused = |()| {
        Error::new(
            ErrorKind::System,
            format!("cannot allocate {count} {}", T::DTYPE),
        )
    };
    try_zeroed_vec(count).map_err(refused)
}

fn without_buffers(collective: Collective) -> Error {
    let text = format!("{collective} does not accept buffers");
    Error::new(ErrorKind::Usage, text)
}
