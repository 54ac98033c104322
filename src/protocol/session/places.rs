//! Exchanges positions, which state the call that each rank is in and the ranks that it is waiting
//! for.

use super::Session;
use crate::limits::{ANSWERS_MISSED_MAX, PEERS_QUERIED_MAX, PLACES_MAX};
use crate::protocol::call::Call;
use crate::protocol::message::{Message, Place, Wait};
use std::collections::BTreeMap;

/// The position that a peer reported last.
#[derive(Debug)]
pub(super) struct Position {
    pub(super) place: Place,
    pub(super) blocked_by: Vec<Place>,
    pub(super) waits: Vec<Wait>,
    /// Number of questions that this rank has sent to the peer since the peer reported this
    /// position.
    pub(super) asked: u32,
}

impl Session {
    /// Notifies `peers`, for the `notice`th time, that this rank is waiting for them in `call`. If
    /// there are more than [`PEERS_QUERIED_MAX`] peers, notifies only some of them each time.
    pub fn notify_waiting(&mut self, call: &Call, peers: &[usize], notice: usize) {
        let groups = peers.len().div_ceil(PEERS_QUERIED_MAX).max(1);
        for peer in peers.iter().skip(notice % groups).step_by(groups) {
            self.ask(*peer, Message::Waiting(*call));
        }
        let coordinator = self.coordinator;
        if self.rank != coordinator && !peers.contains(&coordinator) {
            // Do not describe a message to the coordinator, which would compare it with one of its
            // own messages that has the same sequence number.
            let question = match call.is_pair() {
                true => Message::Asking,
                false => Message::Waiting(*call),
            };
            self.ask(coordinator, question);
        }
        self.has_asked_coordinator = true;
    }

    /// Forgets the positions of other ranks because this rank enters a call.
    #[inline]
    pub(super) fn forget_positions(&mut self) {
        if !self.positions.is_empty() {
            self.positions.clear();
        }
        self.has_asked_coordinator = false;
    }

    /// Sends `question` to `peer`, which answers with its position. Discards the last answer from a
    /// peer that has left more than [`ANSWERS_MISSED_MAX`] questions unanswered.
    fn ask(&mut self, peer: usize, question: Message) {
        self.send(peer, question);
        if let Some(position) = self.positions.get_mut(&peer) {
            position.asked += 1;
            if position.asked > ANSWERS_MISSED_MAX {
                self.positions.remove(&peer);
            }
        }
    }

    /// Returns the ranks that, to this rank's knowledge, are blocking a rank that is waiting for
    /// `awaited`. Ranks that are known to be waiting, too, are replaced with the ranks that they
    /// are waiting for.
    #[must_use]
    pub fn blocked_by(&self, awaited: &[usize]) -> Vec<Place> {
        match self.split_by_waiting(awaited) {
            (waiting, blamed) if blamed.is_empty() => waiting,
            (_, blamed) => blamed,
        }
    }

    fn split_by_waiting(&self, awaited: &[usize]) -> (Vec<Place>, Vec<Place>) {
        let places = self.places(awaited);
        let is_known = |rank: u32| {
            let place = places.get(&rank);
            place.is_some_and(|place| place.calls != Place::UNKNOWN)
        };
        places.values().cloned().partition(|one| {
            let is_in_same_call = one.inside && self.inside && one.calls == self.collectives_made;
            is_in_same_call || one.pair.and_then(|pair| pair.peer).is_some_and(is_known)
        })
    }

    /// Returns the positions of all ranks that this rank is waiting for, directly or indirectly, if
    /// it is waiting for `awaited`.
    fn places(&self, awaited: &[usize]) -> BTreeMap<u32, Place> {
        let mut places: BTreeMap<u32, Place> = BTreeMap::new();
        let mut note = |told: Place| {
            let rank = told.rank as usize;
            let own = self.positions.get(&rank).map(|one| one.place.clone());
            let place = places.entry(told.rank).or_insert_with(|| told.clone());
            *place = match own {
                Some(own) => own,
                None if place.calls == Place::UNKNOWN => told,
                None => return,
            };
        };
        for peer in awaited {
            note(unknown(*peer));
            let indirect = self.positions.get(peer).map(|one| &one.blocked_by);
            indirect.into_iter().flatten().cloned().for_each(&mut note);
        }
        // If the coordinator is silent, other ranks may seem silent because it does not relay their
        // answers.
        if self.has_asked_coordinator && !self.positions.contains_key(&self.coordinator) {
            note(unknown(self.coordinator));
        }
        // A rank fits in 32 bits (`limits::WORLD_SIZE_MAX`).
        places.remove(&(self.rank as u32));
        places
    }

    /// Returns the position that the rank itself has reported, if any, or else `told`, which
    /// another rank has reported.
    pub(super) fn latest<'a>(&'a self, told: &'a Place) -> &'a Place {
        let own = self.positions.get(&(told.rank as usize));
        own.map_or(told, |own| &own.place)
    }

    /// Returns a human-readable description of a rank's position.
    #[must_use]
    pub fn describe(&self, place: &Place) -> String {
        let Place {
            rank, pair_calls, ..
        } = *place;
        let name = self.rank_name(rank as usize);
        if let Some(departed) = self.departed.get(&(rank as usize)) {
            return format!("{name} left after call #{}", departed.calls);
        }
        match (place.calls, place.inside, place.pair) {
            (Place::UNKNOWN, ..) => format!("{name} has not reported its position"),
            (calls, true, None) => format!("{name} is still in call #{calls}"),
            (calls, true, Some(pair)) => {
                format!("{name} is still in call #{calls} and in {pair}")
            }
            (_, false, Some(pair)) => format!("{name} is in {pair}"),
            (0, false, None) if pair_calls == 0 => format!("{name} has made no call yet"),
            (calls, false, None) if pair_calls == 0 => {
                format!("{name} has made no call after #{calls}")
            }
            (calls, false, None) => format!(
                "{name} is not in a call after {calls} collectives and {pair_calls} sends and \
                 receives"
            ),
        }
    }

    /// Sends this rank's position to `peer`.
    pub(super) fn answer(&mut self, peer: usize) {
        let place = Place {
            // A rank fits in 32 bits (`limits::WORLD_SIZE_MAX`).
            rank: self.rank as u32,
            calls: self.collectives_made,
            inside: self.inside,
            pair_calls: self.pairs_made,
            pair: self.pair,
        };
        let mut blocked_by = self.blocked_by(&self.awaited);
        blocked_by.truncate(PLACES_MAX);
        let position = Message::Position {
            place,
            blocked_by,
            waits: self.waits.clone(),
        };
        self.send(peer, position);
    }
}

fn unknown(rank: usize) -> Place {
    Place {
        // A rank fits in 32 bits (`limits::WORLD_SIZE_MAX`).
        rank: rank as u32,
        calls: Place::UNKNOWN,
        inside: false,
        pair_calls: 0,
        pair: None,
    }
}
