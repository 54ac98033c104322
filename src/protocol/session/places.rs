//! Which rank waits for which, and which call each rank is in.

use super::{COORDINATOR, Session, To};
use crate::limits::{ANSWERS_MISSED_MAX, PEERS_ASKED_MAX, PLACES_MAX};
use crate::protocol::call::Call;
use crate::protocol::message::{Message, Place};
use std::collections::BTreeMap;

/// What a peer said of where it is.
#[derive(Debug)]
pub(super) struct Position {
    place: Place,
    held_up_by: Vec<Place>,
    /// Times it was asked since.
    asked: u32,
}

impl Position {
    pub(super) fn new(place: Place, held_up_by: Vec<Place>) -> Self {
        Self {
            place,
            held_up_by,
            asked: 0,
        }
    }
}

impl Session {
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
        if self.rank != COORDINATOR && !peers.contains(&COORDINATOR) {
            self.ask(COORDINATOR, call);
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

    /// The ranks that hold up a rank which waits for `awaited`, as far as this rank knows. Ranks in
    /// the same call wait as well: not they are named, but the ranks that they wait for.
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
        // If the coordinator is silent, others may be because it does not relay their answers.
        if self.has_asked_coordinator
            && !self.positions.contains_key(&COORDINATOR)
            && !self.departed.contains_key(&COORDINATOR)
        {
            note(unknown(COORDINATOR));
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
        let name = self.name(rank as usize);
        if let Some(calls) = self.departed.get(&(rank as usize)) {
            return format!("{name} left after call #{calls}");
        }
        match (calls, inside) {
            (Place::UNKNOWN, _) => format!("{name} has not said where it is"),
            (calls, true) => format!("{name} is still in call #{calls}"),
            (0, false) => format!("{name} has made no call yet"),
            (calls, false) => format!("{name} has made no call after #{calls}"),
        }
    }

    /// Tells `peer` where this rank is.
    pub(super) fn answer(&mut self, peer: usize) {
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
}

fn unknown(rank: usize) -> Place {
    Place {
        // A rank fits 32 bits (`limits::WORLD_SIZE_MAX`).
        rank: rank as u32,
        calls: Place::UNKNOWN,
        inside: false,
    }
}
