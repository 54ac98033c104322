//! The operations of one order, with their memory and their links.

use super::cache::{MessageEnd, Prepared};
use super::gate::Gate;
use super::log::Log;
use super::medium::Broken;
use super::medium::host::{Buffers, HostMedium, Links};
use super::program::Program;
use super::reservations::Reservations;
use super::run::Run;
use crate::error::{Error, Result};
use crate::limits::SCRATCH_KEPT_FOR;
use crate::protocol::call::Call;
use crate::protocol::session::Session;
use crate::reduce::scale;
use crate::sys::memory::Region;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Which of a group's two orders an operation belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Collectives: one order for the whole group.
    Collectives,
    /// Send and receive: one order for each directed pair of ranks.
    Pairs,
}

/// The caller's memory of an operation. In place, the output is the buffer and there is no input.
#[derive(Debug, Default)]
pub struct Memory {
    /// What is only read.
    pub input: Option<Region>,
    /// What is written.
    pub output: Option<Region>,
}

impl Memory {
    /// Multiplies this rank's contribution by `factor`, before a call in place.
    pub fn scale(&mut self, factor: Option<f64>) {
        if let (Some(factor), Some(output)) = (factor, &mut self.output) {
            scale(output.dtype(), output.bytes_mut(), factor);
        }
    }

    /// A buffer that is both.
    #[must_use]
    pub fn in_place(buffer: Region) -> Self {
        Self {
            input: None,
            output: Some(buffer),
        }
    }
}

/// What it takes to start an operation.
pub struct Start<'a> {
    /// The call and its program.
    pub prepared: &'a Arc<Prepared>,
    /// The collective's number. The group numbers messages itself.
    pub sequence: u64,
    /// What the call is made on.
    pub memory: &'a mut Memory,
    /// How long it may take; [`PATIENT`](crate::limits::PATIENT) starts no clock.
    pub timeout: Duration,
    /// What it waits for before it takes part.
    pub gate: Option<Box<dyn Gate>>,
}

/// How an operation ended, with its memory.
pub type End = (Memory, Result<()>);

/// A place for an operation. Places are used again.
#[derive(Default)]
pub(super) struct Slot {
    prepared: Option<Arc<Prepared>>,
    /// 0 while a message has none.
    pub(super) sequence: u64,
    pub(super) run: Run,
    memory: Memory,
    pub(super) scratch: Vec<u8>,
    gate: Option<Box<dyn Gate>>,
    pub(super) timeout: Duration,
    /// The rank whose timeout it is, if not this one's.
    pub(super) clock_of: Option<u32>,
    /// How long it had been under way when that rank's clock started.
    pub(super) waited_before: Duration,
    /// When time first passed over it.
    pub(super) since: Option<Duration>,
    /// How often the peers were told of the waiting.
    pub(super) notices: u32,
    /// How long it had waited when the last of these notices was due.
    pub(super) noticed_at: Duration,
    /// Whether the user was warned that it waits.
    pub(super) is_warned_of: bool,
    pub(super) is_abandoned: bool,
    pub(super) result: Option<Result<()>>,
    /// When it ended, once a clock was looked at.
    pub(super) ended_at: Option<Duration>,
}

impl Slot {
    /// Keeps what it takes to go on with an operation after its caller has let go of it.
    pub(super) fn keep(&mut self, start: &mut Start<'_>) {
        self.prepared = Some(Arc::clone(start.prepared));
        self.sequence = start.sequence;
        self.memory = std::mem::take(start.memory);
        self.gate = start.gate.take();
        self.timeout = start.timeout;
        self.clock_of = None;
        self.waited_before = Duration::ZERO;
        self.since = None;
        self.notices = 0;
        self.noticed_at = Duration::ZERO;
        self.is_warned_of = false;
        self.is_abandoned = false;
        self.result = None;
        self.ended_at = None;
    }

    /// The call that is carried out.
    pub(super) fn call(&self) -> Option<Call> {
        let prepared = self.prepared.as_ref()?;
        Some(prepared.call.numbered(self.sequence))
    }

    pub(super) fn program(&self) -> Option<&Program> {
        self.prepared.as_ref().map(|prepared| &prepared.program)
    }

    /// Which end of a message it is, if it is one.
    pub(super) fn message_end(&self) -> Option<MessageEnd> {
        self.prepared.as_ref()?.end
    }

    /// A receive from any rank is one from `peer` from now on.
    pub(super) fn receive_from(&mut self, peer: usize) {
        if self.unmatched().is_some()
            && let Some(prepared) = &mut self.prepared
        {
            *prepared = Arc::new(prepared.received_from(peer));
        }
    }

    /// Whether the operation takes part: it has its number, and its input is in place.
    pub(super) fn has_begun(&self) -> bool {
        let has_number = self.sequence > 0 || self.message_end().is_none();
        has_number && self.gate.as_ref().is_none_or(|gate| gate.is_ready())
    }

    /// Whether the device's stream has come to the operation.
    pub(super) fn has_come(&self) -> bool {
        self.gate.as_ref().is_none_or(|gate| gate.has_come())
    }

    /// What it takes to advance the operation.
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

/// The operations of one order, oldest first, and the links that they share.
pub(super) struct Queue {
    pub(super) links: Links,
    /// The longest message that every link takes whole.
    capacity: usize,
    pub(super) slots: Vec<Slot>,
    pub(super) free: Vec<usize>,
    pub(super) order: VecDeque<usize>,
    /// Operations that have ended and bear no time yet.
    pub(super) unstamped: usize,
    /// Bytes of scratch of all places.
    scratch_bytes: usize,
    /// Operations in a row that needed much less of it.
    small_ones: u32,
    reservations: Reservations,
    /// When each step began and ended, if the program asked for that.
    pub(super) log: Option<Box<Log>>,
    /// Whether a send that its link does not take holds up only later ones to the same peer.
    is_by_peer: bool,
    /// Memory of abandoned operations that have ended: dropping it may run a program's code.
    pub(super) let_go: Vec<Memory>,
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
            let_go: Vec::new(),
        }
    }

    /// What is under way, oldest first.
    pub(super) fn operations(&self) -> impl Iterator<Item = &Slot> {
        self.order.iter().map(|slot| &self.slots[*slot])
    }

    /// Whether every link takes the program's messages whole.
    pub(super) fn takes_whole(&self, program: &Program) -> bool {
        program.longest_bytes.is_some_and(|longest| {
            longest <= self.capacity
                || program
                    .peers()
                    .all(|peer| longest <= self.links.capacity(peer))
        })
    }

    /// A call is about to begin.
    #[inline]
    pub(super) fn note(&mut self, sequence: u64, prepared: &Arc<Prepared>) {
        if let Some(log) = &mut self.log {
            log.call(sequence, prepared);
        }
    }

    /// A place where `program` begins; it is not in the queue yet.
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

    /// Once enough operations in a row were small, lets go of the scratch of large ones: `index` is
    /// the place of the last, which needs so many bytes.
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
            self.let_go.push(memory);
        }
    }

    /// Ends every operation; says whether there was one.
    pub(super) fn fail(&mut self, error: &Error) -> bool {
        let ended = !self.order.is_empty();
        while let Some(index) = self.order.pop_front() {
            self.finish(index, Err(error.clone()));
        }
        ended
    }

    /// Whether an operation that was abandoned is under way.
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
mod tests {
    use super::*;

    #[test]
    fn scratch_shrinks_after_many_operations_that_need_little() {
        let connect = Box::new(|_| -> Box<dyn crate::link::Link> { panic!("no link is used") });
        let mut queue = Queue::new(Order::Collectives, Links::new(1, connect), 0, 1);
        let needing = |scratch_bytes| Program {
            scratch_bytes,
            ..Program::default()
        };
        let mut run = |scratch_bytes| {
            let index = queue.place(&needing(scratch_bytes));
            queue.free.push(index);
            queue.slots[index].scratch.capacity()
        };
        // A large operation now and then keeps its memory.
        for _ in 0..3 {
            assert_eq!(run(1 << 20), 1 << 20);
            for _ in 1..SCRATCH_KEPT_FOR {
                assert_eq!(run(100), 1 << 20);
            }
        }
        assert_eq!(run(100), 100);
        assert_eq!(run(0), 100);
    }
}
