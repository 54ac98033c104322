//! Whether the ranks make the same calls.

use super::{Session, To};
use crate::error::Error;
use crate::limits::CALLS_REMEMBERED;
use crate::protocol::call::Call;
use crate::protocol::message::Message;
use std::collections::VecDeque;
use std::time::Duration;

/// Equal calls in a row, as a training loop makes them.
#[derive(Debug)]
struct Row {
    /// Under the number of the first of them.
    call: Call,
    digest: u32,
    timeout: Duration,
}

/// The last calls.
#[derive(Debug, Default)]
pub(super) struct Made {
    rows: VecDeque<Row>,
    last: u64,
}

impl Made {
    #[inline]
    fn push(&mut self, call: &Call, digest: u32, sequence: u64, timeout: Duration) {
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
        });
    }

    fn row(&self, sequence: u64) -> Option<&Row> {
        let mut rows = self.rows.iter().rev();
        let row = rows.find(|row| row.call.sequence <= sequence)?;
        (sequence <= self.last).then_some(row)
    }

    /// The call of that number, if it was made and is remembered.
    fn numbered(&self, sequence: u64) -> Option<Call> {
        self.row(sequence).map(|row| row.call.numbered(sequence))
    }

    /// The timeout of the call of that number, if it was made and is remembered.
    pub(super) fn timeout(&self, sequence: u64) -> Option<Duration> {
        self.row(sequence).map(|row| row.timeout)
    }

    /// The last one.
    pub(super) fn last(&self) -> Option<Call> {
        self.numbered(self.last)
    }
}

impl Session {
    /// This rank makes `call`, which has this digest, as its call number `sequence`, with this
    /// timeout.
    #[inline]
    pub fn enter(&mut self, call: &Call, digest: u32, sequence: u64, timeout: Duration) {
        self.calls.push(call, digest, sequence, timeout);
        self.made = sequence;
        if sequence <= self.patient {
            self.offer_clock(sequence);
        }
        if self.checks_calls() {
            self.tell_entered(call.numbered(sequence));
        }
        if !self.positions.is_empty() {
            self.positions.clear();
        }
        self.has_asked_coordinator = false;
        self.inside = true;
        if !self.announced.is_empty() {
            let due: Vec<_> = self.announced.keys().copied().collect();
            for peer in due {
                if let Some(theirs) = self.announced.remove(&peer) {
                    self.compare(peer, theirs);
                }
            }
        }
    }

    /// This rank sends to or receives from `peer`.
    pub fn enter_pair(&mut self, peer: usize, call: &Call) {
        if self.pair_calls.len() == CALLS_REMEMBERED {
            self.pair_calls.pop_front();
        }
        self.pair_calls.push_back((peer, *call));
        self.pairs_made += 1;
        if self.checks_calls() && call.root == self.rank {
            let told = Message::Posted(*call);
            self.outbox.push_back((To::Rank(peer), told));
        }
        self.positions.clear();
        let is_this = |one: &(usize, Call)| one.0 == peer && is_same_place(&one.1, call);
        if let Some(at) = self.announced_pairs.iter().position(is_this) {
            let (peer, theirs) = self.announced_pairs.swap_remove(at);
            self.compare_pair(peer, theirs);
        }
    }

    /// This rank has no call under way any more.
    pub fn idle(&mut self) {
        self.inside = false;
    }

    /// A frame of `peer`'s call number `sequence` came where one of `call` was expected.
    pub fn mismatched(&mut self, peer: usize, call: &Call, sequence: u64) {
        // The peer compares, and reports both calls in full; if it cannot, this rank's error is
        // reported. A frame of an earlier call was not expected in that call either: then the ranks
        // differ there.
        let earlier = self.calls.numbered(sequence);
        let ours = earlier.filter(|own| own.sequence < call.sequence && !call.is_pair());
        let ours = ours.unwrap_or(*call);
        self.outbox
            .push_back((To::Rank(peer), Message::Waiting(ours)));
        let error = Error::mismatch(format!(
            "{} is in {call}, but {} sent data of another call; all ranks must make the same calls \
             in the same order",
            self.name(self.rank),
            self.name(peer)
        ));
        let error = call.mark(error.with_rank(self.rank).with_peer(peer));
        self.set_pending(error, None);
    }

    pub(super) fn compare_pair(&mut self, peer: usize, theirs: Call) {
        let mut made = self.pair_calls.iter();
        let ours = made.find(|(with, ours)| *with == peer && is_same_place(ours, &theirs));
        match ours.map(|(_, ours)| *ours) {
            Some(ours) if ours != theirs => {
                let error = self.different(&ours, peer, &theirs);
                self.explained(error);
            }
            Some(_) => self.answer(peer),
            None => {
                self.answer(peer);
                let is_old = |one: &(usize, Call)| one.0 == peer && one.1.root == theirs.root;
                self.announced_pairs.retain(|one| !is_old(one));
                self.announced_pairs.push((peer, theirs));
            }
        }
    }

    /// As `compare_pair`, of a receive that `peer` has just posted: it asks for no answer.
    pub(super) fn compare_posted(&mut self, peer: usize, theirs: Call) {
        let mut made = self.pair_calls.iter();
        let ours = made.find(|(with, ours)| *with == peer && is_same_place(ours, &theirs));
        match ours {
            Some((_, ours)) if *ours != theirs => {
                let error = self.different(ours, peer, &theirs);
                self.explained(error);
            }
            None if self.announced_pairs.len() < CALLS_REMEMBERED => {
                self.announced_pairs.push((peer, theirs));
            }
            _ => {}
        }
    }

    /// Coordinator: as `compare`, of a call that `peer` has just made and that this rank has made
    /// as well: it asks for no answer.
    pub(super) fn compare_entered(&mut self, peer: usize, theirs: Call) {
        let ours = self.calls.numbered(theirs.sequence);
        if let Some(ours) = ours.filter(|ours| *ours != theirs) {
            let error = self.different(&ours, peer, &theirs);
            self.explained(error);
        }
    }

    /// What is wrong is known, such as both calls of a mismatch: this error says more than a
    /// pending one.
    pub fn explained(&mut self, error: Error) {
        if self.pending.as_ref().is_some_and(|one| !one.reported) {
            self.pending = None;
        }
        self.failed(error);
    }

    /// Both calls in full, the lower rank's first, so that both ranks report the same error.
    fn different(&self, ours: &Call, peer: usize, theirs: &Call) -> Error {
        let ((low, call), (high, other)) = match self.rank < peer {
            true => ((self.rank, ours), (peer, theirs)),
            false => ((peer, theirs), (self.rank, ours)),
        };
        let error = Error::mismatch(format!(
            "the ranks made different calls{}: {} {call}; {} {other}; all ranks must make the \
             same calls in the same order",
            self.on(),
            self.name(low),
            self.name(high)
        ));
        call.mark(error.with_rank(low).with_peer(high))
    }

    pub(super) fn compare(&mut self, peer: usize, theirs: Call) {
        let ours = self.calls.numbered(theirs.sequence);
        match ours.filter(|ours| *ours != theirs) {
            Some(ours) => {
                let error = self.different(&ours, peer, &theirs);
                self.explained(error);
            }
            None => {
                self.answer(peer);
                if theirs.sequence > self.made {
                    self.announced.insert(peer, theirs);
                }
            }
        }
    }
}

/// Whether two calls are the two ends of one message: same receiver, same number.
fn is_same_place(one: &Call, other: &Call) -> bool {
    (one.sequence, one.root) == (other.sequence, other.root)
}
