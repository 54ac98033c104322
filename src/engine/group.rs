//! The operations of one set of ranks.

use super::channel::{Channel, Slot};
use super::in_order;
use super::operation::Operation;
use super::posting::{Broken, Posting, Prepared, Progress};
use crate::error::{Error, Result};
use crate::limits::WAITING_NOTICE_AFTER;
use crate::protocol::call::Call;
use crate::protocol::message::Message;
use crate::protocol::session::{Agreement, Session, To};
use crate::sys::memory::Region;
use crate::transport::shm::lent::Allocation;
use crate::transport::{LinkError, Transport};
use std::time::Duration;

/// Which of a group's two orders an operation belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelKind {
    /// Collectives: one order for the whole group.
    Collectives,
    /// Send and receive: one order for each directed pair of ranks.
    Pairs,
}

/// One set of ranks, as one of them sees it.
pub struct Group {
    rank: usize,
    session: Session,
    collectives: Channel,
    pairs: Channel,
}

impl Group {
    /// The group as `rank` of `world_size` sees it, with a transport for each channel.
    #[must_use]
    pub fn new(
        rank: usize,
        world_size: usize,
        collectives: Box<dyn Transport>,
        pairs: Box<dyn Transport>,
    ) -> Self {
        Self {
            rank,
            session: Session::new(rank, world_size),
            collectives: Channel::new(collectives, rank, world_size),
            pairs: Channel::new(pairs, rank, world_size),
        }
    }

    /// Collectives can lend what lies in this memory.
    pub fn admit(&mut self, allocation: Allocation) {
        self.collectives.transport.admit(allocation);
    }

    fn channel(&mut self, kind: ChannelKind) -> &mut Channel {
        match kind {
            ChannelKind::Collectives => &mut self.collectives,
            ChannelKind::Pairs => &mut self.pairs,
        }
    }

    /// Starts an operation; returns its slot.
    pub(super) fn post(
        &mut self,
        kind: ChannelKind,
        posting: Posting,
    ) -> std::result::Result<usize, (Error, Region)> {
        if let Some(error) = self.session.verdict().cloned() {
            // What was run in order may have lent the buffer.
            self.collectives.transport.withdraw();
            if let Some(gate) = posting.gate {
                gate.open(false);
            }
            return Err((error, posting.buffer));
        }
        let Prepared {
            call,
            digest,
            program,
            ..
        } = &*posting.prepared;
        match (kind, program.peers().next()) {
            (ChannelKind::Collectives, _) => self.session.enter(call, *digest, posting.sequence),
            (ChannelKind::Pairs, Some(peer)) => {
                let call = posting.prepared.numbered(posting.sequence);
                self.session.enter_pair(peer, &call);
            }
            (ChannelKind::Pairs, None) => {}
        }
        Ok(self.channel(kind).start(posting))
    }

    /// Runs a collective step by step while the caller waits, if nothing is under way and the
    /// links allow it; says whether it has ended.
    pub(super) fn run(
        &mut self,
        prepared: &Prepared,
        sequence: u64,
        buffer: &mut [u8],
        progress: &mut Progress,
        patience: &mut dyn FnMut(u32) -> bool,
    ) -> bool {
        let channel = &mut self.collectives;
        let is_alone = channel.queue.is_empty() && !self.session.is_troubled();
        if !is_alone || !channel.allows_order(prepared) {
            return false;
        }
        channel.make_room(&prepared.program);
        let transport = &mut *channel.transport;
        let ran = in_order::run(prepared, sequence, buffer, progress, transport, patience);
        // A broken link breaks again, for the operation to tell.
        let has_ended = matches!(ran, Ok(true));
        if has_ended {
            self.session
                .enter(&prepared.call, prepared.digest, sequence);
            self.session.idle();
        }
        has_ended
    }

    pub(super) fn poll(&mut self) -> bool {
        if self.session.is_troubled() {
            return self.settle();
        }
        let mut advanced = false;
        for kind in [ChannelKind::Collectives, ChannelKind::Pairs] {
            match self.channel(kind).poll() {
                Ok(moved) => advanced |= moved,
                Err((slot, broken)) => {
                    self.broken(kind, slot, broken);
                    return true;
                }
            }
        }
        if self.collectives.queue.is_empty() {
            self.session.idle();
        }
        advanced
    }

    pub(super) fn tick(&mut self, now: Duration) {
        self.session.tick(now);
        self.miss_the_departed();
        if self.session.is_troubled() {
            self.settle();
            return;
        }
        for kind in [ChannelKind::Collectives, ChannelKind::Pairs] {
            let (channel, session) = match kind {
                ChannelKind::Collectives => (&mut self.collectives, &mut self.session),
                ChannelKind::Pairs => (&mut self.pairs, &mut self.session),
            };
            for slot in &channel.queue {
                let slot = &mut channel.slots[*slot];
                let since = *slot.since.get_or_insert(now);
                let is_overdue = now >= since.saturating_add(slot.timeout);
                let is_noticed = now >= since + WAITING_NOTICE_AFTER * (slot.notices + 1);
                if !is_overdue && !is_noticed {
                    continue;
                }
                let Some(call) = slot.operation.call() else {
                    continue;
                };
                let awaited = slot.awaited();
                if is_overdue {
                    let error = overdue(self.rank, &call, slot, &awaited, session);
                    session.failed(error);
                    break;
                }
                session.waited(&call, &awaited, slot.notices as usize);
                slot.notices += 1;
            }
        }
    }

    /// Ends every operation with the first cause, once there is one.
    fn settle(&mut self) -> bool {
        let Some(error) = self.session.verdict().cloned() else {
            return false;
        };
        // Before the callers have their buffers back.
        self.collectives.transport.withdraw();
        let ended = self.collectives.fail(&error) | self.pairs.fail(&error);
        self.session.idle();
        ended
    }

    fn broken(&mut self, kind: ChannelKind, slot: usize, Broken { peer, error }: Broken) {
        // Every started operation has a call.
        let Some(call) = self.channel(kind).slots[slot].operation.call() else {
            return;
        };
        match error {
            LinkError::Closed(why) => self.session.link_lost(peer, &call, &why),
            LinkError::Unexpected(header) => {
                self.session.mismatched(peer, &call, header.sequence);
            }
            LinkError::Garbage(why) => self.session.failed(Error::Protocol(format!(
                "rank {} got bytes from rank {peer} during {} that are no frame: {why}; is the \
                 library the same version on all ranks?",
                self.rank,
                call.name()
            ))),
        }
    }

    /// Whether any operation is under way.
    #[must_use]
    pub fn is_calling(&self) -> bool {
        !self.collectives.queue.is_empty() || !self.pairs.queue.is_empty()
    }

    /// Whether any is, or others depend on this rank to settle a failure.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.is_calling() || self.session.gathers_marks()
    }

    /// Whether an operation's gate is not ready.
    pub(super) fn awaits_gate(&self) -> bool {
        let mut slots = self.collectives.queue.iter();
        slots.any(|slot| !self.collectives.slots[*slot].has_begun())
    }

    /// This rank gives up, for a reason that the group does not know.
    pub fn give_up(&mut self, cause: Error) {
        self.session.failed(cause);
        self.settle();
    }

    /// This rank has completed everything up to `number`; see [`Session::mark`].
    pub fn mark(&mut self, number: u64) {
        self.session.mark(number);
    }

    /// The mark that counts for this rank.
    #[must_use]
    pub fn own_mark(&self) -> u64 {
        self.session.own_mark()
    }

    /// What is known of the agreed mark.
    #[must_use]
    pub fn agreement(&self) -> Agreement {
        self.session.agreement()
    }

    pub(super) fn take(&mut self, kind: ChannelKind, slot: usize) -> Option<(Region, Result<()>)> {
        self.channel(kind).take(slot)
    }

    /// Whether an operation has ended that bears no time yet.
    pub(super) fn has_unstamped(&self) -> bool {
        self.collectives.unstamped + self.pairs.unstamped > 0
    }

    /// Notes `now` as the end of what has ended since the last call.
    pub(super) fn stamp(&mut self, now: Duration) {
        self.collectives.stamp(now);
        self.pairs.stamp(now);
    }

    /// When the operation ended, if it has and somebody looked at the clock since; and whether it
    /// has.
    pub(super) fn ended(&self, kind: ChannelKind, slot: usize) -> (bool, Option<Duration>) {
        let channel = match kind {
            ChannelKind::Collectives => &self.collectives,
            ChannelKind::Pairs => &self.pairs,
        };
        let slot = &channel.slots[slot];
        (slot.result.is_some(), slot.ended_at)
    }

    pub(super) fn abandon(&mut self, kind: ChannelKind, slot: usize) {
        let channel = self.channel(kind);
        if channel.take(slot).is_none() {
            channel.slots[slot].is_abandoned = true;
        }
    }

    pub(super) fn control(&mut self, from: usize, message: Message) {
        self.session.receive(from, message);
        self.miss_the_departed();
        self.settle();
    }

    /// Fails the oldest call if it waits for a rank that left before making it.
    fn miss_the_departed(&mut self) {
        if !self.session.has_departures() {
            return;
        }
        let Some(slot) = self.collectives.queue.front() else {
            return;
        };
        let slot = &self.collectives.slots[*slot];
        if let Some(call) = slot.operation.call() {
            for peer in slot.awaited() {
                self.session.left_before(peer, &call);
            }
        }
    }

    /// No link to `rank` could be made. Links are asked for by operations, and only ones that
    /// have failed meanwhile can have stopped needing it.
    pub(super) fn link_failed(&mut self, rank: usize, why: &str) {
        let mut all = self.collectives.operations().chain(self.pairs.operations());
        let call = all
            .find(|operation| operation.needs(rank))
            .and_then(Operation::call);
        drop(all);
        if let Some(call) = call {
            self.session.link_lost(rank, &call, why);
        }
    }

    pub(super) fn control_lost(&mut self, rank: usize, why: &str) {
        self.session.control_lost(rank, why);
        self.settle();
    }

    /// Says goodbye to the other ranks.
    pub fn leave(&mut self) {
        self.session.leave();
    }

    pub(super) fn next_control(&mut self) -> Option<(To, Message)> {
        self.session.next_message()
    }
}

/// The error of an operation that ran out of time: who is missing, and where they are.
fn overdue(rank: usize, call: &Call, slot: &Slot, awaited: &[usize], session: &Session) -> Error {
    let places = session.held_up_by(awaited);
    let who: Vec<_> = places.iter().map(|one| session.whereabouts(one)).collect();
    Error::Deadline(format!(
        "rank {rank} gave up on {call} after {:.1} s: {}; look there, or raise the timeout if it \
         is merely slow",
        slot.timeout.as_secs_f64(),
        if !slot.has_begun() {
            "the buffer's stream has not come to it, held up by what it was told before".into()
        } else if who.is_empty() {
            "no rank holds it up".into()
        } else {
            who.join(", ")
        }
    ))
}
