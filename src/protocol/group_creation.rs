//! Lets the members of a new group agree on its number.
//!
//! Only the members take part in the creation of a group. Each of them sends a request
//! ([`Notice::Join`]) to rank 0 of the world. Rank 0's [`Registrar`] matches requests by the number
//! of the parent group and the list of members. When all members have sent their requests, it gives
//! the group a number that no group has had before, and sends the number to each member
//! ([`Notice::Made`]). So no message of a dropped group is ever mistaken for a message of a later
//! group. A rank that calls twice with the same list takes part in two groups. Each member's first
//! call counts toward the first group, and its second call toward the second.
//!
//! A group is not created if a member dies, leaves or stops waiting. In this case, all members that
//! have sent a request receive the same error.

use super::members::Members;
use crate::error::{Error, decode_line};
use crate::limits::{GROUPS_MAX, JOINS_OPEN_MAX, RANKS_LISTED_MAX};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

/// Group number of messages between processes, which belong to no group.
pub const PROCESSES: u32 = u32::MAX;
/// The world rank that relays control messages and assigns numbers to groups.
pub const RELAY: usize = 0;
/// Number of the first group that its members create. Lower numbers belong to the world and to the
/// group in which the world's links are measured.
pub const FIRST_MADE: u32 = 2;

/// A message between processes about the processes themselves, or about groups that do not exist
/// yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Notice {
    /// To rank 0: "I request a group of these members."
    Join {
        /// Serial number that the sender gave this request.
        serial: u32,
        /// Number of the group from which the new group is created.
        parent: u32,
        /// World ranks of the members, in group order.
        members: Vec<u32>,
    },
    /// To rank 0: "I have stopped waiting for this group."
    Withdraw {
        /// Serial number of the request.
        serial: u32,
        /// The time that the sender has spent waiting, in milliseconds.
        waited_ms: u64,
    },
    /// From rank 0: "all members have requested the group."
    Made {
        /// Serial number of the request.
        serial: u32,
        /// Number of the group.
        number: u32,
    },
    /// From rank 0: "the group will not be created."
    Refused {
        /// Serial number of the request.
        serial: u32,
        /// The reason.
        why: Error,
    },
    /// From rank 0: "the process of this rank is gone."
    Lost {
        /// The rank.
        rank: u32,
        /// The event from which rank 0 concluded that the process is gone.
        #[serde(deserialize_with = "decode_line")]
        why: String,
    },
    /// "My process is leaving cleanly: all its groups have said goodbye."
    Left,
}

/// A group that is being created.
#[derive(Debug)]
struct Gathering {
    parent: u32,
    members: Vec<u32>,
    /// Serial numbers of the requests received so far, indexed by world rank.
    joined: BTreeMap<usize, u32>,
}

impl Gathering {
    fn position(&self, world_rank: usize) -> Option<usize> {
        let mut members = self.members.iter();
        members.position(|member| *member as usize == world_rank)
    }

    /// Returns the name that messages use for a member.
    fn name(&self, rank: usize) -> String {
        let ranks = self.members.iter().map(|rank| *rank as usize).collect();
        // The size of the world is not known here and does not affect names.
        Members::of(ranks, usize::MAX).name(rank)
    }

    /// Returns a human-readable description of the group.
    fn group(&self) -> String {
        format!(
            "the group of world ranks {}",
            list(&self.members, RANKS_LISTED_MAX)
        )
    }

    /// Returns notices that reject all requests received so far.
    fn refuse(self, why: &Error) -> Vec<(usize, Notice)> {
        let tell = |(rank, serial)| {
            let why = why.clone();
            (rank, Notice::Refused { serial, why })
        };
        self.joined.into_iter().map(tell).collect()
    }
}

/// Lists the first `most` items and states how many more there are.
pub(crate) fn list<T: Display>(all: &[T], most: usize) -> String {
    let shown = all.iter().take(most).map(T::to_string);
    let shown = shown.collect::<Vec<_>>().join(", ");
    match all.len().saturating_sub(most) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// The reason why a rank can no longer join groups.
#[derive(Clone, Debug)]
enum Absence {
    Lost(String),
    Left,
}

/// Rank 0's list of the groups that are being created.
///
/// ```
/// use ringtree::internal::protocol::group_creation::{FIRST_MADE, Notice, Registrar};
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
    /// Processes a notice from world rank `from`. Returns the notices to send in response, each
    /// with its receiver.
    pub fn receive(&mut self, from: usize, notice: Notice) -> Vec<(usize, Notice)> {
        match notice {
            Notice::Join {
                serial,
                parent,
                members,
            } => self.join(from, serial, parent, members),
            Notice::Withdraw { serial, waited_ms } => self.withdraw(from, serial, waited_ms),
            Notice::Left => self.absent(from, Absence::Left),
            // Only rank 0 sends these.
            Notice::Made { .. } | Notice::Refused { .. } | Notice::Lost { .. } => Vec::new(),
        }
    }

    /// Records that the process of `rank` is gone. Returns the notices to send, each with its
    /// receiver.
    pub fn lost(&mut self, rank: usize, why: &str) -> Vec<(usize, Notice)> {
        self.absent(rank, Absence::Lost(why.to_owned()))
    }

    /// Returns `true` if `rank` has left cleanly.
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
                "world rank {from} cannot request another group: it is already waiting for {open} \
                 groups, which is the limit; wait until one of them has been created"
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
        self.create_first_complete_group()
    }

    /// Creates the first group that has been requested by all its members.
    fn create_first_complete_group(&mut self) -> Vec<(usize, Notice)> {
        let is_whole = |one: &Gathering| one.joined.len() == one.members.len();
        let Some(at) = self.gatherings.iter().position(is_whole) else {
            return Vec::new();
        };
        let gathering = self.gatherings.remove(at);
        let number = FIRST_MADE + self.made;
        if number >= GROUPS_MAX {
            return gathering.refuse(&Error::usage(format!(
                "cannot create a group: this job has used all {GROUPS_MAX} group numbers; reuse \
                 existing groups"
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
                match self.describe(gathering.members[rank] as usize) {
                    Some(elsewhere) => format!("{name} is waiting for {elsewhere} instead"),
                    None => format!("{name} has not requested it"),
                }
            })
            .collect();
        let own = gathering.position(from).unwrap_or(from);
        let why = Error::deadline(format!(
            "{} timed out waiting for {} after {:.1} s: {}; all members must request it with the \
             same list, from the same communicator",
            gathering.name(own),
            gathering.group(),
            waited_ms as f64 / 1e3,
            list(&told, RANKS_LISTED_MAX),
        ));
        let why = why.with_missing(missing);
        let why = why.with_elapsed(Duration::from_millis(waited_ms));
        gathering.refuse(&why)
    }

    /// Describes the group that a rank is waiting for, if any.
    fn describe(&self, world_rank: usize) -> Option<String> {
        let mut gatherings = self.gatherings.iter();
        let waits = gatherings.find(|one| one.joined.contains_key(&world_rank));
        waits.map(Gathering::group)
    }

    /// Records that `rank` can no longer join groups, and rejects the requests for groups that need
    /// it.
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

/// Returns the error for ranks that are waiting for a group if one of its members can no longer
/// join.
fn absent_from(gathering: &Gathering, world_rank: usize, absence: &Absence) -> Error {
    let rank = gathering.position(world_rank).unwrap_or(world_rank);
    let (name, group) = (gathering.name(rank), gathering.group());
    let message = match absence {
        Absence::Lost(why) => format!(
            "{name} is gone, so {group} cannot be created: {why}; check that rank's last output \
             and restart the job"
        ),
        Absence::Left => {
            format!("{name} has left, so {group} cannot be created; all members must request it")
        }
    };
    Error::peer_lost(rank, message)
}

#[cfg(test)]
mod tests;
