//! Reports which ranks are blocked in which calls, across all communicators, and detects ranks that
//! are waiting for each other.

use super::Session;
use crate::limits::{PLACES_MAX, RANKS_LISTED_MAX};
use crate::protocol::call::Call;
use crate::protocol::group_creation::list;
use crate::protocol::message::{Place, Wait};
use std::collections::BTreeSet;

/// A report on the ranks that are blocking a call.
#[derive(Debug)]
pub struct WaitReport {
    /// Human-readable text.
    pub words: String,
    /// The ranks that are blocking the call.
    pub ranks: Vec<usize>,
    /// `true` if ranks are waiting for each other.
    pub is_deadlock: bool,
}

impl Session {
    /// Sets the number of the session's group.
    pub fn set_group(&mut self, number: u32) {
        self.group = number;
    }

    /// Returns the waits that this rank reports if its thread is blocked in `call` and is waiting
    /// for `awaited`. The thread's own wait comes first, followed by the waits that it depends on.
    #[must_use]
    pub fn waits(&self, call: &Call, awaited: &[usize]) -> Vec<Wait> {
        let own = self.wait(call, awaited);
        let mut told = self.reported_waits(&own, awaited);
        told.retain(|wait| wait.rank != own.rank);
        told.insert(0, own);
        told.truncate(PLACES_MAX);
        told
    }

    /// Returns a report on the ranks that are blocking `call`, which is waiting for `awaited`.
    #[must_use]
    pub fn wait_report(&self, call: &Call, awaited: &[usize]) -> WaitReport {
        let own = self.wait(call, awaited);
        let told = self.reported_waits(&own, awaited);
        let circle = circle(&told);
        let places = self.blocked_by(awaited);
        let (mut beside, mut words) = (Vec::new(), Vec::new());
        for place in places.iter().take(PLACES_MAX) {
            let wait = told
                .iter()
                .find(|wait| wait.rank == self.of_world(place.rank));
            match wait {
                Some(wait) if circle.contains(&wait.rank) => {}
                Some(wait) => beside.push(wait),
                None => words.push(self.describe(place)),
            }
        }
        words.splice(0..0, self.in_words(&beside));
        let is_told = |wait: &&Wait| wait.rank != own.rank && circle.contains(&wait.rank);
        let others: Vec<&Wait> = told.iter().filter(is_told).collect();
        // A peer that sends false positions can make a rank appear to wait for itself.
        let is_deadlock = !others.is_empty();
        if is_deadlock {
            let others = self.in_words(&others).join(", ");
            words.insert(0, format!("{others}; they wait for each other"));
        } else if words.is_empty() {
            words.push("no rank is holding it up".to_owned());
        }
        if let Some(more @ 1..) = places.len().checked_sub(PLACES_MAX) {
            words.push(format!("and {more} more ranks"));
        }
        WaitReport {
            words: words.join(", "),
            ranks: places.iter().map(|one| one.rank as usize).collect(),
            is_deadlock,
        }
    }

    fn of_world(&self, rank: u32) -> u32 {
        // A rank fits in 32 bits (`limits::WORLD_SIZE_MAX`).
        self.members.world_rank(rank as usize) as u32
    }

    fn wait(&self, call: &Call, awaited: &[usize]) -> Wait {
        let title = match &self.title {
            Some(name) => format!("{name:?}"),
            None if self.group == 0 => "the communicator of all ranks".to_owned(),
            None => format!("an unnamed communicator of {} ranks", self.members.count()),
        };
        let absent = self.absent(call, awaited).into_iter();
        Wait {
            rank: self.of_world(self.rank as u32),
            group: self.group,
            title,
            call: Call {
                root: self.members.world_rank(call.root),
                ..*call
            },
            awaits: absent.map(|rank| self.of_world(rank)).collect(),
        }
    }

    /// Returns the ranks that `call` is waiting for and that have reported that they have not made
    /// it. Such a rank is either in `awaited`, or a rank in `awaited` is waiting for it in the same
    /// call.
    fn absent(&self, call: &Call, awaited: &[usize]) -> BTreeSet<u32> {
        // A receive from any rank has no sequence number yet. It does not need all of `awaited`,
        // because any of them may send.
        let needs_all = !call.is_pair() || call.sequence > 0;
        let awaited = awaited.iter().filter(|_| needs_all);
        let is_absent = |place: &&Place| {
            let place = self.latest(place);
            let is_there = match call.is_pair() {
                false => place.calls >= call.sequence,
                true => place.pair.is_some_and(|pair| {
                    let is_this =
                        (pair.sequence, pair.sends) == (call.sequence, call.root == self.rank);
                    is_this && pair.peer == Some(self.rank as u32)
                }),
            };
            !is_there && !self.departed.contains_key(&(place.rank as usize))
        };
        let mut absent = BTreeSet::new();
        for position in awaited.filter_map(|rank| self.positions.get(rank)) {
            if is_absent(&&position.place) {
                absent.insert(position.place.rank);
            } else if !call.is_pair() {
                let indirect = position.blocked_by.iter().filter(is_absent);
                absent.extend(indirect.map(|place| place.rank));
            }
        }
        absent.remove(&(self.rank as u32));
        while absent.len() > PLACES_MAX {
            absent.pop_last();
        }
        absent
    }

    /// Returns the waits that the ranks in `awaited` have reported, one per rank. The waits of
    /// these ranks themselves come first. This rank's own wait is included only if one of the ranks
    /// has reported that this rank is waiting in the call of `own`.
    fn reported_waits(&self, own: &Wait, awaited: &[usize]) -> Vec<Wait> {
        let tellers = || awaited.iter().filter_map(|rank| self.positions.get(rank));
        let first = tellers().filter_map(|one| one.waits.first());
        let indirect = tellers().flat_map(|one| one.waits.iter().skip(1));
        let mut told: Vec<Wait> = Vec::new();
        for wait in first.chain(indirect) {
            let is_own = (wait.group, wait.call) == (own.group, own.call);
            let is_known = told.iter().any(|one| one.rank == wait.rank);
            if !is_known && (is_own || wait.rank != own.rank) {
                told.push(wait.clone());
            }
        }
        told
    }

    /// Describes `waits` as text. Ranks that are waiting in the same call share a description.
    fn in_words(&self, waits: &[&Wait]) -> Vec<String> {
        let mut words = Vec::new();
        let mut rest = waits.to_vec();
        while let [one, ..] = *rest {
            let together =
                rest.extract_if(.., |wait| (wait.group, wait.call) == (one.group, one.call));
            let (mut who, mut whom) = (BTreeSet::new(), BTreeSet::new());
            for wait in together {
                who.insert(wait.rank);
                whom.extend(&wait.awaits);
            }
            let verb = if who.len() == 1 { "waits" } else { "wait" };
            let whom = match whom.is_empty() {
                true => String::new(),
                false => format!(" for {}", self.ranks(whom)),
            };
            let (who, call, title) = (self.ranks(who), &one.call, &one.title);
            words.push(format!("{who} {verb}{whom} in {call}, on {title}"));
        }
        words
    }

    /// Returns a list of `ranks`, which are world ranks, as text.
    fn ranks(&self, ranks: BTreeSet<u32>) -> String {
        let ranks: Vec<u32> = ranks.into_iter().collect();
        let are_same = (0..self.members.count()).all(|one| self.members.world_rank(one) == one);
        let of = if are_same { "" } else { "world " };
        let plural = if ranks.len() == 1 { "" } else { "s" };
        format!("{of}rank{plural} {}", list(&ranks, RANKS_LISTED_MAX))
    }
}

/// Returns the ranks that are waiting for each other, directly or indirectly, or an empty set if
/// there are none.
fn circle(waits: &[Wait]) -> BTreeSet<u32> {
    let reached = |from: u32| {
        let (mut reached, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(rank) = next.pop() {
            let awaits = waits.iter().filter(|wait| wait.rank == rank);
            let awaits = awaits.flat_map(|wait| &wait.awaits).copied();
            next.extend(awaits.filter(|rank| reached.insert(*rank)));
        }
        reached
    };
    let mut ranks = waits.iter().map(|wait| wait.rank);
    let first = ranks.find(|rank| reached(*rank).contains(rank));
    first.map_or_else(BTreeSet::new, |first| {
        let back = |rank: &u32| reached(*rank).contains(&first);
        reached(first).into_iter().filter(back).collect()
    })
}
