//! Represents a call as a value, and runs or starts it for any element type.
//!
//! *Buffers.* A collective reads `send` and writes `recv`. In a rooted collective, some ranks use
//! only one of the two buffers, and the pointer to the other buffer is ignored. A call works in
//! place if one of the buffers is located exactly at its position within the other. Any other
//! overlap is an error.
//!
//! *Forms.* Blocking and started calls use the same [`Buffers`]. No form copies a buffer, except
//! that the root of a broadcast copies `send` to `recv`.

use crate::memory::{counts, elements};
use crate::types::{self, dtype_from_c, op_from_c};
use bytemuck::allocation::try_zeroed_vec;
use ringtree::comm::WorkError;
use ringtree::comm::{Memory, MemoryMut};
use ringtree::plan::Collective;
use ringtree::{
    Blocks, Buffer, BufferMut, Communicator, Element, Error, ErrorKind, Layout, ReduceOp, Result,
    Work, with_element,
};
use ringtree_foreign::{ForeignBuffer, Operation};
use std::ffi::{c_int, c_void};

/// A collective that operates on C's memory, with the arguments as C passed them. They are checked
/// when the call is run or started.
pub(crate) struct Call {
    collective: Collective,
    /// Address of the elements to read.
    send: usize,
    /// Address of the elements to write.
    recv: usize,
    lengths: Lengths<*const usize>,
    dtype: dtype_from_c,
    op: op_from_c,
    root: c_int,
}

/// The lengths of a call's blocks, in elements. `C` is the type of a list of numbers, one per rank.
pub(crate) enum Lengths<C> {
    /// Length of each block, or of each buffer if the buffers are not divided into blocks.
    Even(usize),
    /// Lengths of the blocks of all ranks, in the buffer that contains one block per rank.
    Counts(C),
    /// Lengths of the blocks to and from each rank.
    Both(C, C),
}

/// A contiguous range of elements.
#[derive(Clone, Copy)]
struct Span {
    /// Name of the parameter.
    what: &'static str,
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
        elements(self.what, (self.address, self.count))
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

/// The buffers of a call on this rank, in the form in which the call uses them.
enum Buffers<'a, T> {
    InPlace(Blocks<'a, Held<T>>),
    Into(Blocks<'a, Held<T>>, Blocks<'a, Held<T>>),
}

impl Call {
    /// Creates a collective with root 0 and the operator `Sum`.
    pub(crate) fn new(
        collective: Collective,
        (send, recv): (*const c_void, *mut c_void),
        lengths: Lengths<*const usize>,
        dtype: dtype_from_c,
    ) -> Self {
        Self {
            collective,
            send: send.addr(),
            recv: recv.addr(),
            lengths,
            dtype,
            op: types::ringtree_op_t::RINGTREE_SUM as op_from_c,
            root: 0,
        }
    }

    /// Sets the operator.
    pub(crate) fn op(self, op: op_from_c) -> Self {
        Self { op, ..self }
    }

    /// Sets the root.
    pub(crate) fn root(self, root: c_int) -> Self {
        Self { root, ..self }
    }

    /// Runs the call and returns when it has completed.
    pub(crate) fn run(&self, comm: &Communicator) -> Result<()> {
        with_element!(types::dtype(self.dtype)?, T => self.run_as::<T>(comm))
    }

    /// Starts the call. ringtree's own threads run it.
    pub(crate) fn start(&self, comm: &Communicator) -> Result<Box<dyn Operation>> {
        with_element!(types::dtype(self.dtype)?, T => self.start_as::<T>(comm))
    }

    /// Returns `true` if `send`, and not `recv`, contains one block per rank.
    fn has_blocks_in_send(&self) -> bool {
        let (scatter, reduce_scatter) = (Collective::Scatter, Collective::ReduceScatter);
        self.collective == scatter || self.collective == reduce_scatter
    }

    fn run_as<T: Element>(&self, comm: &Communicator) -> Result<()> {
        let (op, root) = (types::op(self.op)?, types::rank("root", self.root)?);
        let lengths = self
            .lengths
            .read(comm.world_size(), self.has_blocks_in_send())?;
        let (input, mut output) = match self.buffers::<T>(comm, root, &lengths)? {
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
        let (op, root) = (types::op(self.op)?, types::rank("root", self.root)?);
        let lengths = self
            .lengths
            .read(comm.world_size(), self.has_blocks_in_send())?;
        let (input, output) = match self.buffers::<T>(comm, root, &lengths)? {
            Buffers::Into(input, output) => (input.into_owned(), output.into_owned()),
            Buffers::InPlace(whole) => {
                return self.start_in_place(comm, whole.into_owned(), op, root);
            }
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
        op: ReduceOp,
        root: usize,
    ) -> Result<Box<dyn Operation>> {
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
    fn buffers<'a, T: Element>(
        &self,
        comm: &Communicator,
        root: usize,
        lengths: &'a Lengths<Vec<usize>>,
    ) -> Result<Buffers<'a, T>> {
        let Places {
            send,
            recv,
            is_in_place,
        } = self.places::<T>(comm, root, lengths)?;
        let has_blocks_in_send = self.has_blocks_in_send();
        let (of_send, of_recv) = match lengths {
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
                if comm.rank() == root {
                    output.as_mut_slice().copy_from_slice(input.as_slice());
                }
                return Ok(Buffers::InPlace(of_recv.of(Held::Foreign(output))));
            }
            // This rank needs memory for data that it forwards.
            Collective::Reduce if comm.rank() != root => Held::Scratch(zeros(comm, send.count)?),
            _ => Held::Foreign(output),
        };
        let input = of_send.of(Held::Foreign(input));
        Ok(Buffers::Into(input, of_recv.of(output)))
    }

    /// Returns this rank's buffers with their lengths, and determines whether the call works in
    /// place.
    fn places<T>(
        &self,
        comm: &Communicator,
        root: usize,
        lengths: &Lengths<Vec<usize>>,
    ) -> Result<Places> {
        let (rank, ranks) = (comm.rank(), comm.world_size());
        if root >= ranks {
            return Err(Error::new(
                ErrorKind::Usage,
                format!(
                    "root {root} is out of range: valid ranks are 0 to {}",
                    ranks - 1
                ),
            ));
        }
        let on_root = |count: usize| if rank == root { count } else { 0 };
        let ([own, before], [to_all, from_all]) = lengths.on(rank, ranks)?;
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
        let offset = before.checked_mul(size_of::<T>());
        let at = |whole: usize| offset.and_then(|offset| whole.checked_add(offset));
        let is_in_place = if send == 0 || recv == 0 || matches!(lengths, Lengths::Both(..)) {
            false
        } else if self.has_blocks_in_send() {
            at(self.send) == Some(self.recv)
        } else {
            at(self.recv) == Some(self.send)
        };
        let span = |what, address, count| Span {
            what,
            address,
            count,
        };
        Ok(Places {
            send: span("send", self.send, send),
            recv: span("recv", self.recv, recv),
            is_in_place,
        })
    }
}

impl Lengths<*const usize> {
    /// Copies the numbers from C's memory. If `is_send`, they are the lengths of blocks of `send`.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Usage`] if the address of the numbers is null or not aligned.
    fn read(&self, ranks: usize, is_send: bool) -> Result<Lengths<Vec<usize>>> {
        let send_counts = |all| counts("send_counts", all, ranks);
        let recv_counts = |all| counts("recv_counts", all, ranks);
        Ok(match *self {
            Self::Even(count) => Lengths::Even(count),
            Self::Counts(all) if is_send => Lengths::Counts(send_counts(all)?),
            Self::Counts(all) => Lengths::Counts(recv_counts(all)?),
            Self::Both(send, recv) => Lengths::Both(send_counts(send)?, recv_counts(recv)?),
        })
    }
}

impl Lengths<Vec<usize>> {
    /// Returns two pairs: the length of `rank`'s block and the number of elements before it, and
    /// the lengths of the buffers that contain the blocks to all ranks and the blocks from all
    /// ranks.
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

/// A buffer that a call uses.
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

/// Allocates `count` elements with the value zero. If the memory is exhausted, aborts the
/// communicator, because the other ranks may have already started the call.
///
/// # Errors
/// Returns [`ErrorKind::System`] if the memory is exhausted.
fn zeros<T: Element>(comm: &Communicator, count: usize) -> Result<Vec<T>> {
    try_zeroed_vec(count).map_err(|()| {
        let (rank, dtype) = (comm.rank(), T::DTYPE);
        let text = format!("rank {rank} cannot allocate {count} {dtype} for a reduce");
        let error = Error::new(ErrorKind::System, text);
        comm.abort(&error);
        error
    })
}

fn without_buffers(collective: Collective) -> Error {
    let text = format!("{collective} does not accept buffers");
    Error::new(ErrorKind::Usage, text)
}
