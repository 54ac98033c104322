//! Issues collectives: checks the buffers of a call, starts the call, and waits for it.
//!
//! Reduce-scatter, all-gather, gather, scatter and all-to-all treat a buffer as a sequence of
//! blocks, one per rank (see [`Communicator::block`]). Every call completes or fails within the
//! timeout of its handle.

use super::buffer::{Buffer, BufferMut, MemoryMut, writable, writable_on_host};
use super::work::{Work, WorkError};
use super::{Communicator, Issued};
use crate::dtype::Element;
use crate::engine::Ticket;
use crate::engine::bind::{Lengths, Placement};
use crate::engine::cache::{Key, Prepared};
use crate::engine::group::{Memory, Order, Start};
use crate::error::{Error, Result};
use crate::op::ReduceOp;
use crate::plan::Algorithm;
use crate::plan::internal::algorithms::entry;
use crate::plan::internal::layout::{Kept, Layout};
use crate::protocol::call::Call;
use crate::runtime::Runtime;
use crate::sys::memory::{Region, lend, lend_both};
use std::sync::Arc;

type Started<B> = Result<Work<B>, WorkError<B>>;

/// A call whose buffers have been checked.
#[derive(Clone, Copy)]
pub(super) struct Bound<'a> {
    pub(super) call: Call,
    pub(super) placement: Placement,
    pub(super) lengths: Lengths<'a>,
}

impl<'a> Bound<'a> {
    /// Binds `call` to buffers with the layouts `input` and `output`.
    pub(super) fn new(call: Call, placement: Placement, [input, output]: [Layout<'a>; 2]) -> Self {
        let count = call.count;
        Self {
            call,
            placement,
            lengths: Lengths {
                count,
                input,
                output,
            },
        }
    }

    /// Returns the placement with which the call runs. If the call multiplies its input by a
    /// factor, first copies the input to the output, where the product is then computed. The call
    /// then runs in place on the output, and the input remains unchanged.
    fn place(&self, memory: &mut Memory) -> Placement {
        let Call { op, dtype, .. } = self.call;
        let has_factor = op.is_some_and(|op| op.factor().is_some()) && dtype.is_float();
        match (&memory.input, &mut memory.output) {
            (Some(input), Some(output)) if has_factor => {
                output.bytes_mut().copy_from_slice(input.bytes());
                Placement::InPlace
            }
            _ => self.placement,
        }
    }
}

impl Communicator {
    /// Waits until every rank has called `barrier`.
    ///
    /// ```
    /// assert!(ringtree::simulate(5, |comm| comm.barrier()).into_iter().all(|end| end.is_ok()));
    /// ```
    ///
    /// # Errors
    /// Returns one of the [errors that all calls share](Communicator#errors).
    #[doc(alias("MPI_Barrier"))]
    pub fn barrier(&self) -> Result<()> {
        self.in_place(Call::barrier(), &mut [0u8])
    }

    /// Starts [`Communicator::barrier`] and returns immediately. [`Work::wait`] returns once every
    /// rank has started the barrier.
    ///
    /// ```
    /// let ends = ringtree::simulate(3, |comm| {
    ///     let all_are_here = comm.start_barrier()?;
    ///     // ... compute something ...
    ///     all_are_here.wait()
    /// });
    /// assert_eq!(ends, vec![Ok(()); 3]);
    /// ```
    ///
    /// # Errors
    /// Returns an error if the communicator has failed. [`Work::wait`] returns all other
    /// [errors](Communicator#errors).
    #[doc(alias("MPI_Ibarrier"))]
    pub fn start_barrier(&self) -> Result<Work<()>, WorkError<()>> {
        let started = self.start_in_place(Call::barrier(), [0u8]);
        started
            .map(Work::without_buffer)
            .map_err(|failed| WorkError {
                error: failed.error,
                buffer: (),
            })
    }
}

/// Functions that issue collectives.
impl Communicator {
    /// Runs a collective on all elements of `buffer` and waits for it to complete.
    pub(super) fn in_place<B>(&self, call: Call, buffer: &mut B) -> Result<()>
    where
        B: BufferMut + ?Sized,
    {
        let layout = Kept::of(buffer.layout());
        let memory = writable(buffer)?;
        let call = call.dtype(B::Element::DTYPE);
        let bound = self.bind_in_place(call, memory.count(), layout.layout())?;
        match memory {
            MemoryMut::Host(slice) => lend(slice, |region| {
                let mut memory = Memory::in_place(region);
                let end = self.run(bound, &mut memory);
                (memory.output, end.map(drop))
            }),
            #[cfg(feature = "cuda")]
            MemoryMut::Device(memory) => self.on_device(&mut *self.enter()?, bound.call, memory),
        }
    }

    /// Runs a collective from `input` into `output` and waits for it to complete.
    pub(super) fn run_into<I, O>(&self, call: Call, input: &I, output: &mut O) -> Result<()>
    where
        I: Buffer + ?Sized,
        O: BufferMut<Element = I::Element> + ?Sized,
    {
        let layouts = (input.layout(), Kept::of(output.layout()));
        let (input, output) = (input.memory().on_host()?, writable_on_host(output)?);
        let ends = [(input.len(), layouts.0), (output.len(), layouts.1.layout())];
        let bound = self.bind_into(call.dtype(I::Element::DTYPE), ends)?;
        lend_both(input, output, |input, output| {
            let mut memory = Memory {
                input: Some(input),
                output: Some(output),
            };
            let end = self.run(bound, &mut memory);
            (memory.input, memory.output, end.map(drop))
        })
    }

    /// Starts a collective on a buffer that the operation owns.
    pub(super) fn start_in_place<B>(&self, call: Call, buffer: B) -> Started<B>
    where
        B: BufferMut + Send + 'static,
    {
        let layout = Kept::of(buffer.layout());
        let held = Region::hold(buffer, writable_on_host);
        let (region, claim) = held.map_err(|(error, buffer)| WorkError { error, buffer })?;
        let (count, dtype) = (region.count(), region.dtype());
        let memory = Memory::in_place(region);
        let bound = self.bind_in_place(call.dtype(dtype), count, layout.layout());
        Work::start(&self.core, memory, claim, |memory| {
            self.post(bound?, memory)
        })
    }

    /// Starts a collective on an input and an output that the operation owns.
    pub(super) fn start_into_output<I, O>(&self, call: Call, input: I, output: O) -> Started<(I, O)>
    where
        I: Buffer + Send + 'static,
        O: BufferMut<Element = I::Element> + Send + 'static,
    {
        let layouts = [Kept::of(input.layout()), Kept::of(output.layout())];
        let (input, claim) = match Region::hold_shared(input, |held: &I| held.memory().on_host()) {
            Ok(held) => held,
            Err((error, input)) => {
                let buffer = (input, output);
                return Err(WorkError { error, buffer });
            }
        };
        let (output, claim) = match Region::hold(output, writable_on_host) {
            Ok((region, of_output)) => (region, claim.and(of_output)),
            Err((error, output)) => {
                let input = claim.release(Some(input), None);
                let input = input.expect("invariant: the region holds the input");
                let buffer = (input, output);
                return Err(WorkError { error, buffer });
            }
        };
        let ends = [(&input, &layouts[0]), (&output, &layouts[1])];
        let ends = ends.map(|(region, layout)| (region.count(), layout.layout()));
        let bound = self.bind_into(call.dtype(I::Element::DTYPE), ends);
        let memory = Memory {
            input: Some(input),
            output: Some(output),
        };
        Work::start(&self.core, memory, claim, |memory| {
            self.post(bound?, memory)
        })
    }

    /// Runs a collective, waits for it to complete, and returns its sequence number.
    #[inline]
    pub(super) fn run(&self, bound: Bound, memory: &mut Memory) -> Result<u64> {
        let begin = |runtime: &Runtime, group, start: &mut Start| runtime.begin(group, start);
        let (sequence, ticket) = self.issue(bound, memory, begin)?;
        match ticket {
            Some(ticket) => self.finish(ticket, memory).map(|()| sequence),
            None => Ok(sequence),
        }
    }

    /// Waits for an operation to complete and puts its memory back into `memory`.
    pub(super) fn finish(&self, ticket: Ticket, memory: &mut Memory) -> Result<()> {
        let (given_back, end) = self.core.parts.runtime.get()?.wait(ticket);
        *memory = given_back;
        end
    }

    /// Starts a collective. The polling threads then advance it. If an error is returned, `memory`
    /// still contains the buffers.
    pub(super) fn post(&self, bound: Bound, memory: &mut Memory) -> Result<Ticket> {
        let post = |runtime: &Runtime, group, start: &mut Start| {
            runtime.post(group, Order::Collectives, start)
        };
        self.issue(bound, memory, post).map(|(_, ticket)| ticket)
    }

    /// Issues a collective as the next call in the group's order. `start` passes it to the engine.
    /// Returns the sequence number of the call and the result of `start`.
    #[inline]
    fn issue<R>(
        &self,
        bound: Bound,
        memory: &mut Memory,
        start: impl FnOnce(&Runtime, u32, &mut Start<'_>) -> Result<R>,
    ) -> Result<(u64, R)> {
        let parts = &self.core.parts;
        let runtime = parts.runtime.get()?;
        let how = (bound.place(memory), bound.lengths);
        let _quiet = runtime.forbid_user_code();
        let mut issued = self.enter()?;
        let (sequence, prepared) = self.number(&mut issued, bound.call, how, memory)?;
        memory.scale(bound.call.op.and_then(ReduceOp::factor));
        let mut call = Start {
            prepared,
            sequence,
            memory,
            timeout: self.timeout,
            gate: None,
        };
        Ok((sequence, start(runtime, parts.group, &mut call)?))
    }

    /// Assigns the next sequence number in the group to the call. Returns that number and the
    /// call's program.
    #[inline]
    pub(super) fn number<'a>(
        &self,
        issued: &'a mut Issued,
        call: Call,
        (placement, lengths): (Placement, Lengths),
        memory: &Memory,
    ) -> Result<(u64, &'a Arc<Prepared>)> {
        self.check_peer("root", call.root)?;
        let key = Key {
            call: Call {
                algorithm: forced(issued.algorithm, call),
                op: call.op.map(ReduceOp::agreed),
                ..call
            },
            placement,
            is_exposed: issued.exposes(placement, memory),
        };
        let prepared = issued.cache.laid(key, lengths)?;
        issued.collectives += 1;
        Ok((issued.collectives, prepared))
    }
}

/// Returns `algorithm`, which the program or a setting requires, if it supports the collective.
/// Otherwise, returns `None`, so that an algorithm is chosen automatically.
pub(super) fn forced(algorithm: Option<Algorithm>, call: Call) -> Option<Algorithm> {
    let collective = call.collective()?;
    algorithm.filter(|algorithm| entry(collective, *algorithm).is_some())
}

pub(super) fn check_length(what: &str, length: usize, wanted: usize) -> Result<()> {
    if length == wanted {
        return Ok(());
    }
    Err(Error::usage(format!(
        "{what} has {length} elements, but must have {wanted}; pass a buffer of that length"
    )))
}
