//! The operations of one set of ranks, as one of them sees it.

use super::cache::MessageEnd;
use super::log::Log;
use super::medium::host::Links;
pub use super::queue::{End, Memory, Order, Start};
use super::queue::{Queue, Slot, medium};
use crate::error::{Error, Result};
use crate::limits::STALL_WARNING_DEFAULT;
use crate::link::shm::exposed::Allocation;
use crate::protocol::members::Members;
use crate::protocol::session::Session;
use std::collections::HashMap;
use std::time::Duration;

/// One set of ranks, as one of them sees it.
pub struct Group {
    pub(super) rank: usize,
    pub(super) session: Session,
    pub(super) collectives: Queue,
    pub(super) pairs: Queue,
    pub(super) numbers: Numbers,
    /// The thread that made the last call; 0 before the first.
    pub(super) caller: u64,
    pub(super) alarm: Alarm,
    /// Whether [`Group::take_failure`] has returned the first error.
    pub(super) is_failure_taken: bool,
}

/// How many messages this rank has issued.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    pub(super) sent: HashMap<usize, u64>,
    pub(super) received: HashMap<usize, u64>,
    /// Receives under way that have no number yet.
    pub(super) waiting: usize,
    /// The rank that the next receive from any rank looks at first, so that each gets its turn.
    pub(super) first: usize,
}

/// When a group warns of a call that waits, and the warning.
#[derive(Clone, Debug)]
pub(super) struct Alarm {
    /// A call that has waited this long is warned of; never, if that is zero.
    pub(super) after: Duration,
    pub(super) line: Option<String>,
}

impl Default for Alarm {
    fn default() -> Self {
        Self {
            after: STALL_WARNING_DEFAULT,
            line: None,
        }
    }
}

impl Group {
    /// The group of all ranks, as `rank` of `world_size` sees it, with links for each order.
    #[must_use]
    pub fn new(rank: usize, world_size: usize, collectives: Links, pairs: Links) -> Self {
        Self::among(rank, Members::everyone(world_size), [collectives, pairs])
    }

    /// The group of these members, as its rank `rank` sees it, with links for each order.
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
            alarm: Alarm::default(),
            is_failure_taken: false,
        }
    }

    /// The group's ranks.
    #[must_use]
    pub fn members(&self) -> &Members {
        self.session.members()
    }

    /// Whether the first error is known.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.session.first_error().is_some()
    }

    /// The first error; or this rank's own, while it is not known which one was first.
    #[must_use]
    pub fn error(&self) -> Option<&Error> {
        self.session.error()
    }

    /// This rank's number in it.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// From now on calls are checked: all ranks make the same collective before it begins, and a
    /// send waits for its receive.
    pub fn check_calls(&mut self) {
        self.session.check_calls();
    }

    /// Collectives can expose what lies in this memory.
    pub fn admit(&mut self, allocation: Allocation) {
        if let Some(local) = self.collectives.links.make_local() {
            local.admit(allocation);
        }
    }

    /// From now on it is written down what collectives do when; false, and nothing changes, if that
    /// is done already.
    pub fn start_log(&mut self, log: Log) -> bool {
        let is_free = self.collectives.log.is_none();
        if is_free {
            self.collectives.log = Some(Box::new(log));
        }
        is_free
    }

    /// Writes down no more; what was written.
    pub fn take_log(&mut self) -> Option<Log> {
        self.collectives.log.take().map(|log| *log)
    }

    pub(super) fn queue(&mut self, order: Order) -> &mut Queue {
        match order {
            Order::Collectives => &mut self.collectives,
            Order::Pairs => &mut self.pairs,
        }
    }

    /// Starts an operation; returns its place. It keeps the memory.
    ///
    /// # Errors
    /// The group's first error, if it has failed already; then the memory stays in `start`.
    pub fn post(&mut self, order: Order, start: &mut Start<'_>) -> Result<usize> {
        if let Some(error) = self.session.first_error().cloned() {
            if let Some(gate) = start.gate.take() {
                gate.open(false);
            }
            return Err(error);
        }
        let prepared = start.prepared;
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

    /// Starts a collective, and runs it step by step while the caller waits, if nothing else is
    /// under way and every link takes its messages whole. `patience` says, after so many fruitless
    /// looks, whether to look once more. `None` when it has ended, the memory being in `start`
    /// still; else the place of the operation, which has the memory and is to be polled.
    ///
    /// # Errors
    /// The group's first error, if it has failed already; then the memory stays in `start`.
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
        if !is_alone || start.gate.is_some() || !queue.takes_whole(&prepared.program) {
            return self.post(Order::Collectives, start).map(Some);
        }
        // Links that take whole messages are open.
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
            self.broken(Order::Collectives, index, broken);
        }
        Ok(Some(index))
    }

    /// Advances every operation as far as it goes now; says whether anything moved.
    pub fn poll(&mut self) -> bool {
        if self.session.has_error() {
            return self.settle();
        }
        if let Err((slot, broken)) = self.number_waiting() {
            self.broken(Order::Pairs, slot, broken);
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
                    self.broken(order, slot, broken);
                    return true;
                }
            }
        }
        if self.collectives.order.is_empty() {
            self.session.idle();
        }
        advanced
    }

    /// Takes an operation that has ended. `None` while it is under way.
    pub fn take(&mut self, order: Order, slot: usize) -> Option<End> {
        self.queue(order).take(slot)
    }

    /// The rank from which a receive that has ended came.
    pub fn sender(&self, slot: usize) -> Option<usize> {
        match self.pairs.slots[slot].message_end() {
            Some(MessageEnd::From(peer)) => Some(peer),
            _ => None,
        }
    }

    /// Lets an operation finish by itself; its memory is [let go](Group::let_go) then. One that has
    /// ended is taken.
    pub fn abandon(&mut self, order: Order, slot: usize) -> Option<End> {
        let queue = self.queue(order);
        let end = queue.take(slot);
        queue.slots[slot].is_abandoned = end.is_none();
        end
    }

    /// The memory of abandoned operations that have ended.
    pub fn let_go(&mut self) -> impl Iterator<Item = Memory> {
        let queues = [&mut self.collectives, &mut self.pairs].into_iter();
        queues.flat_map(|queue| queue.let_go.drain(..))
    }

    /// Whether there is some.
    #[must_use]
    pub fn has_let_go(&self) -> bool {
        !self.collectives.let_go.is_empty() || !self.pairs.let_go.is_empty()
    }

    /// Whether an operation that was abandoned is under way.
    #[must_use]
    pub fn has_abandoned(&self) -> bool {
        self.collectives.has_abandoned() || self.pairs.has_abandoned()
    }

    /// Whether an operation that was not taken yet has ended, and when, if that was noted.
    #[must_use]
    pub fn ended(&mut self, order: Order, slot: usize) -> (bool, Option<Duration>) {
        let slot = &self.queue(order).slots[slot];
        (slot.result.is_some(), slot.ended_at)
    }

    /// Whether an operation has ended that bears no time yet.
    #[must_use]
    pub fn has_unstamped(&self) -> bool {
        self.collectives.unstamped + self.pairs.unstamped > 0
    }

    /// Notes `now` as the end of what has ended since the last call.
    pub fn stamp(&mut self, now: Duration) {
        self.collectives.stamp(now);
        self.pairs.stamp(now);
    }

    /// Whether an operation waits for a device, which wakes no thread.
    #[must_use]
    pub fn awaits_gate(&self) -> bool {
        let mut operations = self.collectives.operations();
        operations.any(|slot| !slot.has_begun())
    }

    /// Whether any operation is under way.
    #[must_use]
    pub fn is_calling(&self) -> bool {
        !self.collectives.order.is_empty() || !self.pairs.order.is_empty()
    }
}
