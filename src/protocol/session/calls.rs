//! Remembers the calls of this rank and compares them with the calls of other ranks.

use super::{Awaited, Session};
use crate::error::Error;
use crate::limits::{CALLS_REMEMBERED, COUNTS_SENT_MAX, TAGS_TRIED};
use crate::protocol::call::Call;
use crate::protocol::message::Message;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// A run of consecutive equal calls, such as those of a training loop.
#[derive(Debug)]
struct Row {
    /// The call, with the sequence number of the first call in the run.
    call: Call,
    digest: u32,
    timeout: Duration,
    /// Lengths of the blocks, if the caller passed them.
    counts: Option<Arc<[usize]>>,
}

/// The most recent collectives of this rank.
#[derive(Debug, Default)]
pub(super) struct Made {
    rows: VecDeque<Row>,
    last: u64,
}

impl Made {
    #[inline]
    fn push(
        &mut self,
        (call, counts): (&Call, Option<&Arc<[usize]>>),
        digest: u32,
        sequence: u64,
        timeout: Duration,
    ) {
        self.last = sequence;
        let is_same = |row: &Row| row.digest == digest && row.timeout == timeout;
        if self.rows.back().is_some_and(is_same) {
            return;
        }
        if self.rows.len() == CALLS_REMEMBERED {
            self.rows.pop_front();
        }
        self.rows.push_back(Row {
            call: call.numbered(sequence),
            digest,
            timeout,
            counts: counts.cloned(),
        });
    }

    fn row(&self, sequence: u64) -> Option<&Row> {
        let mut rows = self.rows.iter().rev();
        let row = rows.find(|row| row.call.sequence <= sequence)?;
        (sequence <= self.last).then_some(row)
    }

    /// Returns the call with this sequence number, if it was made and is still remembered.
    fn numbered(&self, sequence: u64) -> Option<Call> {
        self.row(sequence).map(|row| row.call.numbered(sequence))
    }

    /// Returns the timeout of the call with this sequence number, if it was made and is still
    /// remembered.
    pub(super) fn timeout(&self, sequence: u64) -> Option<Duration> {
        self.row(sequence).map(|row| row.timeout)
    }

    /// Returns the last call.
    pub(super) fn last(&self) -> Option<Call> {
        self.numbered(self.last)
    }
}

impl Session {
    /// Records that this rank makes `call`, which has this digest and timeout, as its call number
    /// `sequence`. `counts` contains the lengths of the blocks, if the caller passed them.
    #[inline]
    pub fn enter(
        &mut self,
        (call, counts): (&Call, Option<&Arc<[usize]>>),
        digest: u32,
        sequence: u64,
        timeout: Duration,
    ) {
        self.calls.push((call, counts), digest, sequence, timeout);
        self.collectives_made = sequence;
        if self.untimed_waits.contains_key(&sequence) {
            self.offer_clock(self.coordinator, sequence);
        }
        if self.checks_calls() {
            self.send_entered(call.numbered(sequence));
        }
        self.forget_positions();
        self.inside = true;
        if !self.announced.is_empty() {
            self.clear_position();
            let due: Vec<_> = self.announced.keys().copied().collect();
            for peer in due {
                if let Some(theirs) = self.announced.remove(&peer) {
                    self.compare(peer, theirs, None);
                }
            }
        }
    }

    /// Records that this rank sends to `peer` or receives from it.
    pub fn enter_pair(&mut self, peer: usize, call: &Call) {
        if self.pair_calls.len() == CALLS_REMEMBERED {
            self.pair_calls.pop_front();
        }
        self.pair_calls.push_back((peer, *call));
        self.pairs_made += 1;
        if self.checks_calls() && call.root == self.rank {
            self.send(peer, Message::Posted(*call));
        }
        self.forget_positions();
        let is_this = |one: &(usize, Call)| one.0 == peer && is_same_place(&one.1, call);
        if let Some(at) = self.announced_pairs.iter().position(is_this) {
            self.clear_position();
            let (peer, theirs) = self.announced_pairs.swap_remove(at);
            self.compare_pair(peer, theirs);
        }
    }

    /// Clears the position that this rank reports. The rank may no longer be waiting at that
    /// position, so later answers must not repeat it.
    fn clear_position(&mut self) {
        self.set_position(Vec::new(), None, Vec::new());
    }

    /// Records that this rank has no collective in flight.
    pub fn idle(&mut self) {
        self.inside = false;
    }

    /// Processes a frame from `peer` that belongs to its call number `sequence`, which has this
    /// digest, and arrived where a frame of `call` was expected.
    pub fn mismatched(&mut self, peer: usize, call: &Call, sequence: u64, digest: u32) {
        // The peer compares the calls and reports both in full. If it cannot, this rank's error is
        // reported. A frame of an earlier call was not expected in that call either, so the ranks
        // already differ in that call.
        let earlier = self.calls.numbered(sequence);
        let ours = earlier.filter(|own| own.sequence < call.sequence && !call.is_pair());
        let ours = ours.unwrap_or(*call);
        self.send(peer, self.message_about(&ours));
        let error = Error::mismatch(format!(
            "{} is in {call}, but {} sent data for a different call; all ranks must make the same \
             calls in the same order",
            self.rank_name(self.rank),
            self.rank_name(peer)
        ));
        let error = call.mark(error.with_rank(self.rank).with_peer(peer));
        let is_this = call.is_pair() && call.sequence == sequence;
        let is_theirs = |one: &Call| is_this && one != call && one.digest() == digest;
        let mut tagged = (0..TAGS_TRIED).map(|tag| call.tagged(tag));
        let theirs = tagged.find(is_theirs);
        let found = theirs.map(|theirs| self.different(call, peer, &theirs, None));
        self.set_pending(found.unwrap_or(error), Awaited::Comparison(peer));
    }

    pub(super) fn compare_pair(&mut self, peer: usize, theirs: Call) {
        match self.own_pair(peer, &theirs) {
            Some(ours) if ours != theirs => self.disagree(&ours, peer, &theirs, None),
            Some(_) => self.answer(peer),
            None => {
                self.answer(peer);
                let is_old = |one: &(usize, Call)| one.0 == peer && one.1.root == theirs.root;
                self.announced_pairs.retain(|one| !is_old(one));
                self.announced_pairs.push((peer, theirs));
            }
        }
    }

    /// Like `compare_pair`, but handles a receive that `peer` has just posted. No answer is needed.
    pub(super) fn compare_posted(&mut self, peer: usize, theirs: Call) {
        match self.own_pair(peer, &theirs) {
            Some(ours) if ours != theirs => self.disagree(&ours, peer, &theirs, None),
            None if self.announced_pairs.len() < CALLS_REMEMBERED => {
                self.announced_pairs.push((peer, theirs));
            }
            _ => {}
        }
    }

    /// Returns this rank's end of the message whose other end `peer` has reported as `theirs`, if
    /// this rank remembers it.
    fn own_pair(&self, peer: usize, theirs: &Call) -> Option<Call> {
        let mut made = self.pair_calls.iter();
        let ours = made.find(|(with, ours)| *with == peer && is_same_place(ours, theirs));
        ours.map(|(_, ours)| *ours)
    }

    /// Like `compare`, but runs on the coordinator and handles a call that `peer` has just made and
    /// that this rank has made, too. No answer is needed.
    pub(super) fn compare_entered(&mut self, peer: usize, theirs: Call) {
        let ours = self.calls.numbered(theirs.sequence);
        if let Some(ours) = ours.filter(|ours| *ours != theirs) {
            self.disagree(&ours, peer, &theirs, None);
        }
    }

    /// Fails with an error that explains the cause, such as an error that shows both calls of a
    /// mismatch. The error replaces a pending error that has not been reported yet.
    pub fn explained(&mut self, error: Error) {
        if self.pending.as_ref().is_some_and(|one| !one.reported) {
            self.pending = None;
        }
        self.failed(error);
    }

    /// Fails because `peer` made a different call, `theirs`. `counts` contains the lengths of its
    /// blocks, if known. If the calls differ only in their block lengths and the peer's lengths are
    /// not known, sends this rank's lengths to the peer, which compares them.
    fn disagree(&mut self, ours: &Call, peer: usize, theirs: &Call, counts: Option<&[u64]>) {
        let error = self.different(ours, peer, theirs, counts);
        if counts.is_none() && ours.differs_in_counts(theirs) {
            self.send(peer, self.message_about(ours));
            self.set_pending(error, Awaited::Comparison(peer));
        } else {
            self.explained(error);
        }
    }

    /// Returns the message that describes this rank's call to a peer.
    fn message_about(&self, call: &Call) -> Message {
        let row = self.calls.row(call.sequence).filter(|_| !call.is_pair());
        match row.and_then(|row| row.counts.as_ref()) {
            Some(counts) => {
                let first = counts.iter().take(COUNTS_SENT_MAX);
                Message::Counts(*call, first.map(|count| *count as u64).collect())
            }
            None => Message::Waiting(*call),
        }
    }

    /// Returns the first block whose length in this rank's call differs from its length in
    /// `theirs`, followed by this rank's length and the other length.
    fn first_difference(&self, ours: &Call, theirs: &[u64]) -> Option<(usize, u64, u64)> {
        let own = self.calls.row(ours.sequence)?.counts.as_ref()?;
        let mut blocks = (0..).zip(own.iter().zip(theirs));
        let difference = blocks.find(|(_, (own, their))| **own as u64 != **their);
        difference.map(|(block, (own, their))| (block, *own as u64, *their))
    }

    /// Returns an error that shows both calls in full. The lower rank's call comes first, so that
    /// both ranks report the same error.
    fn different(&self, ours: &Call, peer: usize, theirs: &Call, counts: Option<&[u64]>) -> Error {
        let block = counts.and_then(|counts| self.first_difference(ours, counts));
        let mut both = [(self.rank, ours), (peer, theirs)];
        both.sort_by_key(|(rank, _)| *rank);
        let [(low, call), (high, other)] = both;
        let (on, first, second) = (
            self.title_suffix(),
            self.rank_name(low),
            self.rank_name(high),
        );
        let text = match block {
            _ if ours.is_pair() && theirs.is_pair() => {
                // The root of both calls is the receiver.
                let is_received = |one: &(usize, &Call)| one.0 == one.1.root;
                both.sort_by_key(is_received);
                let [(from, sent), (to, received)] = both;
                let (from, to) = (self.rank_name(from), self.rank_name(to));
                match sent.tagged(received.tag) == *received {
                    true => format!(
                        "a send and its receive have different tags{on}: {from} sends message #{} \
                         with tag {}, and {to} receives it with tag {}; receive messages in the \
                         order in which they are sent, with the same tags",
                        sent.sequence, sent.tag, received.tag
                    ),
                    false => format!(
                        "a send and its receive differ{on}: {from} sends {}, and {to} receives {}; \
                         pass the same count, type and tag to both",
                        sent.payload(),
                        received.payload()
                    ),
                }
            }
            _ if !ours.differs_in_counts(theirs) => format!(
                "the ranks made different calls{on}: {first} {call}; {second} {other}; all ranks \
                 must make the same calls in the same order"
            ),
            None => format!(
                "the ranks passed different counts{on}: {first} in {call}; {second} in {other}; \
                 pass the same counts on all ranks"
            ),
            Some((block, own, their)) => {
                let (one, two) = match self.rank < peer {
                    true => (own, their),
                    false => (their, own),
                };
                format!(
                    "the ranks passed different counts{on}: in {call}, block {block} has {one} \
                     elements on {first}, and {two} on {second}; pass the same counts on all ranks"
                )
            }
        };
        call.mark(Error::mismatch(text).with_rank(low).with_peer(high))
    }

    /// Compares `theirs`, a call of `peer`, with this rank's call that has the same sequence
    /// number. `counts` contains the lengths of the blocks in `theirs`, if known.
    pub(super) fn compare(&mut self, peer: usize, theirs: Call, counts: Option<&[u64]>) {
        let ours = self.calls.numbered(theirs.sequence);
        match ours.filter(|ours| *ours != theirs) {
            Some(ours) => self.disagree(&ours, peer, &theirs, counts),
            None => {
                self.answer(peer);
                if theirs.sequence > self.collectives_made {
                    self.announced.insert(peer, theirs);
                }
            }
        }
    }
}

/// Returns `true` if two calls are the two ends of one message, which have the same receiver and
/// the same sequence number.
fn is_same_place(one: &Call, other: &Call) -> bool {
    (one.sequence, one.root) == (other.sequence, other.root)
}

#[cfg(test)]
mod tests;
