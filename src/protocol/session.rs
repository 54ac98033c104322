#![doc = include_str!("session.md")]

mod calls;
mod marks;
mod places;

use super::call::Call;
use super::message::Message;
use crate::error::Error;
use crate::limits::{FIRST_CAUSE_GRACE, HEARSAY_GRACE};
use calls::Made;
pub use marks::Agreement;
use marks::Marks;
use places::Position;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// The rank that decides which cause was first, and which mark is agreed.
const ARBITER: usize = 0;

/// Who gets a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// One rank.
    Rank(usize),
    /// Every other rank.
    All,
}

/// What this rank saw, before it is known whether something else was first.
#[derive(Debug)]
struct Suspicion {
    error: Error,
    /// The peer whose link closed, and the call that needs it: a goodbye may still explain it.
    lost: Option<(usize, Call)>,
    /// When time first passed over it.
    since: Option<Duration>,
    reported: bool,
}

/// One rank's view of a group: who left, what was called, what went wrong first, and how far all
/// had come by then.
///
/// ```
/// use ringtree::protocol::session::{Session, To};
///
/// let (mut arbiter, mut other) = (Session::new(0, 3), Session::new(1, 3));
/// arbiter.control_lost(2, "connection reset");
/// let Some((To::All, verdict)) = arbiter.next_message() else { panic!("nothing decreed") };
/// other.receive(0, verdict);
/// assert!(other.verdict().is_some_and(|cause| cause.to_string().contains("rank 2")));
/// assert_eq!(other.verdict(), arbiter.verdict());
/// ```
#[derive(Debug)]
pub struct Session {
    rank: usize,
    world_size: usize,
    calls: Made,
    /// Sends and receives made, each with its peer.
    pair_calls: VecDeque<(usize, Call)>,
    made: u64,
    inside: bool,
    /// What peers said they wait in, for calls we have not made yet.
    announced: BTreeMap<usize, Call>,
    announced_pairs: Vec<(usize, Call)>,
    /// Where ranks said they are, and what they said holds them up.
    positions: BTreeMap<usize, Position>,
    /// Whom this rank waited for when it last said so.
    awaited: Vec<usize>,
    /// Whether the arbiter, who passes all messages on, was asked where it is in this call.
    has_asked_arbiter: bool,
    departed: BTreeMap<usize, u64>,
    /// Ranks whose control connection to this one is gone.
    lost: BTreeSet<usize>,
    suspicion: Option<Suspicion>,
    verdict: Option<Error>,
    marks: Marks,
    outbox: VecDeque<(To, Message)>,
}

impl Session {
    /// The session of `rank` in a group of `world_size`.
    #[must_use]
    pub fn new(rank: usize, world_size: usize) -> Self {
        Self {
            rank,
            world_size,
            calls: Made::default(),
            pair_calls: VecDeque::new(),
            made: 0,
            inside: false,
            announced: BTreeMap::new(),
            announced_pairs: Vec::new(),
            positions: BTreeMap::new(),
            awaited: Vec::new(),
            has_asked_arbiter: false,
            departed: BTreeMap::new(),
            lost: BTreeSet::new(),
            suspicion: None,
            verdict: None,
            marks: Marks::default(),
            outbox: VecDeque::new(),
        }
    }

    /// What went wrong first, once that is settled.
    #[must_use]
    pub fn verdict(&self) -> Option<&Error> {
        self.verdict.as_ref()
    }

    /// Whether something is wrong, settled or not: then nothing should be moved any more.
    #[must_use]
    pub fn is_troubled(&self) -> bool {
        self.verdict.is_some() || self.suspicion.is_some()
    }

    /// The next message to send, if any.
    pub fn next_message(&mut self) -> Option<(To, Message)> {
        self.outbox.pop_front()
    }

    /// A message came from `from`.
    pub fn receive(&mut self, from: usize, message: Message) {
        match message {
            Message::Waiting(call) if call.is_pair() => self.compare_pair(from, call),
            Message::Waiting(call) => self.compare(from, call),
            Message::Position { place, held_up_by } => {
                self.positions
                    .insert(from, Position::new(place, held_up_by));
            }
            Message::Goodbye { calls } => self.departed(from, calls),
            Message::Report(error) if self.rank == ARBITER => self.decree(error),
            Message::Verdict(error) if from == ARBITER => self.conclude(error),
            Message::Mark(number) if self.rank == ARBITER => self.told(from, number),
            Message::Agreed(number) if from == ARBITER => self.marks.learn(number),
            Message::Report(_) | Message::Verdict(_) => {}
            Message::Mark(_) | Message::Agreed(_) => {}
        }
    }

    /// The link to `peer` is gone, which `call` still needs.
    pub fn link_lost(&mut self, peer: usize, call: &Call, why: &str) {
        let error = match self.departed.get(&peer) {
            Some(calls) => self.left_too_early(peer, *calls, call),
            None => self.gone(peer, &format!(" during {}", call.name()), why),
        };
        self.suspect(error, Some((peer, *call)));
    }

    /// The control connection of `peer` is gone: it died, unless it had said goodbye.
    pub fn control_lost(&mut self, peer: usize, why: &str) {
        self.lost.insert(peer);
        if self.departed.contains_key(&peer) {
            return;
        }
        let during = match self.calls.last() {
            Some(call) if self.inside => format!(" during {}", call.name()),
            _ => String::new(),
        };
        let error = self.gone(peer, &during, why);
        if self.rank == ARBITER {
            self.decree(error);
            self.agree_if_all_told();
        } else {
            self.conclude(error);
        }
    }

    /// Something is wrong on this rank, such as a deadline: report it, unless something was before.
    pub fn failed(&mut self, error: Error) {
        self.suspect(error, None);
        self.report();
    }

    /// Time passes: what was seen is reported, and stands if nobody answers. A rank that has not
    /// told its mark in time is given up.
    pub fn tick(&mut self, now: Duration) {
        self.agree_in_time(now);
        let Some(suspicion) = &mut self.suspicion else {
            return;
        };
        let since = *suspicion.since.get_or_insert(now);
        if now >= since + HEARSAY_GRACE {
            self.report();
        }
        if now >= since + HEARSAY_GRACE + FIRST_CAUSE_GRACE
            && let Some(suspicion) = self.suspicion.take()
        {
            self.conclude(suspicion.error);
        }
    }

    /// This rank leaves.
    pub fn leave(&mut self) {
        self.outbox
            .push_back((To::All, Message::Goodbye { calls: self.made }));
    }

    fn gone(&self, peer: usize, during: &str, why: &str) -> Error {
        let message = format!(
            "rank {peer} is gone{during}, seen by rank {}: {why}; look at that rank's last output \
             and restart the job",
            self.rank
        );
        Error::PeerLost {
            rank: peer,
            message,
        }
    }

    fn left_too_early(&self, peer: usize, calls: u64, call: &Call) -> Error {
        let message = format!(
            "rank {peer} left after call #{calls}, but rank {} still needs it for {}; all ranks \
             must make the same calls",
            self.rank,
            call.name()
        );
        Error::PeerLost {
            rank: peer,
            message,
        }
    }

    fn suspect(&mut self, error: Error, lost: Option<(usize, Call)>) {
        if !self.is_troubled() {
            self.suspicion = Some(Suspicion {
                error,
                lost,
                since: None,
                reported: false,
            });
        }
    }

    /// Tells the arbiter what this rank suspects, once.
    fn report(&mut self) {
        let Some(suspicion) = self.suspicion.as_mut().filter(|one| !one.reported) else {
            return;
        };
        suspicion.reported = true;
        let error = suspicion.error.clone();
        if self.rank == ARBITER {
            self.decree(error);
        } else {
            self.outbox
                .push_back((To::Rank(ARBITER), Message::Report(error)));
        }
    }

    fn departed(&mut self, peer: usize, calls: u64) {
        self.departed.insert(peer, calls);
        self.agree_if_all_told();
        let call = match &self.suspicion {
            Some(Suspicion {
                lost: Some((lost, call)),
                reported: false,
                ..
            }) if *lost == peer => *call,
            _ => return,
        };
        let error = self.left_too_early(peer, calls, &call);
        self.suspicion = None;
        self.failed(error);
    }

    fn decree(&mut self, error: Error) {
        if self.verdict.is_none() {
            self.outbox
                .push_back((To::All, Message::Verdict(error.clone())));
            self.conclude(error);
        }
    }

    /// The first cause is known: from here on this rank has failed, and its mark stands.
    fn conclude(&mut self, error: Error) {
        if self.verdict.is_none() {
            self.verdict = Some(error);
            self.tell_mark();
        }
    }

    /// Whether `peer` has left or is lost, as far as this rank knows.
    #[must_use]
    pub fn is_gone(&self, peer: usize) -> bool {
        let is_cause =
            |error: &Error| matches!(error, Error::PeerLost { rank, .. } if *rank == peer);
        self.departed.contains_key(&peer)
            || self.lost.contains(&peer)
            || self.verdict().is_some_and(is_cause)
    }

    /// Whether any rank has left.
    #[must_use]
    pub fn has_departures(&self) -> bool {
        !self.departed.is_empty()
    }

    /// Whether `peer` left before the call number `sequence`, which it is awaited in.
    pub fn left_before(&mut self, peer: usize, call: &Call) {
        match self.departed.get(&peer) {
            Some(calls) if *calls < call.sequence && !call.is_pair() => {
                let error = self.left_too_early(peer, *calls, call);
                self.failed(error);
            }
            _ => {}
        }
    }
}
