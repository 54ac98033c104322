//! Holds a group's operations, as one of its ranks sees them.

use super::cache::{MessageEnd, Prepared};
use super::log::Log;
use super::medium::host::Links;
pub use super::queue::{End, Memory, Order, Start};
use super::queue::{Queue, Slot, medium};
use super::stats::{CallStats, Class, Stats};
use crate::error::{Error, Result};
use crate::event::Event;
use crate::limits::STALL_WARNING_DEFAULT;
use crate::link::shm::exposed::Allocation;
use crate::plan::Collective;
use crate::protocol::call::Medium;
use crate::protocol::members::Members;
use crate::protocol::session::Session;
use crate::sys::memory::Region;
use std::collections::HashMap;
use std::time::Duration;

/// A group, as one of its ranks sees it.
pub struct Group {
    pub(super) rank: usize,
    pub(super) session: Session,
    pub(super) collectives: Queue,
    pub(super) pairs: Queue,
    pub(super) numbers: Numbers,
    /// ID of the thread that made the last call; 0 before the first call.
    pub(super) caller: u64,
    pub(super) wait_events: WaitEvents,
    stats: Stats,
    /// `true` once [`Group::take_failure`] has returned the first error.
    pub(super) is_failure_taken: bool,
}

/// The sequence numbers of a rank's messages, indexed by peer, and the state of its receives from
/// any rank.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    pub(super) sent: HashMap<usize, u64>,
    pub(super) received: HashMap<usize, u64>,
    /// Number of receives in flight to which no sequence number has been assigned yet.
    pub(super) waiting: usize,
    /// The rank that the next receive from any rank checks first. It changes, so that all ranks are
    /// treated equally.
    pub(super) first: usize,
}

/// The events about calls that wait for a long time.
#[derive(Clone, Debug)]
pub(super) struct WaitEvents {
    /// The time that a call must wait before a warning is due. Zero disables warnings.
    pub(super) warns_after: Duration,
    /// The latest warning that has not been taken yet.
    pub(super) stall: Option<Event>,
    /// The latest event about slow peers that has not been taken yet.
    pub(super) slow: Option<Event>,
}

impl Default for WaitEvents {
    fn default() -> Self {
        Self {
            warns_after: STALL_WARNING_DEFAULT,
            stall: None,
            slow: None,
        }
    }
}

impl Group {
    /// Creates the group of all `world_size` ranks, as `rank` sees it, with separate links for each
    /// order.
    #[must_use]
    pub fn new(rank: usize, world_size: usize, collectives: Links, pairs: Links) -> Self {
        Self::among(rank, Members::everyone(world_size), [collectives, pairs])
    }

    /// Creates the group of `members`, as its rank `rank` sees it, with separate links for each
    /// order.
    #[must_use]
    pub fn among(rank: usize, members: Members, [collectives, pairs]: [Links; 2]) -> Self {
        let count = members.count();
        Self {
            rank,
            session: Session::among(rank, members),
            collectives: Queue::new(Order::Collectives, collectives, rank, count),
            pairs: Queue::new(Order::Pairs, pairs, rank, count),
            numbers: Numbers::default(),
            caller: 0,
            wait_events: WaitEvents::default(),
            stats: Stats::default(),
            is_failure_taken: false,
        }
    }

    /// Returns the members of the group.
    #[must_use]
    pub fn members(&self) -> &Members {
        self.session.members()
    }

    /// Returns `true` if the first error is known.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.session.first_error().is_some()
    }

    /// Returns the first error if it is known, or else this rank's pending error.
    #[must_use]
    pub fn error(&self) -> Option<&Error> {
        self.session.error()
    }

    /// Returns this rank's group rank.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Enables call checking. With call checking, a collective begins only after all ranks have
    /// made the same call, and a send waits for its receive.
    pub fn check_calls(&mut self) {
        self.session.check_calls();
    }

    /// Allows collectives to expose memory in `allocation`.
    pub fn admit(&mut self, allocation: Allocation) {
        if let Some(local) = self.collectives.links.make_local() {
            local.admit(allocation);
        }
    }

    /// Returns how often this rank has made each kind of call.
    pub fn stats(&self) -> Vec<CallStats> {
        self.stats.rows().collect()
    }

    /// Returns the class of an operation in flight.
    pub(crate) fn class_of(&mut self, order: Order, slot: usize) -> Option<Class> {
        self.queue(order).slots[slot].class()
    }

    /// Counts the time for which a thread waited for an operation of `class`.
    pub(crate) fn add_wait(&mut self, class: Class, time: Duration) {
        self.stats.add_wait(class, time);
    }

    /// Starts recording collectives in `log`. If a recording is already in progress, returns
    /// `false` and changes nothing.
    pub fn start_log(&mut self, log: Log) -> bool {
        let is_free = self.collectives.log.is_none();
        if is_free {
            self.collectives.log = Some(Box::new(log));
        }
        is_free
    }

    /// Stops recording and returns the log.
    pub fn take_log(&mut self) -> Option<Log> {
        self.collectives.log.take().map(|log| *log)
    }

    pub(super) fn queue(&mut self, order: Order) -> &mut Queue {
        match order {
            Order::Collectives => &mut self.collectives,
            Order::Pairs => &mut self.pairs,
        }
    }

    /// Starts an operation and returns its slot. The operation takes ownership of the memory.
    ///
    /// # Errors
    /// Returns the group's first error if the group has failed. In this case, the memory stays in
    /// `start`.
    pub fn post(&mut self, order: Order, start: &mut Start<'_>) -> Result<usize> {
        if let Some(error) = self.session.first_error().cloned() {
            if let Some(gate) = start.gate.take() {
                gate.open(false);
            }
            return Err(error);
        }
        let prepared = start.prepared;
        let bytes = bytes_of(prepared, start.memory);
        self.stats.count(prepared.class(), start.sequence, bytes);
        if order == Order::Collectives {
            let call = (&prepared.call, prepared.counts.as_ref());
            self.session
                .enter(call, prepared.digest, start.sequence, start.timeout);
        }
        let rank = self.rank;
        let queue = self.queue(order);
        match prepared.end {
            Some(MessageEnd::FromAny(ranks)) => {
                let others = (0..ranks).filter(|one| *one != rank);
                others.for_each(|one| queue.links.open(one));
            }
            _ => prepared
                .program
                .peers()
                .for_each(|one| queue.links.open(one)),
        }
        queue.note(start.sequence, prepared);
        let index = queue.place(&prepared.program);
        queue.slots[index].keep(start);
        queue.order.push_back(index);
        if order == Order::Pairs {
            self.number(index);
        }
        Ok(index)
    }

    /// Starts a collective. If nothing else is in flight and every link accepts the collective's
    /// messages completely, runs it step by step while the caller waits. Calls `patience` with the
    /// number of consecutive polls that moved nothing. `patience` returns `true` to poll again.
    ///
    /// Returns `None` if the collective has ended; the memory is still in `start`. Otherwise,
    /// returns the slot of the operation, which has taken ownership of the memory and must be
    /// polled.
    ///
    /// # Errors
    /// Returns the group's first error if the group has failed. In this case, the memory stays in
    /// `start`.
    #[inline]
    pub fn run(
        &mut self,
        start: &mut Start<'_>,
        patience: &mut dyn FnMut(u32) -> bool,
    ) -> Result<Option<usize>> {
        let queue = &mut self.collectives;
        let (prepared, sequence) = (start.prepared, start.sequence);
        let is_alone = queue.order.is_empty() && !self.session.has_error();
        let is_alone = is_alone && !self.session.checks_calls();
        if !is_alone || start.gate.is_some() || !queue.accepts_complete_messages(&prepared.program)
        {
            return self.post(Order::Collectives, start).map(Some);
        }
        // Links that are not open have no capacity, so the check above ensures that all links are
        // open.
        let bytes = bytes_of(prepared, start.memory);
        self.stats.count(prepared.class(), sequence, bytes);
        queue.note(sequence, prepared);
        let index = queue.place(&prepared.program);
        let Slot { run, scratch, .. } = &mut queue.slots[index];
        let means = (&mut queue.links, queue.log.as_deref_mut());
        let mut medium = medium(prepared, sequence, start.memory, scratch, means);
        let ran = run.block(&prepared.program, &mut medium, patience);
        let call = (&prepared.call, prepared.counts.as_ref());
        self.session
            .enter(call, prepared.digest, sequence, start.timeout);
        if let Ok(true) = ran {
            self.session.idle();
            queue.free.push(index);
            return Ok(None);
        }
        queue.slots[index].keep(start);
        queue.order.push_back(index);
        if let Err(broken) = ran {
            self.link_broken(Order::Collectives, index, broken);
        }
        Ok(Some(index))
    }

    /// Advances every operation until it must wait. Returns `true` if anything moved.
    pub fn poll(&mut self) -> bool {
        if self.session.has_error() {
            return self.settle();
        }
        if let Err((slot, broken)) = self.number_waiting() {
            self.link_broken(Order::Pairs, slot, broken);
            return true;
        }
        let mut advanced = false;
        for order in [Order::Collectives, Order::Pairs] {
            let polled = match order {
                Order::Collectives => self.collectives.poll(&self.session),
                Order::Pairs => self.pairs.poll(&self.session),
            };
            match polled {
                Ok(moved) => advanced |= moved,
                Err((slot, broken)) => {
                    self.link_broken(order, slot, broken);
                    return true;
                }
            }
        }
        if self.collectives.order.is_empty() {
            self.session.idle();
        }
        advanced
    }

    /// Takes the result of an operation that has ended. Returns `None` while the operation is in
    /// flight.
    pub fn take(&mut self, order: Order, slot: usize) -> Option<End> {
        self.queue(order).take(slot)
    }

    /// Returns the sender of a receive that has ended.
    pub fn sender(&self, slot: usize) -> Option<usize> {
        match self.pairs.slots[slot].message_end() {
            Some(MessageEnd::From(peer)) => Some(peer),
            _ => None,
        }
    }

    /// Lets an operation continue without its caller. When the operation ends, its memory is
    /// [released](Group::released_memory). If the operation has already ended, returns its result.
    pub fn abandon(&mut self, order: Order, slot: usize) -> Option<End> {
        let queue = self.queue(order);
        let end = queue.take(slot);
        queue.slots[slot].is_abandoned = end.is_none();
        end
    }

    /// Removes and returns the memory of abandoned operations that have ended.
    pub fn released_memory(&mut self) -> impl Iterator<Item = Memory> {
        let queues = [&mut self.collectives, &mut self.pairs].into_iter();
        queues.flat_map(|queue| queue.released_memory.drain(..))
    }

    /// Returns `true` if [`Group::released_memory`] would return memory.
    #[must_use]
    pub fn has_released_memory(&self) -> bool {
        !self.collectives.released_memory.is_empty() || !self.pairs.released_memory.is_empty()
    }

    /// Returns `true` if an abandoned operation is in flight.
    #[must_use]
    pub fn has_abandoned(&self) -> bool {
        self.collectives.has_abandoned() || self.pairs.has_abandoned()
    }

    /// Returns `true` if an operation has ended, together with the time at which it ended, if that
    /// was recorded. The result of the operation must not have been taken.
    #[must_use]
    pub fn ended(&mut self, order: Order, slot: usize) -> (bool, Option<Duration>) {
        let slot = &self.queue(order).slots[slot];
        (slot.result.is_some(), slot.ended_at)
    }

    /// Returns `true` if an operation has ended but the time has not been recorded.
    #[must_use]
    pub fn has_unstamped(&self) -> bool {
        self.collectives.unstamped + self.pairs.unstamped > 0
    }

    /// Records `now` as the end of all operations that have ended since the last call.
    pub fn stamp(&mut self, now: Duration) {
        self.collectives.stamp(now);
        self.pairs.stamp(now);
    }

    /// Returns `true` if an operation is waiting for a device. A device does not wake any thread.
    #[must_use]
    pub fn waits_for_device(&self) -> bool {
        let mut operations = self.collectives.operations();
        operations.any(|slot| !slot.has_begun())
    }

    /// Returns `true` if any operation is in flight.
    #[must_use]
    pub fn is_calling(&self) -> bool {
        !self.collectives.order.is_empty() || !self.pairs.order.is_empty()
    }
}

/// Returns the number of bytes in the buffer of a call. If a call has two, the larger one counts.
#[inline]
fn bytes_of(prepared: &Prepared, memory: &Memory) -> usize {
    let call = &prepared.call;
    if call.collective() == Some(Collective::Barrier) {
        return 0;
    }
    if call.medium == Medium::Device {
        // The memory is only a piece of the buffer.
        return call.count * call.dtype.size();
    }
    let bytes = |region: &Option<Region>| region.as_ref().map_or(0, |one| one.bytes().len());
    bytes(&memory.input).max(bytes(&memory.output))
}
