//! How the members of a new group agree on its number.
//!
//! A group is made by its members alone, each of which tells rank 0 of the world that it has come
//! ([`Notice::Join`]). Rank 0's [`Registrar`] gathers them by the parent's number and the list of
//! members. When all have come it gives the group a number that no group had before, and tells
//! each ([`Notice::Made`]). So nothing of a dropped group is ever taken for a later one's. A rank
//! that calls twice with the same list takes part in two groups, the first calls of all members
//! being one of them.
//!
//! A group does not come about if a member dies or leaves, or once one waits no longer. Then all
//! that have come are told the same error.

use super::members::{Members, Name};
use crate::error::{Error, told_line};
use crate::limits::{GROUPS_MAX, JOINS_OPEN_MAX, RANKS_LISTED_MAX};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

/// The number under which processes, and not groups, tell each other something.
pub const PROCESSES: u32 = u32::MAX;
/// The rank of the world that relays control messages, and gives groups their numbers.
pub const RELAY: usize = 0;
/// The number of the first group that is made by its members: the world and the group in which its
/// links are measured have the numbers below.
pub const FIRST_MADE: u32 = 2;

/// What processes tell each other about groups that there are not yet, and about themselves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Notice {
    /// To rank 0: "I have come to make a group of these."
    Join {
        /// The sender's number for this request.
        serial: u32,
        /// The number of the group that it is made from.
        parent: u32,
        /// The members, by their numbers in the world, in the order of the group.
        members: Vec<u32>,
    },
    /// To rank 0: "I wait no longer for this."
    Withdraw {
        /// The number of the request.
        serial: u32,
        /// How long the sender has waited.
        waited_ms: u64,
    },
    /// From rank 0: "all have come."
    Made {
        /// The number of the request.
        serial: u32,
        /// The group's.
        number: u32,
    },
    /// From rank 0: "the group will not come about."
    Refused {
        /// The number of the request.
        serial: u32,
        /// Why.
        why: Error,
    },
    /// From rank 0: "the process of this rank is gone."
    Lost {
        /// The rank.
        rank: u32,
        /// What was seen.
        #[serde(deserialize_with = "told_line")]
        why: String,
    },
    /// "My process leaves in peace: all its groups have said goodbye."
    Left,
}

impl Notice {
    /// The notice as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("invariant: memory takes every notice")
    }

    /// The notice in `bytes`; `None` if they are none.
    ///
    /// ```
    /// use ringtree::internal::protocol::founding::Notice;
    /// let join = Notice::Join { serial: 3, parent: 0, members: vec![4, 1] };
    /// assert_eq!(Notice::decode(&join.encode()), Some(join));
    /// assert_eq!(Notice::decode(b"?"), None);
    /// ```
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (notice, rest) = postcard::take_from_bytes(bytes).ok()?;
        rest.is_empty().then_some(notice)
    }
}

/// A group that is being made.
#[derive(Debug)]
struct Gathering {
    parent: u32,
    members: Vec<u32>,
    /// The requests of those that have come.
    joined: BTreeMap<usize, u32>,
}

impl Gathering {
    fn position(&self, world_rank: usize) -> Option<usize> {
        let mut members = self.members.iter();
        members.position(|member| *member as usize == world_rank)
    }

    /// A member as messages name it.
    fn name(&self, rank: usize) -> Name {
        let ranks = self.members.iter().map(|rank| *rank as usize).collect();
        // No world is as small as its groups' members only.
        Members::of(ranks, usize::MAX).name(rank)
    }

    /// Which group, in words.
    fn group(&self) -> String {
        format!("the group of world ranks {}", list(&self.members))
    }

    /// Tells all that have come.
    fn refuse(self, why: &Error) -> Vec<(usize, Notice)> {
        let tell = |(rank, serial)| {
            let why = why.clone();
            (rank, Notice::Refused { serial, why })
        };
        self.joined.into_iter().map(tell).collect()
    }
}

/// The first of them, and how many more there are.
pub(super) fn list<T: Display>(all: &[T]) -> String {
    let shown = all.iter().take(RANKS_LISTED_MAX).map(T::to_string);
    let shown = shown.collect::<Vec<_>>().join(", ");
    match all.len().saturating_sub(RANKS_LISTED_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Why a rank cannot come any more.
#[derive(Clone, Debug)]
enum Absence {
    Lost(String),
    Left,
}

/// Rank 0's list of the groups that are being made.
///
/// ```
/// use ringtree::internal::protocol::founding::{FIRST_MADE, Notice, Registrar};
/// let mut registrar = Registrar::default();
/// let join = |serial| Notice::Join { serial, parent: 0, members: vec![2, 1] };
/// assert!(registrar.receive(1, join(7)).is_empty());
/// let made = |serial| Notice::Made { serial, number: FIRST_MADE };
/// assert_eq!(registrar.receive(2, join(0)), [(1, made(7)), (2, made(0))]);
/// ```
#[derive(Debug, Default)]
pub struct Registrar {
    made: u32,
    gatherings: Vec<Gathering>,
    absent: BTreeMap<usize, Absence>,
}

impl Registrar {
    /// A notice came from `from`; what is to be told to whom.
    pub fn receive(&mut self, from: usize, notice: Notice) -> Vec<(usize, Notice)> {
        match notice {
            Notice::Join {
                serial,
                parent,
                members,
            } => self.join(from, serial, parent, members),
            Notice::Withdraw { serial, waited_ms } => self.withdraw(from, serial, waited_ms),
            Notice::Left => self.absent(from, Absence::Left),
            // What rank 0 itself says, to others.
            Notice::Made { .. } | Notice::Refused { .. } | Notice::Lost { .. } => Vec::new(),
        }
    }

    /// The process of `rank` is gone.
    pub fn lost(&mut self, rank: usize, why: &str) -> Vec<(usize, Notice)> {
        self.absent(rank, Absence::Lost(why.to_owned()))
    }

    /// Whether `rank` has left in peace.
    #[must_use]
    pub fn has_left(&self, rank: usize) -> bool {
        matches!(self.absent.get(&rank), Some(Absence::Left))
    }

    fn join(
        &mut self,
        from: usize,
        serial: u32,
        parent: u32,
        members: Vec<u32>,
    ) -> Vec<(usize, Notice)> {
        let refuse = |why| vec![(from, Notice::Refused { serial, why })];
        let open = self.gatherings.iter();
        let open = open.filter(|one| one.joined.contains_key(&from)).count();
        if open >= JOINS_OPEN_MAX {
            return refuse(Error::usage(format!(
                "world rank {from} waits for {open} groups at once, which is as many as it may"
            )));
        }
        let is_this = |one: &&mut Gathering| {
            one.parent == parent && one.members == members && !one.joined.contains_key(&from)
        };
        let found = self.gatherings.iter_mut().find(is_this);
        if let Some(gathering) = found {
            gathering.joined.insert(from, serial);
        } else {
            let joined = BTreeMap::from([(from, serial)]);
            let gathering = Gathering {
                parent,
                members,
                joined,
            };
            if gathering.position(from).is_none() {
                let why = format!("world rank {from} is not in {}", gathering.group());
                return refuse(Error::protocol(why));
            }
            let mut absent = self.absent.iter();
            let gone = absent.find(|(rank, _)| gathering.position(**rank).is_some());
            if let Some((rank, absence)) = gone {
                return refuse(absent_from(&gathering, *rank, absence));
            }
            self.gatherings.push(gathering);
        }
        self.make_whole()
    }

    /// Makes the first group of which all members have come.
    fn make_whole(&mut self) -> Vec<(usize, Notice)> {
        let is_whole = |one: &Gathering| one.joined.len() == one.members.len();
        let Some(at) = self.gatherings.iter().position(is_whole) else {
            return Vec::new();
        };
        let gathering = self.gatherings.remove(at);
        let number = FIRST_MADE + self.made;
        if number >= GROUPS_MAX {
            return gathering.refuse(&Error::usage(format!(
                "this job has made {GROUPS_MAX} groups, which is as many as have a number; keep \
                 and use those there are"
            )));
        }
        self.made += 1;
        let joined = gathering.joined.into_iter();
        joined
            .map(|(rank, serial)| (rank, Notice::Made { serial, number }))
            .collect()
    }

    fn withdraw(&mut self, from: usize, serial: u32, waited_ms: u64) -> Vec<(usize, Notice)> {
        let is_its = |one: &Gathering| one.joined.get(&from) == Some(&serial);
        let Some(at) = self.gatherings.iter().position(is_its) else {
            return Vec::new();
        };
        let gathering = self.gatherings.remove(at);
        let members = 0..gathering.members.len();
        let missing = members.filter(|rank| {
            let world_rank = gathering.members[*rank] as usize;
            !gathering.joined.contains_key(&world_rank)
        });
        let missing: Vec<usize> = missing.collect();
        let told: Vec<String> = missing
            .iter()
            .map(|rank| {
                let rank = *rank;
                let name = gathering.name(rank);
                match self.whereabouts(gathering.members[rank] as usize) {
                    Some(elsewhere) => format!("{name} waits for {elsewhere} instead"),
                    None => format!("{name} has not asked for it"),
                }
            })
            .collect();
        let own = gathering.position(from).unwrap_or(from);
        let why = Error::deadline(format!(
            "{} gave up on {} after {:.1} s: {}; all members must ask for it with the same list, \
             from the same communicator",
            gathering.name(own),
            gathering.group(),
            waited_ms as f64 / 1e3,
            list(&told),
        ));
        let why = why.with_missing(missing);
        let why = why.with_elapsed(Duration::from_millis(waited_ms));
        gathering.refuse(&why)
    }

    /// The group that a rank waits for, in words.
    fn whereabouts(&self, world_rank: usize) -> Option<String> {
        let mut gatherings = self.gatherings.iter();
        let waits = gatherings.find(|one| one.joined.contains_key(&world_rank));
        waits.map(Gathering::group)
    }

    /// Ends the gatherings that need `rank`, which cannot come any more.
    fn absent(&mut self, rank: usize, absence: Absence) -> Vec<(usize, Notice)> {
        let absence = self.absent.entry(rank).or_insert(absence).clone();
        let needs = |one: &mut Gathering| one.position(rank).is_some();
        let ended: Vec<Gathering> = self.gatherings.extract_if(.., needs).collect();
        let tell = |gathering: Gathering| {
            let why = absent_from(&gathering, rank, &absence);
            gathering.refuse(&why)
        };
        let told = ended.into_iter().flat_map(tell);
        told.filter(|(to, _)| *to != rank).collect()
    }
}

/// The error of those that wait for a group with a member that cannot come any more.
fn absent_from(gathering: &Gathering, world_rank: usize, absence: &Absence) -> Error {
    let rank = gathering.position(world_rank).unwrap_or(world_rank);
    let (name, group) = (gathering.name(rank), gathering.group());
    let message = match absence {
        Absence::Lost(why) => format!(
            "{name} is gone, so {group} cannot be made: {why}; look at that rank's last output \
             and restart the job"
        ),
        Absence::Left => {
            format!("{name} has left, so {group} cannot be made; all members must ask for it")
        }
    };
    Error::peer_lost(rank, message)
}

#[cfg(test)]
mod tests;
