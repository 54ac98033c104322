//! What a group does beside moving bytes: deadlines, notices, failures, and the messages of its
//! session.

use super::group::{Group, Order, Queue, Slot};
use super::medium::Broken;
use crate::error::Error;
use crate::limits::{SHARED_SEGMENT_BYTES, WAITING_NOTICE_AFTER};
use crate::link::LinkError;
use crate::link::frame::Header;
use crate::protocol::call::Call;
use crate::protocol::message::Message;
use crate::protocol::session::{Agreement, Session, To};
use std::time::Duration;

impl Group {
    /// Lets time pass: notices, deadlines, pending errors that stand. `now` never goes back.
    pub fn tick(&mut self, now: Duration) {
        self.session.tick(now);
        self.miss_the_departed();
        if self.session.has_error() {
            self.settle();
            return;
        }
        let rank = self.rank;
        for queue in [&mut self.collectives, &mut self.pairs] {
            look_at_the_clock(rank, queue, &mut self.session, now);
        }
    }

    /// Ends every operation with the first error, once there is one.
    pub(super) fn settle(&mut self) -> bool {
        let Some(error) = self.session.first_error().cloned() else {
            return false;
        };
        // Before the callers have their buffers back.
        if let Some(local) = self.collectives.links.local() {
            local.revoke();
        }
        let ended = self.collectives.fail(&error) | self.pairs.fail(&error);
        self.session.idle();
        ended
    }

    pub(super) fn broken(&mut self, order: Order, slot: usize, Broken { peer, error }: Broken) {
        let rank = self.rank;
        let slot = &self.queue(order).slots[slot];
        // Every started operation has a call.
        let Some(call) = slot.call() else {
            return;
        };
        let disagreement = match &error {
            LinkError::Unexpected(header) => counts_disagree(rank, peer, slot, &call, header),
            _ => None,
        };
        match error {
            LinkError::Closed(why) => self.session.link_lost(peer, &call, &why),
            LinkError::Unexpected(header) => match disagreement {
                Some(error) => self.session.failed(call.mark(error)),
                None => self.session.mismatched(peer, &call, header.sequence),
            },
            LinkError::Garbage(why) => {
                let error = Error::protocol(format!(
                    "{} got bytes from {} during {} that are no frame: {why}; is the library the \
                     same version on all ranks?",
                    self.session.name(self.rank),
                    self.session.name(peer),
                    call.name()
                ));
                let error = error.with_rank(self.rank).with_peer(peer);
                self.session.failed(call.mark(error));
            }
            LinkError::Refused(why) => {
                let error = Error::system(format!(
                    "{} cannot share memory with {}, which {} needs: {why}; \
                     RINGTREE_TRANSPORT=tcp does without",
                    self.session.name(self.rank),
                    self.session.name(peer),
                    call.name()
                ));
                let error = error.with_rank(self.rank).with_peer(peer);
                self.session.failed(call.mark(error));
            }
        }
    }

    /// Whether any operation is under way, or other ranks depend on this one to settle a failure.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.is_calling() || self.session.gathers_marks() || self.session.awaits_goodbyes()
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
        let oldest = self.collectives.operations().next();
        let Some((call, awaited)) = oldest.and_then(|slot| Some((slot.call()?, slot.awaited())))
        else {
            return;
        };
        for peer in awaited {
            self.session.left_before(peer, &call);
        }
    }

    /// No link to `rank` could be made. Operations ask for links, and only ones that have failed
    /// meanwhile can have stopped needing one.
    pub(super) fn link_failed(&mut self, rank: usize, why: &str) {
        let needs = |slot: &&Slot| {
            let program = slot.program().filter(|_| slot.unmatched().is_none());
            program.is_some_and(|program| program.peers().any(|peer| peer == rank))
        };
        let mut all = self.collectives.operations().chain(self.pairs.operations());
        if let Some(call) = all.find(needs).and_then(Slot::call) {
            self.session.link_lost(rank, &call, why);
        }
    }

    pub(super) fn process_ended(&mut self, rank: usize) {
        self.session.process_ended(rank);
    }

    pub(super) fn control_lost(&mut self, rank: usize, why: &str) {
        self.session.control_lost(rank, why);
        self.settle();
    }

    /// Rank 0 of the world, which relays control messages, is gone.
    pub(super) fn relay_gone(&mut self) {
        self.session.relay_gone();
    }

    /// Says goodbye to the other ranks.
    pub fn leave(&mut self) {
        self.session.leave();
    }

    pub(super) fn next_control(&mut self) -> Option<(To, Message)> {
        self.session.next_message()
    }
}

/// The error of a call by counts, if what came from `peer` is its message in the same call, as long
/// as the peer says and not as this rank expects.
fn counts_disagree(
    rank: usize,
    peer: usize,
    slot: &Slot,
    call: &Call,
    header: &Header,
) -> Option<Error> {
    let prepared = slot.prepared()?;
    if !call.is_counted_by_pairs() || header.sequence != call.sequence {
        return None;
    }
    let lanes = &prepared.program.receives;
    let lane = lanes.iter().find(|lane| lane.peer == peer)?;
    let expected = &prepared.program.steps[*lane.steps.get(header.message as usize)?];
    // The digest of the same call, changed by another number of elements.
    let sent = (header.digest ^ prepared.digest).checked_sub(1)? as usize;
    let (bytes, segment) = (sent.max(1) * call.dtype.size(), header.bytes as usize);
    let is_full = segment.is_multiple_of(SHARED_SEGMENT_BYTES);
    let is_its_length = segment == bytes || (segment < bytes && is_full);
    let expected = expected.salt.checked_sub(1)?;
    is_its_length.then(|| {
        let error = Error::mismatch(format!(
            "rank {peer} sends {sent} elements to rank {rank} in {call}, but rank {rank} receives \
             {expected} of it; the counts of two ranks must agree"
        ));
        error.with_rank(rank).with_peer(peer)
    })
}

/// Ends the first operation that is overdue; tells peers of the others that have waited long.
fn look_at_the_clock(rank: usize, queue: &mut Queue, session: &mut Session, now: Duration) {
    for index in &queue.order {
        let slot = &mut queue.slots[*index];
        let since = *slot.since.get_or_insert(now);
        let is_overdue = now >= since.saturating_add(slot.timeout);
        let is_noticed = now >= since + WAITING_NOTICE_AFTER * (slot.notices + 1);
        if !is_overdue && !is_noticed {
            continue;
        }
        let Some(call) = slot.call() else {
            continue;
        };
        let awaited = slot.awaited();
        if is_overdue {
            let error = overdue(rank, &call, slot, &awaited, session);
            session.failed(error.with_elapsed(now.saturating_sub(since)));
            return;
        }
        session.waited(&call, &awaited, slot.notices as usize);
        slot.notices += 1;
    }
}

/// The error of an operation that ran out of time: which ranks are missing, and where they are.
fn overdue(rank: usize, call: &Call, slot: &Slot, awaited: &[usize], session: &Session) -> Error {
    let places = session.held_up_by(awaited);
    let who: Vec<_> = places.iter().map(|one| session.whereabouts(one)).collect();
    let has_come = slot.has_come();
    let error = Error::deadline(format!(
        "{} gave up on {call} after {:.1} s: {}; look there, or raise the timeout if it is merely \
         slow",
        session.name(rank),
        slot.timeout.as_secs_f64(),
        if !has_come {
            "the buffer's stream has not come to it, held up by earlier work".into()
        } else if who.is_empty() {
            "no rank holds it up".into()
        } else {
            who.join(", ")
        }
    ));
    // A stream that has not come to the call holds it up on this rank.
    let missing = places.iter().filter(|_| has_come);
    let error = error.with_missing(missing.map(|one| one.rank as usize));
    call.mark(error.with_rank(rank))
}
