//! Holds the operations in one [`Order`], with the memory and the links that they use.

use super::cache::{MessageEnd, Prepared};
use super::gate::Gate;
use super::log::Log;
use super::medium::Broken;
use super::medium::host::{Buffers, HostMedium, Links};
use super::program::Program;
use super::reservations::Reservations;
use super::run::Run;
use super::stats::Class;
use crate::error::{Error, Result};
use crate::limits::SCRATCH_KEPT_FOR;
use crate::protocol::call::Call;
use crate::protocol::session::Session;
use crate::reduce::scale;
use crate::sys::memory::Region;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// One of a group's two orders of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Collectives, in a single order for the group.
    Collectives,
    /// Sends and receives, in a separate order for each directed pair of ranks.
    Pairs,
}

/// The caller's memory for an operation. An in-place call has no input, and its buffer is the
/// output.
#[derive(Debug, Default)]
pub struct Memory {
    /// Memory that is only read.
    pub input: Option<Region>,
    /// Memory that is written.
    pub output: Option<Region>,
}

impl Memory {
    /// Multiplies this rank's contribution to an in-place call by `factor`.
    pub fn scale(&mut self, factor: Option<f64>) {
        if let (Some(factor), Some(output)) = (factor, &mut self.output) {
            scale(output.dtype(), output.bytes_mut(), factor);
        }
    }

    /// Creates the memory for an in-place call on `buffer`.
    #[must_use]
    pub fn in_place(buffer: Region) -> Self {
        Self {
            input: None,
            output: Some(buffer),
        }
    }
}

/// Arguments for starting an operation.
pub struct Start<'a> {
    /// The call and its program.
    pub prepared: &'a Arc<Prepared>,
    /// Sequence number of the collective; 0 for a message, because the group numbers messages
    /// itself.
    pub sequence: u64,
    /// The memory that the call operates on.
    pub memory: &'a mut Memory,
    /// Timeout of the call, or [`NO_TIMEOUT`](crate::limits::NO_TIMEOUT).
    pub timeout: Duration,
    /// The gate that must be ready before the operation begins.
    pub gate: Option<Box<dyn Gate>>,
}

/// The result of an operation, together with its memory.
pub type End = (Memory, Result<()>);

/// The state of an operation. Slots are reused.
#[derive(Default)]
pub(super) struct Slot {
    prepared: Option<Arc<Prepared>>,
    /// Sequence number of the operation; 0 for a message that has not been numbered yet.
    pub(super) sequence: u64,
    pub(super) run: Run,
    memory: Memory,
    pub(super) scratch: Vec<u8>,
    gate: Option<Box<dyn Gate>>,
    pub(super) timeout: Duration,
    /// The rank whose timeout applies; `None` if this rank's own timeout applies.
    pub(super) timeout_owner: Option<u32>,
    /// The time that the operation had been in flight when it adopted another rank's timeout.
    pub(super) waited_before: Duration,
    /// The time from which the timeout counts: the first tick, or the adoption of another rank's
    /// timeout.
    pub(super) since: Option<Duration>,
    /// Number of notices that have been sent to peers.
    pub(super) notices: u32,
    /// The time at which the last notice was due, relative to `since`.
    pub(super) noticed_at: Duration,
    /// `true` if the user has been warned about the wait.
    pub(super) is_warned_of: bool,
    pub(super) is_abandoned: bool,
    pub(super) result: Option<Result<()>>,
    /// The time at which the operation ended, once that time has been recorded.
    pub(super) ended_at: Option<Duration>,
}

impl Slot {
    /// Stores everything that the operation needs to continue without its caller.
    pub(super) fn keep(&mut self, start: &mut Start<'_>) {
        self.prepared = Some(Arc::clone(start.prepared));
        self.sequence = start.sequence;
        self.memory = std::mem::take(start.memory);
        self.gate = start.gate.take();
        self.timeout = start.timeout;
        self.timeout_owner = None;
        self.waited_before = Duration::ZERO;
        self.since = None;
        self.notices = 0;
        self.noticed_at = Duration::ZERO;
        self.is_warned_of = false;
        self.is_abandoned = false;
        self.result = None;
        self.ended_at = None;
    }

    /// Returns the operation's call, including its sequence number.
    pub(super) fn call(&self) -> Option<Call> {
        let prepared = self.prepared.as_ref()?;
        Some(prepared.call.numbered(self.sequence))
    }

    pub(super) fn program(&self) -> Option<&Program> {
        self.prepared.as_ref().map(|prepared| &prepared.program)
    }

    /// Returns this rank's end of the message; `None` for a collective.
    pub(super) fn message_end(&self) -> Option<MessageEnd> {
        self.prepared.as_ref()?.end
    }

    /// Returns the class in which the operation is counted.
    pub(super) fn class(&self) -> Option<Class> {
        self.prepared.as_ref()?.class()
    }

    /// Turns a receive from any rank into a receive from `peer`.
    pub(super) fn receive_from(&mut self, peer: usize) {
        if self.unmatched().is_some()
            && let Some(prepared) = &mut self.prepared
        {
            *prepared = Arc::new(prepared.received_from(peer));
        }
    }

    /// Returns `true` if the operation may run because it has its sequence number and its gate is
    /// ready.
    pub(super) fn has_begun(&self) -> bool {
        let has_number = self.sequence > 0 || self.message_end().is_none();
        has_number && self.gate.as_ref().is_none_or(|gate| gate.is_ready())
    }

    /// Returns `true` if the device's stream has reached the operation, or if there is no stream.
    pub(super) fn is_reached(&self) -> bool {
        self.gate.as_ref().is_none_or(|gate| gate.is_reached())
    }

    /// Returns the parts that are needed to advance the operation: its progress, its program and
    /// its medium.
    fn parts<'a>(
        &'a mut self,
        links: &'a mut Links,
        log: Option<&'a mut Log>,
    ) -> Option<(&'a mut Run, &'a Program, HostMedium<'a>)> {
        let prepared = self.prepared.as_ref()?;
        let medium = medium(
            prepared,
            self.sequence,
            &mut self.memory,
            &mut self.scratch,
            (links, log),
        );
        Some((&mut self.run, &prepared.program, medium))
    }
}

#[inline]
pub(super) fn medium<'a>(
    prepared: &'a Prepared,
    sequence: u64,
    memory: &'a mut Memory,
    scratch: &'a mut [u8],
    (links, log): (&'a mut Links, Option<&'a mut Log>),
) -> HostMedium<'a> {
    let Memory { input, output } = memory;
    HostMedium {
        links,
        buffers: Buffers {
            input: input.as_ref().map_or(&[], Region::bytes),
            output: output.as_mut().map_or(&mut [], Region::bytes_mut),
            scratch,
        },
        arithmetic: &prepared.arithmetic,
        sequence,
        digest: prepared.digest,
        log,
    }
}

/// The operations in one order, and the links that they share.
pub(super) struct Queue {
    pub(super) links: Links,
    /// Maximum number of bytes in a message that every link accepts completely, as determined when
    /// the queue was created; 0 if a link did not exist at that time.
    capacity: usize,
    pub(super) slots: Vec<Slot>,
    pub(super) free: Vec<usize>,
    pub(super) order: VecDeque<usize>,
    /// Number of operations that have ended but whose end times have not been recorded.
    pub(super) unstamped: usize,
    /// Total number of bytes of scratch in all slots.
    scratch_bytes: usize,
    /// Number of consecutive operations that needed less than a quarter of `scratch_bytes`.
    small_ones: u32,
    pub(super) reservations: Reservations,
    /// The log in which steps are recorded, if recording was requested.
    pub(super) log: Option<Box<Log>>,
    /// `true` if a full link blocks only later sends to the same peer.
    is_by_peer: bool,
    /// Memory of abandoned operations that have ended. Dropping this memory may run user code.
    pub(super) released_memory: Vec<Memory>,
}

impl Queue {
    pub(super) fn new(order: Order, links: Links, rank: usize, world_size: usize) -> Self {
        let peers = (0..world_size).filter(|peer| *peer != rank);
        let capacity = peers.map(|peer| links.capacity(peer)).min();
        Self {
            capacity: capacity.unwrap_or(0),
            links,
            slots: Vec::new(),
            free: Vec::new(),
            order: VecDeque::with_capacity(1),
            unstamped: 0,
            scratch_bytes: 0,
            small_ones: 0,
            reservations: Reservations::new(world_size),
            log: None,
            is_by_peer: order == Order::Pairs,
            released_memory: Vec::new(),
        }
    }

    /// Returns the operations in flight, with the oldest first.
    pub(super) fn operations(&self) -> impl Iterator<Item = &Slot> {
        self.order.iter().map(|slot| &self.slots[*slot])
    }

    /// Returns `true` if every link accepts the program's messages completely.
    pub(super) fn accepts_complete_messages(&self, program: &Program) -> bool {
        program.longest_bytes.is_some_and(|longest| {
            longest <= self.capacity
                || program
                    .peers()
                    .all(|peer| longest <= self.links.capacity(peer))
        })
    }

    /// Logs the start of a call.
    #[inline]
    pub(super) fn note(&mut self, sequence: u64, prepared: &Arc<Prepared>) {
        if let Some(log) = &mut self.log {
            log.call(sequence, prepared);
        }
    }

    /// Prepares a slot for a new run of `program` and returns the slot's index. Does not queue the
    /// slot.
    #[inline]
    pub(super) fn place(&mut self, program: &Program) -> usize {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        let slot = &mut self.slots[index];
        slot.run.start(program);
        let (has, needs) = (slot.scratch.len(), program.scratch_bytes);
        if has < needs {
            slot.scratch.resize(needs, 0);
            self.scratch_bytes += needs - has;
        }
        if needs < self.scratch_bytes / 4 {
            self.shrink(index, needs);
        } else {
            self.small_ones = 0;
        }
        index
    }

    /// Releases the scratch of large operations after [`SCRATCH_KEPT_FOR`] consecutive small
    /// operations. `index` is the slot of the last operation, which needs `bytes` bytes.
    #[cold]
    fn shrink(&mut self, index: usize, bytes: usize) {
        self.small_ones += 1;
        if self.small_ones < SCRATCH_KEPT_FOR {
            return;
        }
        self.small_ones = 0;
        for free in self.free.iter().copied().chain([index]) {
            let scratch = &mut self.slots[free].scratch;
            self.scratch_bytes -= scratch.len().saturating_sub(bytes);
            scratch.truncate(bytes);
            scratch.shrink_to_fit();
        }
    }

    pub(super) fn poll(&mut self, session: &Session) -> std::result::Result<bool, (usize, Broken)> {
        let mut advanced = false;
        self.reservations.begin_pass();
        let mut at = 0;
        while let Some(index) = self.order.get(at).copied() {
            if self.is_by_peer {
                self.reservations.is_blocked = false;
            }
            let slot = &mut self.slots[index];
            // With thousands of messages in flight, most of them wait for an earlier one.
            if slot
                .message_end()
                .is_some_and(|end| self.reservations.is_reserved(end))
            {
                at += 1;
                continue;
            }
            let has_begun = slot.has_begun() && slot.unready(session).is_empty();
            let log = self.log.as_deref_mut();
            let Some((run, program, mut medium)) = slot.parts(&mut self.links, log) else {
                break;
            };
            if has_begun {
                let polled = run.poll(program, &mut medium, &mut self.reservations);
                advanced |= polled.map_err(|broken| (index, broken))?;
            }
            if has_begun && run.is_done() {
                self.order.remove(at);
                self.finish(index, Ok(()));
                advanced = true;
            } else {
                at += 1;
                if at < self.order.len() {
                    run.reserve(program, &mut self.reservations);
                }
            }
        }
        Ok(advanced)
    }

    fn finish(&mut self, index: usize, result: Result<()>) {
        let slot = &mut self.slots[index];
        if let Some(gate) = slot.gate.take() {
            gate.open(result.is_ok());
        }
        slot.result = Some(result);
        self.unstamped += 1;
        if slot.is_abandoned
            && let Some((memory, _)) = self.take(index)
        {
            self.released_memory.push(memory);
        }
    }

    /// Ends every operation with `error`. Returns `true` if an operation was in flight.
    pub(super) fn fail(&mut self, error: &Error) -> bool {
        let ended = !self.order.is_empty();
        while let Some(index) = self.order.pop_front() {
            self.finish(index, Err(error.clone()));
        }
        ended
    }

    /// Returns `true` if an abandoned operation is in flight.
    pub(super) fn has_abandoned(&self) -> bool {
        self.operations().any(|slot| slot.is_abandoned)
    }

    pub(super) fn take(&mut self, index: usize) -> Option<End> {
        let slot = &mut self.slots[index];
        let result = slot.result.take()?;
        self.unstamped -= usize::from(slot.ended_at.is_none());
        self.free.push(index);
        Some((std::mem::take(&mut slot.memory), result))
    }

    pub(super) fn stamp(&mut self, now: Duration) {
        if self.unstamped == 0 {
            return;
        }
        self.unstamped = 0;
        for slot in self.slots.iter_mut().filter(|slot| slot.result.is_some()) {
            slot.ended_at.get_or_insert(now);
        }
    }
}

#[cfg(test)]
mod tests;
