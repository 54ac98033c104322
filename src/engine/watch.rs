//! Enforces a group's deadlines, notifies peers that this rank is waiting for them, warns of
//! stalls, and fails the group's operations.

use super::cache::MessageEnd;
use super::group::WaitEvents;
use super::group::{Group, Order};
use super::medium::Broken;
use super::queue::{Queue, Slot};
use crate::error::Error;
use crate::event::Event;
use crate::limits::{
    IDLE_SLEEP, LINK_GRACE, NO_TIMEOUT, NOTICES_DOUBLED_MAX, NOTIFIED_SLEEP, PEERS_QUERIED_MAX,
    PLACES_MAX, WAITING_NOTICE_AFTER,
};
use crate::link::LinkError;
use crate::protocol::call::Call;
use crate::protocol::group_creation::list;
use crate::protocol::members::Members;
use crate::protocol::message::{Clock, Message, PairPlace, Wait};
use crate::protocol::session::{Agreement, Session, To, WaitReport};
use std::time::Duration;

/// Minimum time between two checks of the clock, even if an operation is overdue.
const CLOCK_CHECK_INTERVAL_MIN: Duration = Duration::from_millis(1);

impl Group {
    /// Handles everything that is due by `now`: notices, deadlines and pending errors. `now` must
    /// never decrease. Poll the group first: this method assumes that the bytes that peers sent
    /// before their goodbyes have been received.
    pub fn tick(&mut self, now: Duration) {
        if self.session.has_error() && self.has_overdue(now) {
            self.session.stop_comparing();
        }
        self.session.tick(now);
        self.fail_calls_on_departed();
        self.fail_messages_on_departed(now);
        if self.session.has_error() {
            self.settle();
            return;
        }
        let rank = self.rank;
        for queue in [&mut self.collectives, &mut self.pairs] {
            check_deadlines(rank, queue, (&mut self.session, &mut self.wait_events), now);
        }
    }

    /// Returns `true` if an operation has been in flight for longer than its timeout. Starts the
    /// timeouts of new operations.
    fn has_overdue(&mut self, now: Duration) -> bool {
        let mut is_overdue = false;
        for queue in [&mut self.collectives, &mut self.pairs] {
            for index in &queue.order {
                let slot = &mut queue.slots[*index];
                slot.since.get_or_insert(now);
                is_overdue |= slot.waited(now) >= slot.timeout;
            }
        }
        is_overdue
    }

    /// Ends every operation with the first error, if that error is known. Returns `true` if an
    /// operation was in flight.
    pub(super) fn settle(&mut self) -> bool {
        let Some(error) = self.session.first_error().cloned() else {
            return false;
        };
        // Revoke access to exposed memory before callers get their buffers back.
        if let Some(local) = self.collectives.links.local() {
            local.revoke();
        }
        let ended = self.collectives.fail(&error) | self.pairs.fail(&error);
        self.session.idle();
        ended
    }

    /// Reports a link error to the session.
    pub(super) fn link_broken(
        &mut self,
        order: Order,
        slot: usize,
        Broken { peer, error }: Broken,
    ) {
        // Every started operation has a call.
        let Some(call) = self.queue(order).slots[slot].call() else {
            return;
        };
        match error {
            LinkError::Closed(why) => self.session.link_lost(peer, &call, &why),
            LinkError::Cut(why) => self.session.link_cut(peer, &call, &why),
            LinkError::Unexpected(header) => {
                let session = &mut self.session;
                session.mismatched(peer, &call, header.sequence, header.digest);
            }
            LinkError::Garbage(why) => {
                let error = Error::protocol(format!(
                    "{} received invalid data from {} during {}: {why}; run the same version on \
                     all ranks",
                    self.session.rank_name(self.rank),
                    self.session.rank_name(peer),
                    call.name()
                ));
                let error = error.with_rank(self.rank).with_peer(peer);
                self.session.failed(call.mark(error));
            }
            LinkError::Refused(why) => {
                let error = Error::system(format!(
                    "{} cannot share memory with {} during {}: {why}; set RINGTREE_TRANSPORT=tcp \
                     to avoid shared memory",
                    self.session.rank_name(self.rank),
                    self.session.rank_name(peer),
                    call.name()
                ));
                let error = error.with_rank(self.rank).with_peer(peer);
                self.session.failed(call.mark(error));
            }
        }
    }

    /// Returns `true` if an operation is in flight, if marks are being gathered after a failure, or
    /// if goodbyes are expected.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.is_calling() || self.session.gathers_marks() || self.session.awaits_goodbyes()
    }

    /// Returns the time for which the clock need not be checked.
    pub(super) fn sleep_max(&self, now: impl Fn() -> Duration) -> Duration {
        let session = &self.session;
        if session.has_error() || session.gathers_marks() || session.awaits_goodbyes() {
            return IDLE_SLEEP;
        }
        let all = self.collectives.operations().chain(self.pairs.operations());
        all.map(|slot| slot.sleep_max(&now))
            .fold(NOTIFIED_SLEEP, Duration::min)
    }

    /// Fails the group with `cause`, an error from outside the group.
    pub fn give_up(&mut self, cause: Error) {
        self.session.failed(cause);
        self.settle();
    }

    /// Records `number` as this rank's mark. See [`Session::mark`].
    pub fn mark(&mut self, number: u64) {
        self.session.mark(number);
    }

    /// Returns this rank's mark. After a failure, this is the mark that the rank has reported.
    #[must_use]
    pub fn own_mark(&self) -> u64 {
        self.session.own_mark()
    }

    /// Returns the state of the agreed mark.
    #[must_use]
    pub fn agreement(&self) -> Agreement {
        self.session.agreement()
    }

    pub(super) fn control(&mut self, from: usize, message: Message, waits: Vec<Wait>) {
        let asked = match &message {
            Message::Waiting(call) if call.is_pair() => Some((from, *call)),
            _ => None,
        };
        self.update_position(asked, waits);
        self.session.receive(from, message);
        self.fail_calls_on_departed();
        self.settle();
    }

    /// Updates the position that the session reports for this rank in answers to peers. If the peer
    /// asks about a message and this rank's matching send or receive is in flight, the position
    /// contains that operation. Otherwise, it contains the oldest send or receive.
    fn update_position(&mut self, asked: Option<(usize, Call)>, waits: Vec<Wait>) {
        let is_asked = |slot: &&Slot| {
            let (Some((from, theirs)), Some(own)) = (asked, slot.call()) else {
                return false;
            };
            let peer = match slot.message_end() {
                Some(MessageEnd::To(peer) | MessageEnd::From(peer)) => Some(peer),
                _ => None,
            };
            (peer, own.sequence, own.root) == (Some(from), theirs.sequence, theirs.root)
        };
        let pair = self.pairs.operations().find(is_asked);
        let pair = pair.or_else(|| self.pairs.operations().next());
        let oldest = [self.collectives.operations().next(), pair];
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
                // A rank fits in 32 bits (`limits::WORLD_SIZE_MAX`).
                peer: peer.map(|peer| peer as u32),
                sequence: call.sequence,
            })
        });
        self.session.set_position(awaited, pair, waits);
    }

    /// Fails the oldest collective if it is waiting for a rank that left before it made the call.
    fn fail_calls_on_departed(&mut self) {
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
            self.session.fail_if_left_before(peer, &call);
        }
    }

    /// Fails the oldest message that is waiting only for ranks that have left and from which
    /// nothing else can arrive. The links must have been polled since the goodbyes arrived.
    fn fail_messages_on_departed(&mut self, now: Duration) {
        if !self.session.has_departures() {
            return;
        }
        let (session, queue) = (&mut self.session, &mut self.pairs);
        let mut is_silent = |peer: usize, sends: bool| {
            let Some(left) = session.has_left_for(peer, now) else {
                return false;
            };
            let Some(link) = queue.links.link(peer) else {
                return left >= LINK_GRACE;
            };
            match link.has_arrived() {
                Ok(true) if !sends => false,
                Err(_) if !sends => true,
                _ => link
                    .drain_time_after_goodbye()
                    .is_some_and(|time| left >= time),
            }
        };
        let missed = queue.order.iter().find_map(|index| {
            let slot = &queue.slots[*index];
            let (sends, peers) = match slot.message_end()? {
                MessageEnd::To(peer) => (true, peer..peer + 1),
                MessageEnd::From(peer) => (false, peer..peer + 1),
                MessageEnd::FromAny(count) => (false, 0..count),
            };
            let mut peers = peers.filter(|peer| *peer != self.rank);
            let last = peers.clone().next_back()?;
            peers
                .all(|peer| is_silent(peer, sends))
                .then_some((last, slot.call()?))
        });
        if let Some((peer, call)) = missed {
            self.session.fail_if_left(peer, &call);
        }
    }

    /// Records that no link to `rank` could be created, and fails an operation that needs the link.
    /// If no operation needs the link, the operation that requested it has already failed.
    pub(super) fn link_failed(&mut self, rank: usize, why: &str) {
        let needs = |slot: &&Slot| {
            let program = slot.program().filter(|_| slot.unmatched().is_none());
            program.is_some_and(|program| program.peers().any(|peer| peer == rank))
        };
        let mut all = self.collectives.operations().chain(self.pairs.operations());
        if let Some(call) = all.find(needs).and_then(Slot::call) {
            self.session.link_cut(rank, &call, why);
        }
    }

    pub(super) fn process_ended(&mut self, rank: usize, why: &str) {
        self.session.process_ended(rank, why);
        self.settle();
    }

    pub(super) fn control_lost(&mut self, rank: usize, why: &str) {
        self.session.control_lost(rank, why);
        self.settle();
    }

    /// Applies `timeout`, counted from the next tick, to every operation in flight that has no
    /// deadline. Called when the callers of these operations no longer exist.
    pub fn impose_timeout(&mut self, timeout: Duration) {
        for slot in self
            .collectives
            .slots
            .iter_mut()
            .chain(&mut self.pairs.slots)
        {
            if slot.timeout == NO_TIMEOUT {
                slot.timeout = timeout;
                slot.since = None;
                slot.notices = 0;
                slot.noticed_at = Duration::ZERO;
            }
        }
    }

    /// Sends a goodbye to the other ranks. `failed_beside` is the error of another group of this
    /// process, if such a group has failed.
    pub fn leave(&mut self, failed_beside: Option<Error>) {
        self.session.leave(failed_beside);
    }

    /// Returns the first error, once it is known.
    pub fn first_error(&self) -> Option<&Error> {
        self.session.first_error()
    }

    /// Returns the first error with the group's members. Returns each error only once.
    pub(super) fn take_failure(&mut self) -> Option<(Error, Members)> {
        let error = self
            .session
            .first_error()
            .filter(|_| !self.is_failure_taken)?;
        let failure = (error.clone(), self.members().clone());
        self.is_failure_taken = true;
        Some(failure)
    }

    /// Returns `true` if a control message must be sent.
    #[must_use]
    pub fn has_control(&self) -> bool {
        self.session.has_message()
    }

    pub(super) fn next_control(&mut self) -> Option<(To, Message)> {
        self.session.next_message()
    }
}

impl Slot {
    /// Returns the ranks that still have to make the call before the operation can begin.
    pub(super) fn unready(&self, session: &Session) -> Vec<usize> {
        let call = self.call().filter(|_| session.checks_calls());
        call.map_or_else(Vec::new, |call| session.unready(&call))
    }

    /// Returns the ranks that the operation is waiting for now.
    pub(super) fn awaited(&self, session: &Session) -> Vec<usize> {
        let unready = self.unready(session);
        if !unready.is_empty() {
            return unready;
        }
        if let Some((ranks, call)) = self.unmatched().zip(self.call()) {
            // The `root` of a message is its receiver.
            return (0..ranks).filter(|rank| *rank != call.root).collect();
        }
        let program = self.program();
        program.map_or_else(Vec::new, |program| self.run.awaited(program))
    }

    /// Returns how much of the operation's timeout has passed.
    fn waited(&self, now: Duration) -> Duration {
        now.saturating_sub(self.since.unwrap_or(now))
    }

    /// Applies another rank's timeout, counted from now, to a call that has no deadline.
    fn adopt_timeout(&mut self, clock: Clock, now: Duration) {
        self.waited_before = self.waited(now);
        self.timeout = clock.timeout;
        self.timeout_owner = Some(clock.rank);
        self.since = Some(now);
        self.notices = 0;
        self.noticed_at = Duration::ZERO;
    }

    /// Returns the interval between notices to the operation's peers. If the operation has no
    /// deadline, the interval grows once every peer has received a notice.
    fn notice_interval(&self) -> Duration {
        if self.timeout == NO_TIMEOUT {
            let peers = self.program().map_or(0, |program| program.peers().count());
            let first = peers.div_ceil(PEERS_QUERIED_MAX).max(1) as u32;
            let doubled = self.notices.saturating_sub(first).min(NOTICES_DOUBLED_MAX);
            return WAITING_NOTICE_AFTER * (1 << doubled);
        }
        WAITING_NOTICE_AFTER.min(self.timeout / 4)
    }

    /// Returns the time for which the clock need not be checked. Once a notice has been sent, this
    /// is the time until the next notice or the deadline.
    fn sleep_max(&self, now: impl Fn() -> Duration) -> Duration {
        match self.since {
            _ if self.timeout == NO_TIMEOUT => NOTIFIED_SLEEP,
            Some(since) if self.notices > 0 => {
                let notice_due = self.noticed_at.saturating_add(self.notice_interval());
                let due = since.saturating_add(notice_due.min(self.timeout));
                due.saturating_sub(now()).max(CLOCK_CHECK_INTERVAL_MIN)
            }
            _ => IDLE_SLEEP,
        }
    }
}

/// Fails the group if an operation is overdue. Notifies the peers of operations that have been
/// waiting for a long time, and creates the events about waits.
fn check_deadlines(
    rank: usize,
    queue: &mut Queue,
    (session, events): (&mut Session, &mut WaitEvents),
    now: Duration,
) {
    queue.reservations.begin_pass();
    for (place, index) in queue.order.iter().enumerate() {
        let slot = &mut queue.slots[*index];
        // A message that waits for an earlier one on the same link has no question of its own.
        let reserve = |end| queue.reservations.reserve(end);
        let is_first_on_link = slot.message_end().is_none_or(reserve);
        slot.since.get_or_insert(now);
        let Some(call) = slot.call() else {
            continue;
        };
        if slot.timeout == NO_TIMEOUT
            && let Some(clock) = session.clock(call.sequence).filter(|_| !call.is_pair())
        {
            slot.adopt_timeout(clock, now);
        }
        let waited = slot.waited(now);
        let is_overdue = waited >= slot.timeout;
        let notice_due = slot.noticed_at.saturating_add(slot.notice_interval());
        if !is_overdue && waited < notice_due {
            continue;
        }
        let awaited = slot.awaited(session);
        if is_overdue {
            let error = timeout_error(rank, &call, slot, &awaited, session);
            session.failed(error.with_elapsed(slot.waited_before + waited));
            return;
        }
        if slot.timeout == NO_TIMEOUT && !call.is_pair() {
            session.report_untimed_wait(call.sequence);
        }
        // Warn only after a notice, so that the warning can quote the peers' answers.
        let is_late =
            !events.warns_after.is_zero() && waited >= events.warns_after && slot.notices > 0;
        if is_late && place == 0 && !slot.is_warned_of {
            let text = stall_text(rank, &call, slot, (&awaited, waited), session);
            let rank = session.members().world_rank(rank);
            events.stall = text.map(|text| Event::Stall { rank, text });
            slot.is_warned_of = events.stall.is_some();
        }
        if slot.notices == 0 && !awaited.is_empty() {
            let names: Vec<_> = awaited.iter().map(|one| session.rank_name(*one)).collect();
            events.slow = Some(Event::SlowPeers {
                rank: session.members().world_rank(rank),
                call: format!("{call}{}", session.title_suffix()),
                peers: list(&names, PLACES_MAX),
                waited_s: waited.as_secs_f64(),
            });
        }
        if is_first_on_link {
            session.notify_waiting(&call, &awaited, slot.notices as usize);
        }
        slot.notices += 1;
        slot.noticed_at = notice_due;
    }
}

/// Returns the error for an operation that timed out. The error states which ranks are missing and
/// what they are doing.
fn timeout_error(
    rank: usize,
    call: &Call,
    slot: &Slot,
    awaited: &[usize],
    session: &Session,
) -> Error {
    let waited_s = slot.timeout.as_secs_f64();
    let deadline = match slot.timeout_owner {
        None => format!("after {waited_s:.1} s"),
        Some(other) => format!(
            "{waited_s:.1} s after it learned that {} had made the same call with this timeout",
            session.rank_name(other as usize)
        ),
    };
    let report = wait_report(slot, call, awaited, session);
    let advice = match report.is_deadlock {
        true => {
            "issue calls in the same order on all ranks; for messages, use sendrecv, a batch or a \
             started send"
        }
        false => "find out why, or raise the timeout if the call is merely slow",
    };
    let (name, on, who) = (
        session.rank_name(rank),
        session.title_suffix(),
        report.words,
    );
    let error = format!("{name} timed out in {call}{on} {deadline}: {who}; {advice}");
    let error = Error::deadline(error).with_missing(report.ranks);
    call.mark(error.with_rank(rank))
}

/// Returns the warning about an operation that has been waiting for a long time. The warning states
/// which ranks are missing and what they are doing. Returns `None` if the operation has no deadline
/// and there is no deadlock.
fn stall_text(
    rank: usize,
    call: &Call,
    slot: &Slot,
    (awaited, waited): (&[usize], Duration),
    session: &Session,
) -> Option<String> {
    let report = wait_report(slot, call, awaited, session);
    let limit = match slot.timeout {
        NO_TIMEOUT if !report.is_deadlock => return None,
        NO_TIMEOUT => "the call has no timeout".to_owned(),
        timeout => format!("the call's timeout is {:.0} s", timeout.as_secs_f64()),
    };
    Some(format!(
        "{} has waited {:.0} s in {call}{}: {}; {limit}",
        session.rank_name(rank),
        waited.as_secs_f64(),
        session.title_suffix(),
        report.words
    ))
}

/// Returns a report on what is blocking an operation.
fn wait_report(slot: &Slot, call: &Call, awaited: &[usize], session: &Session) -> WaitReport {
    if slot.is_reached() {
        return session.wait_report(call, awaited);
    }
    WaitReport {
        words: "the buffer's stream has not reached the call because it is busy with earlier work"
            .to_owned(),
        ranks: Vec::new(),
        is_deadlock: false,
    }
}
