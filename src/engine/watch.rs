//! What a group does beside moving bytes: deadlines, notices, failures, and the messages of its
//! session.

use super::cache::MessageEnd;
use super::group::{Group, Order};
use super::medium::Broken;
use super::queue::{Queue, Slot};
use super::standing::Alarm;
use crate::error::Error;
use crate::limits::{
    IDLE_SLEEP, NOTICES_DOUBLED_MAX, PATIENT, PATIENT_SLEEP, PEERS_ASKED_MAX, SHARED_SEGMENT_BYTES,
    WAITING_NOTICE_AFTER,
};
use crate::link::LinkError;
use crate::link::frame::Header;
use crate::protocol::call::Call;
use crate::protocol::members::Name;
use crate::protocol::message::{Clock, Elsewhere, Message, PairPlace};
use crate::protocol::session::{Agreement, Session, To};
use std::time::Duration;

/// Two looks at the clock are at least so far apart, however much is overdue.
const LOOKS_APART: Duration = Duration::from_millis(1);

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
            look_at_the_clock(rank, queue, (&mut self.session, &mut self.alarm), now);
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
        let names = [peer, rank].map(|one| self.session.name(one));
        let slot = &self.queue(order).slots[slot];
        // Every started operation has a call.
        let Some(call) = slot.call() else {
            return;
        };
        let disagreement = match &error {
            LinkError::Unexpected(header) => {
                counts_disagree(rank, (peer, names), slot, &call, header)
            }
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

    /// How long the clock need not be looked at.
    pub(super) fn may_sleep(&self, now: impl Fn() -> Duration) -> Duration {
        let session = &self.session;
        if session.has_error() || session.gathers_marks() || session.awaits_goodbyes() {
            return IDLE_SLEEP;
        }
        let all = self.collectives.operations().chain(self.pairs.operations());
        all.map(|slot| slot.may_sleep(&now))
            .fold(PATIENT_SLEEP, Duration::min)
    }

    /// This rank gives up, for a reason that the group does not know.
    pub fn give_up(&mut self, cause: Error) {
        self.session.failed(cause);
        self.settle();
    }

    /// This rank fails with an error that says more than one of its own.
    pub(super) fn explain(&mut self, cause: Error) {
        self.session.explained(cause);
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

    pub(super) fn control(&mut self, from: usize, message: Message, elsewhere: Option<Elsewhere>) {
        self.tell_session_where_we_are(elsewhere);
        self.session.receive(from, message);
        self.miss_the_departed();
        self.settle();
    }

    /// So that the session can answer where this rank is.
    fn tell_session_where_we_are(&mut self, elsewhere: Option<Elsewhere>) {
        let oldest = [&self.collectives, &self.pairs].map(|queue| queue.operations().next());
        let session = &self.session;
        let awaited = oldest.iter().flatten();
        let awaited = awaited.flat_map(|slot| slot.awaited(session)).collect();
        let pair = oldest[1].and_then(Slot::call).and_then(|call| {
            let (sends, peer) = match oldest[1]?.message_end()? {
                MessageEnd::To(peer) => (true, Some(peer)),
                MessageEnd::From(peer) => (false, Some(peer)),
                MessageEnd::FromAny(_) => (false, None),
            };
            Some(PairPlace {
                sends,
                // A rank fits 32 bits (`limits::WORLD_SIZE_MAX`).
                peer: peer.map(|peer| peer as u32),
                sequence: call.sequence,
            })
        });
        self.session.stands(awaited, pair, elsewhere);
    }

    /// Fails the oldest call if it waits for a rank that left before making it.
    fn miss_the_departed(&mut self) {
        if !self.session.has_departures() {
            return;
        }
        let oldest = self.collectives.operations().next();
        let Some((call, awaited)) =
            oldest.and_then(|slot| Some((slot.call()?, slot.awaited(&self.session))))
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

    /// What is under way without a deadline gets one, `timeout` from now on: its caller has gone.
    pub fn end_patience(&mut self, timeout: Duration) {
        for slot in self
            .collectives
            .slots
            .iter_mut()
            .chain(&mut self.pairs.slots)
        {
            if slot.timeout == PATIENT {
                slot.timeout = timeout;
                slot.since = None;
                slot.notices = 0;
                slot.noticed_at = Duration::ZERO;
            }
        }
    }

    /// Says goodbye to the other ranks; another group of the process may have failed.
    pub fn leave(&mut self, failed_beside: Option<Error>) {
        self.session.leave(failed_beside);
    }

    /// The first error, once it is known.
    pub fn first_error(&self) -> Option<&Error> {
        self.session.first_error()
    }

    /// Whether there is a control message to send.
    #[must_use]
    pub fn has_control(&self) -> bool {
        self.session.has_message()
    }

    pub(super) fn next_control(&mut self) -> Option<(To, Message)> {
        self.session.next_message()
    }
}

/// The error of a call by counts, if what came from `peer` is its message in the same call, as long
/// as the peer says and not as this rank expects.
fn counts_disagree(
    rank: usize,
    (peer, names): (usize, [Name; 2]),
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
    let [from, to] = names;
    is_its_length.then(|| {
        let error = Error::mismatch(format!(
            "{from} sends {sent} elements to {to} in {call}, but {to} receives {expected} of it; \
             the counts of two ranks must agree"
        ));
        error.with_rank(rank).with_peer(peer)
    })
}

impl Slot {
    /// The ranks that are to make the call before it begins.
    pub(super) fn unready(&self, session: &Session) -> Vec<usize> {
        let call = self.call().filter(|_| session.checks_calls());
        call.map_or_else(Vec::new, |call| session.unready(&call))
    }

    /// The ranks that the operation waits for now.
    pub(super) fn awaited(&self, session: &Session) -> Vec<usize> {
        let unready = self.unready(session);
        if !unready.is_empty() {
            return unready;
        }
        if let Some((ranks, call)) = self.unmatched().zip(self.call()) {
            // The root of a message is its receiver.
            return (0..ranks).filter(|rank| *rank != call.root).collect();
        }
        let program = self.program();
        program.map_or_else(Vec::new, |program| self.run.awaited(program))
    }

    /// A call without a deadline gets that of another rank, from now on.
    fn start_clock(&mut self, clock: Clock, now: Duration) {
        self.waited_before = now.saturating_sub(self.since.unwrap_or(now));
        self.timeout = clock.timeout;
        self.clock_of = Some(clock.rank);
        self.since = Some(now);
        self.notices = 0;
        self.noticed_at = Duration::ZERO;
    }

    /// How long the operation waits between two notices to its peers. Without a deadline these
    /// times grow, once every peer has had one.
    fn notice_interval(&self) -> Duration {
        if self.timeout == PATIENT {
            let peers = self.program().map_or(0, |program| program.peers().count());
            let first = peers.div_ceil(PEERS_ASKED_MAX).max(1) as u32;
            let doubled = self.notices.saturating_sub(first).min(NOTICES_DOUBLED_MAX);
            return WAITING_NOTICE_AFTER * (1 << doubled);
        }
        WAITING_NOTICE_AFTER.min(self.timeout / 4)
    }

    /// How long the clock need not be looked at: once the peers were told of the waiting, until
    /// they are to be told again, or the operation ends.
    fn may_sleep(&self, now: impl Fn() -> Duration) -> Duration {
        match self.since {
            _ if self.timeout == PATIENT => PATIENT_SLEEP,
            Some(since) if self.notices > 0 => {
                let notice_due = self.noticed_at.saturating_add(self.notice_interval());
                let due = since.saturating_add(notice_due.min(self.timeout));
                due.saturating_sub(now()).max(LOOKS_APART)
            }
            _ => IDLE_SLEEP,
        }
    }
}

/// Ends the first operation that is overdue; tells peers of the others that have waited long, and
/// raises the alarm for the oldest.
fn look_at_the_clock(
    rank: usize,
    queue: &mut Queue,
    (session, alarm): (&mut Session, &mut Alarm),
    now: Duration,
) {
    for (place, index) in queue.order.iter().enumerate() {
        let slot = &mut queue.slots[*index];
        slot.since.get_or_insert(now);
        let Some(call) = slot.call() else {
            continue;
        };
        if slot.timeout == PATIENT
            && let Some(clock) = session.clock(call.sequence).filter(|_| !call.is_pair())
        {
            slot.start_clock(clock, now);
        }
        let waited = now.saturating_sub(slot.since.unwrap_or(now));
        let is_overdue = waited >= slot.timeout;
        let notice_due = slot.noticed_at.saturating_add(slot.notice_interval());
        if !is_overdue && waited < notice_due {
            continue;
        }
        let awaited = slot.awaited(session);
        if is_overdue {
            let error = overdue(rank, &call, slot, &awaited, session);
            session.failed(error.with_elapsed(slot.waited_before + waited));
            return;
        }
        if slot.timeout == PATIENT && !call.is_pair() {
            session.is_patient_in(call.sequence);
        }
        if slot.timeout != PATIENT {
            alarm.is_due = true;
            // The peers that were asked before have answered.
            let is_late = !alarm.after.is_zero() && waited >= alarm.after && slot.notices > 0;
            if is_late && place == 0 && !slot.is_warned_of {
                slot.is_warned_of = true;
                alarm.line = Some(stalled(rank, &call, slot, (&awaited, waited), session));
            }
        }
        session.waited(&call, &awaited, slot.notices as usize);
        slot.notices += 1;
        slot.noticed_at = notice_due;
    }
}

/// The error of an operation that ran out of time: which ranks are missing, and where they are.
fn overdue(rank: usize, call: &Call, slot: &Slot, awaited: &[usize], session: &Session) -> Error {
    let waited_s = slot.timeout.as_secs_f64();
    let deadline = match slot.clock_of {
        None => format!("after {waited_s:.1} s, its timeout"),
        Some(other) => format!(
            "{waited_s:.1} s after it heard that {} had made the same call, with this timeout",
            session.name(other as usize)
        ),
    };
    let is_send = call.is_pair() && call.root != rank;
    let circle = is_send.then(|| session.circle_of_sends(call.root));
    let (why, missing) = match circle.flatten() {
        Some(ranks) => {
            let why = format!("{}; use sendrecv or group", in_send(&ranks, session));
            (why, ranks[1..].to_vec())
        }
        None => {
            let (who, ranks) = held_up(slot, awaited, session);
            let advice = "look there, or raise the timeout if it is merely slow";
            (format!("{who}; {advice}"), ranks)
        }
    };
    let name = session.name(rank);
    let on = session.on();
    let error = Error::deadline(format!("{name} gave up on {call}{on} {deadline}: {why}"));
    call.mark(error.with_missing(missing).with_rank(rank))
}

/// The warning of an operation that has waited for long: which ranks are missing, and where.
fn stalled(
    rank: usize,
    call: &Call,
    slot: &Slot,
    (awaited, waited): (&[usize], Duration),
    session: &Session,
) -> String {
    let (who, _) = held_up(slot, awaited, session);
    format!(
        "{} has waited {:.0} s in {call}{}: {who}; its timeout is {:.0} s",
        session.name(rank),
        waited.as_secs_f64(),
        session.on(),
        slot.timeout.as_secs_f64()
    )
}

fn in_send(circle: &[usize], session: &Session) -> String {
    let names = circle.iter().map(|rank| session.name(*rank).to_string());
    match names.collect::<Vec<_>>().as_slice() {
        [one, other] => format!("both {one} and {other} are in send to each other"),
        names => format!(
            "{} are each in send to the next, and the last to the first",
            names.join(", ")
        ),
    }
}

/// What holds an operation up, in words, and which ranks that are.
fn held_up(slot: &Slot, awaited: &[usize], session: &Session) -> (String, Vec<usize>) {
    if !slot.has_come() {
        let stream = "the buffer's stream has not come to it, held up by earlier work";
        return (stream.to_owned(), Vec::new());
    }
    let places = session.held_up_by(awaited);
    let who: Vec<_> = places.iter().map(|one| session.whereabouts(one)).collect();
    let words = match who.is_empty() {
        true => "no rank holds it up".to_owned(),
        false => who.join(", "),
    };
    (words, places.iter().map(|one| one.rank as usize).collect())
}
