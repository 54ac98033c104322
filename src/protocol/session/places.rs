//! Which rank waits for which, and which call each rank is in.

use super::{Session, To};
use crate::limits::{ANSWERS_MISSED_MAX, PEERS_ASKED_MAX, PLACES_MAX};
use crate::protocol::call::Call;
use crate::protocol::message::{Message, Place, Wait};
use std::collections::BTreeMap;

/// What a peer said of where it is.
#[derive(Debug)]
pub(super) struct Position {
    pub(super) place: Place,
    pub(super) held_up_by: Vec<Place>,
    pub(super) waits: Vec<Wait>,
    /// Times it was asked since.
    asked: u32,
}

impl Position {
    pub(super) fn new(place: Place, held_up_by: Vec<Place>, waits: Vec<Wait>) -> Self {
        Self {
            place,
            held_up_by,
            waits,
            asked: 0,
        }
    }
}

impl Session {
    /// This rank has waited for `peers` in `call`, and says so for the `notice`th time. Of many
    /// peers, some get it each time.
    pub fn waited(&mut self, call: &Call, peers: &[usize], notice: usize) {
        let groups = peers.len().div_ceil(PEERS_ASKED_MAX).max(1);
        for peer in peers.iter().skip(notice % groups).step_by(groups) {
            self.ask(*peer, call);
        }
        let coordinator = self.coordinator;
        if self.rank != coordinator && !peers.contains(&coordinator) {
            self.ask(coordinator, call);
        }
        self.has_asked_coordinator = true;
    }

    /// Tells `peer` that this rank waits in `call`; `peer` answers where it is. The last answer of
    /// a peer that has left more than [`ANSWERS_MISSED_MAX`] questions unanswered is forgotten.
    fn ask(&mut self, peer: usize, call: &Call) {
        self.outbox
            .push_back((To::Rank(peer), Message::Waiting(*call)));
        if let Some(position) = self.positions.get_mut(&peer) {
            position.asked += 1;
            if position.asked > ANSWERS_MISSED_MAX {
                self.positions.remove(&peer);
            }
        }
    }

    /// The ranks that hold up a rank which waits for `awaited`, as far as this rank knows. Ranks
    /// that are known to wait as well are left out for the ranks that they wait for.
    #[must_use]
    pub fn held_up_by(&self, awaited: &[usize]) -> Vec<Place> {
        let (waiting, mut blamed) = self.waiting_and_blamed(awaited);
        if blamed.is_empty() {
            blamed = waiting;
        }
        blamed.truncate(PLACES_MAX);
        blamed
    }

    fn waiting_and_blamed(&self, awaited: &[usize]) -> (Vec<Place>, Vec<Place>) {
        let places = self.places(awaited);
        let is_known = |rank: u32| {
            let place = places.get(&rank);
            place.is_some_and(|place| place.calls != Place::UNKNOWN)
        };
        places.values().cloned().partition(|one| {
            let is_in_same_call = one.inside && self.inside && one.calls == self.made;
            is_in_same_call || one.pair.and_then(|pair| pair.peer).is_some_and(is_known)
        })
    }

    /// Where the ranks are that this rank waits for if it waits for `awaited`, directly or not.
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
            let beyond = self.positions.get(peer).map(|one| &one.held_up_by);
            beyond.into_iter().flatten().cloned().for_each(&mut note);
        }
        // If the coordinator is silent, others may be because it does not relay their answers.
        if self.has_asked_coordinator && !self.positions.contains_key(&self.coordinator) {
            note(unknown(self.coordinator));
        }
        // A rank fits 32 bits (`limits::WORLD_SIZE_MAX`).
        places.remove(&(self.rank as u32));
        places
    }

    /// What the rank itself has said of where it is, or else what another has.
    pub(super) fn latest<'a>(&'a self, told: &'a Place) -> &'a Place {
        let own = self.positions.get(&(told.rank as usize));
        own.map_or(told, |own| &own.place)
    }

    /// Where a rank is, in words.
    #[must_use]
    pub fn whereabouts(&self, place: &Place) -> String {
        let Place {
            rank,
            calls,
            inside,
            pair_calls,
            pair,
        } = *place;
        let name = self.name(rank as usize);
        if let Some(departed) = self.departed.get(&(rank as usize)) {
            return format!("{name} left after call #{}", departed.calls);
        }
        match (calls, inside, pair) {
            (Place::UNKNOWN, ..) => format!("{name} has not said where it is"),
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
                "{name} is in no call, after {calls} collectives and {pair_calls} sends and \
                 receives"
            ),
        }
    }

    /// Tells `peer` where this rank is.
    pub(super) fn answer(&mut self, peer: usize) {
        let place = Place {
            // A rank fits 32 bits (`limits::WORLD_SIZE_MAX`).
            rank: self.rank as u32,
            calls: self.made,
            inside: self.inside,
            pair_calls: self.pairs_made,
            pair: self.pair,
        };
        let position = Message::Position {
            place,
            held_up_by: self.held_up_by(&self.awaited),
            waits: self.waits.clone(),
        };
        self.outbox.push_back((To::Rank(peer), position));
    }
}

fn unknown(rank: usize) -> Place {
    Place {
        // A rank fits 32 bits (`limits::WORLD_SIZE_MAX`).
        rank: rank as u32,
        calls: Place::UNKNOWN,
        inside: false,
        pair_calls: 0,
        pair: None,
    }
}
