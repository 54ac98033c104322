//! The first cause: one per group, the same on every rank.
//!
//! A rank that sees something wrong (a peer gone, a frame of another call, a deadline) does not
//! fail alone: it *reports* to the arbiter, rank 0, which decrees the first report it gets to all
//! ranks. A rank whose report is not answered within a grace period (the arbiter may be the dead
//! one) takes its own. Goodbyes say after which call a rank left, so that a closed connection can
//! be told from a death.
//!
//! A rank that has waited a while tells the ranks it waits for what it is waiting in. One message
//! serves two ends: who made another call under that number names both calls in full; who has not
//! made it yet answers where it is, for the deadline's error to say.

use super::call::Call;
use super::message::{Message, Place};
use crate::error::Error;
use crate::limits::{
    ANSWERS_MISSED_MAX, CALLS_REMEMBERED, FIRST_CAUSE_GRACE, HEARSAY_GRACE, PEERS_ASKED_MAX,
    PLACES_MAX,
};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The rank that decides which cause was first.
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

/// What a peer said of where it is.
#[derive(Debug)]
struct Position {
    place: Place,
    held_up_by: Vec<Place>,
    /// Times it was asked since.
    asked: u32,
}

/// One rank's view of a group: who left, what was called, and what went wrong first.
///
/// ```
/// use ringtree::protocol::session::{Session, To};
///
/// let (mut arbiter, mut other) = (Session::new(0), Session::new(1));
/// arbiter.control_lost(2, "connection reset");
/// let Some((To::All, verdict)) = arbiter.next_message() else { panic!("nothing decreed") };
/// other.receive(0, verdict);
/// assert!(other.verdict().is_some_and(|cause| cause.to_string().contains("rank 2")));
/// assert_eq!(other.verdict(), arbiter.verdict());
/// ```
#[derive(Debug)]
pub struct Session {
    rank: usize,
    calls: VecDeque<Call>,
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
    suspicion: Option<Suspicion>,
    verdict: Option<Error>,
    outbox: VecDeque<(To, Message)>,
}

impl Session {
    /// The session of `rank`.
    #[must_use]
    pub fn new(rank: usize) -> Self {
        Self {
            rank,
            calls: VecDeque::with_capacity(CALLS_REMEMBERED),
            pair_calls: VecDeque::new(),
            made: 0,
            inside: false,
            announced: BTreeMap::new(),
            announced_pairs: Vec::new(),
            positions: BTreeMap::new(),
            awaited: Vec::new(),
            has_asked_arbiter: false,
            departed: BTreeMap::new(),
            suspicion: None,
            verdict: None,
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

    /// This rank makes `call`.
    pub fn enter(&mut self, call: &Call) {
        if self.calls.len() == CALLS_REMEMBERED {
            self.calls.pop_front();
        }
        self.calls.push_back(call.clone());
        self.made = call.sequence;
        self.positions.clear();
        self.has_asked_arbiter = false;
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
        self.pair_calls.push_back((peer, call.clone()));
        let is_this = |one: &(usize, Call)| one.0 == peer && is_same_place(&one.1, call);
        if let Some(at) = self.announced_pairs.iter().position(is_this) {
            let (peer, theirs) = self.announced_pairs.swap_remove(at);
            self.compare_pair(peer, theirs);
        }
    }

    /// This rank has no call under way any more.
    pub fn idle(&mut self) {
        self.inside = false;
        self.awaited.clear();
    }

    /// This rank has waited for `peers` in `call`, and says so for the `notice`th time. Of many
    /// peers, some get it each time.
    pub fn waited(&mut self, call: &Call, peers: &[usize], notice: usize) {
        if !call.is_pair() {
            self.awaited = peers.to_vec();
        }
        let groups = peers.len().div_ceil(PEERS_ASKED_MAX).max(1);
        for peer in peers.iter().skip(notice % groups).step_by(groups) {
            self.ask(*peer, call);
        }
        if self.rank != ARBITER && !peers.contains(&ARBITER) {
            self.ask(ARBITER, call);
        }
        self.has_asked_arbiter = true;
    }

    /// Tells `peer` of the waiting, for which it will say where it is. Who has not answered the
    /// last times is where nobody knows.
    fn ask(&mut self, peer: usize, call: &Call) {
        self.outbox
            .push_back((To::Rank(peer), Message::Waiting(call.clone())));
        if let Some(position) = self.positions.get_mut(&peer) {
            position.asked += 1;
            if position.asked > ANSWERS_MISSED_MAX {
                self.positions.remove(&peer);
            }
        }
    }

    /// A message came from `from`.
    pub fn receive(&mut self, from: usize, message: Message) {
        match message {
            Message::Waiting(call) if call.is_pair() => self.compare_pair(from, call),
            Message::Waiting(call) => self.compare(from, call),
            Message::Position { place, held_up_by } => {
                let position = Position {
                    place,
                    held_up_by,
                    asked: 0,
                };
                self.positions.insert(from, position);
            }
            Message::Goodbye { calls } => self.departed(from, calls),
            Message::Report(error) if self.rank == ARBITER => self.decree(error),
            Message::Verdict(error) if from == ARBITER => {
                self.verdict.get_or_insert(error);
            }
            Message::Report(_) | Message::Verdict(_) => {}
        }
    }

    /// A frame of `peer`'s call number `sequence` came where one of `call` was expected.
    pub fn mismatched(&mut self, peer: usize, call: &Call, sequence: u64) {
        // The peer compares, and reports both calls in full; if it cannot, this stands. What comes
        // from an earlier call was not expected in that one: then that is where the ranks differ.
        let earlier = self.calls.iter().find(|own| own.sequence == sequence);
        let ours = earlier.filter(|own| own.sequence < call.sequence && !call.is_pair());
        let ours = ours.unwrap_or(call).clone();
        self.outbox
            .push_back((To::Rank(peer), Message::Waiting(ours)));
        let error = Error::Mismatch(format!(
            "rank {} is in {call}, but rank {peer} sent data of another call; all ranks must \
             make the same calls in the same order",
            self.rank
        ));
        self.suspect(error, None);
    }

    /// The link to `peer` is gone, which `call` still needs.
    pub fn link_lost(&mut self, peer: usize, call: &Call, why: &str) {
        let error = match self.departed.get(&peer) {
            Some(calls) => self.left_too_early(peer, *calls, call),
            None => self.gone(peer, &format!(" during {}", call.name()), why),
        };
        self.suspect(error, Some((peer, call.clone())));
    }

    /// The control connection of `peer` is gone: it died, unless it had said goodbye.
    pub fn control_lost(&mut self, peer: usize, why: &str) {
        if self.departed.contains_key(&peer) {
            return;
        }
        let during = match self.calls.back() {
            Some(call) if self.inside => format!(" during {}", call.name()),
            _ => String::new(),
        };
        let error = self.gone(peer, &during, why);
        if self.rank == ARBITER {
            self.decree(error);
        } else if self.verdict.is_none() {
            self.verdict = Some(error);
        }
    }

    /// Something is wrong on this rank, such as a deadline: report it, unless something was before.
    pub fn failed(&mut self, error: Error) {
        self.suspect(error, None);
        self.report();
    }

    /// Time passes: what was seen is reported, and stands if nobody answers.
    pub fn tick(&mut self, now: Duration) {
        let Some(suspicion) = &mut self.suspicion else {
            return;
        };
        let since = *suspicion.since.get_or_insert(now);
        if now >= since + HEARSAY_GRACE {
            self.report();
        }
        if now >= since + HEARSAY_GRACE + FIRST_CAUSE_GRACE {
            self.verdict = self
                .verdict
                .take()
                .or(self.suspicion.take().map(|s| s.error));
        }
    }

    /// This rank leaves.
    pub fn leave(&mut self) {
        self.outbox
            .push_back((To::All, Message::Goodbye { calls: self.made }));
    }

    /// Who holds up a rank that waits for `awaited`, as far as it is known. Ranks in the same call
    /// wait as well and are not to blame, but those that they wait for.
    #[must_use]
    pub fn held_up_by(&self, awaited: &[usize]) -> Vec<Place> {
        let mut places: BTreeMap<u32, Place> = BTreeMap::new();
        let mut note = |told: Place| {
            let rank = told.rank as usize;
            let own = self.positions.get(&rank).map(|one| one.place);
            let place = places.entry(told.rank).or_insert(told);
            *place = match own {
                Some(own) => own,
                None if place.calls == Place::UNKNOWN => told,
                None => return,
            };
        };
        for peer in awaited {
            note(unknown(*peer));
            let beyond = self.positions.get(peer).map(|one| &one.held_up_by);
            beyond.into_iter().flatten().for_each(|one| note(*one));
        }
        // If the arbiter is silent, others may be because it does not pass their answers on.
        if self.has_asked_arbiter
            && !self.positions.contains_key(&ARBITER)
            && !self.departed.contains_key(&ARBITER)
        {
            note(unknown(ARBITER));
        }
        // A rank fits 32 bits (`limits::WORLD_SIZE_MAX`).
        places.remove(&(self.rank as u32));
        let waits_too = |one: &Place| one.inside && self.inside && one.calls == self.made;
        let (waiting, mut blamed): (Vec<_>, Vec<_>) = places.into_values().partition(waits_too);
        if blamed.is_empty() {
            blamed = waiting;
        }
        blamed.truncate(PLACES_MAX);
        blamed
    }

    /// Where a rank is, in words.
    #[must_use]
    pub fn whereabouts(&self, place: &Place) -> String {
        let Place {
            rank,
            calls,
            inside,
        } = *place;
        if let Some(calls) = self.departed.get(&(rank as usize)) {
            return format!("rank {rank} left after call #{calls}");
        }
        match (calls, inside) {
            (Place::UNKNOWN, _) => format!("rank {rank} has not said where it is"),
            (calls, true) => format!("rank {rank} is still in call #{calls}"),
            (0, false) => format!("rank {rank} has made no call yet"),
            (calls, false) => format!("rank {rank} has made no call after #{calls}"),
        }
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
        let call = match &self.suspicion {
            Some(Suspicion {
                lost: Some((lost, call)),
                reported: false,
                ..
            }) if *lost == peer => call.clone(),
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
            self.verdict = Some(error);
        }
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

    /// Tells `peer` where this rank is.
    fn answer(&mut self, peer: usize) {
        let place = Place {
            // A rank fits 32 bits (`limits::WORLD_SIZE_MAX`).
            rank: self.rank as u32,
            calls: self.made,
            inside: self.inside,
        };
        let held_up_by = self.held_up_by(&self.awaited);
        let position = Message::Position { place, held_up_by };
        self.outbox.push_back((To::Rank(peer), position));
    }

    fn compare_pair(&mut self, peer: usize, theirs: Call) {
        let mut made = self.pair_calls.iter();
        let ours = made.find(|(with, ours)| *with == peer && is_same_place(ours, &theirs));
        match ours {
            Some((_, ours)) if *ours != theirs => {
                let error = different(self.rank, ours, peer, &theirs);
                self.named(error);
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

    /// Both calls of a mismatch are known: better than what this rank saw of it by itself.
    fn named(&mut self, error: Error) {
        if self.suspicion.as_ref().is_some_and(|one| !one.reported) {
            self.suspicion = None;
        }
        self.failed(error);
    }

    fn compare(&mut self, peer: usize, theirs: Call) {
        let ours = self
            .calls
            .iter()
            .find(|call| call.sequence == theirs.sequence);
        match ours.filter(|ours| **ours != theirs) {
            Some(ours) => {
                let error = different(self.rank, ours, peer, &theirs);
                self.named(error);
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

fn unknown(rank: usize) -> Place {
    Place {
        // A rank fits 32 bits (`limits::WORLD_SIZE_MAX`).
        rank: rank as u32,
        calls: Place::UNKNOWN,
        inside: false,
    }
}

/// Whether two calls are the two ends of one message: same receiver, same number.
fn is_same_place(one: &Call, other: &Call) -> bool {
    (one.sequence, one.root) == (other.sequence, other.root)
}

/// Both calls in full, the lower rank's first, so that whoever says it says the same.
fn different(rank: usize, ours: &Call, peer: usize, theirs: &Call) -> Error {
    let (low, high) = if rank < peer {
        (
            format!("rank {rank} {ours}"),
            format!("rank {peer} {theirs}"),
        )
    } else {
        (
            format!("rank {peer} {theirs}"),
            format!("rank {rank} {ours}"),
        )
    };
    Error::Mismatch(format!(
        "the ranks made different calls: {low}; {high}; all ranks must make the same calls in \
         the same order"
    ))
}
