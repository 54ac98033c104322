//! What ranks tell each other about a group, as values and as bytes.

use super::call::Call;
use super::members::Members;
use crate::error::{Error, told_name};
use crate::limits::{COUNTS_TOLD_MAX, PLACES_MAX};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// Where a rank is in a group's order of collectives, and in its sends and receives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The rank.
    pub rank: u32,
    /// Collectives called so far.
    pub calls: u64,
    /// Whether the last one is still under way.
    pub inside: bool,
    /// Sends and receives called so far, with all peers together.
    pub pair_calls: u64,
    /// The oldest of them that is still under way.
    pub pair: Option<PairPlace>,
}

/// A call of any group in which a thread of a rank is blocked. Ranks have the world's numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// The rank.
    pub rank: u32,
    /// The group's number.
    pub group: u32,
    /// The communicator, in words.
    #[serde(deserialize_with = "told_name")]
    pub title: String,
    /// The call.
    pub call: Call,
    /// Ranks for which it waits and which have told the rank that they have not made the call.
    pub awaits: Vec<u32>,
}

/// A send or a receive that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairPlace {
    /// Whether the rank sends; else it receives.
    pub sends: bool,
    /// The other end; none of a receive that any rank's message is for.
    pub peer: Option<u32>,
    /// The message's number in its directed pair of ranks; 0 while it has none.
    pub sequence: u64,
}

impl fmt::Display for PairPlace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            sends,
            peer,
            sequence,
        } = self;
        let Some(peer) = peer else {
            return write!(formatter, "recv from any rank");
        };
        match (sends, sequence) {
            (true, _) => write!(formatter, "send #{sequence} to rank {peer}"),
            (false, 0) => write!(formatter, "recv from rank {peer}"),
            (false, _) => write!(formatter, "recv #{sequence} from rank {peer}"),
        }
    }
}

/// The clock of a collective in which ranks wait without a deadline of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    /// The collective's number.
    pub sequence: u64,
    /// The rank that made the same call with a timeout.
    pub rank: u32,
    /// That timeout.
    pub timeout: Duration,
}

impl Place {
    /// The calls of a rank that has not said where it is.
    pub const UNKNOWN: u64 = u64::MAX;
}

/// A message between the sessions of two ranks of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// "I am waiting for you in this call."
    Waiting(Call),
    /// "I am here, these ranks hold me up, and my thread that calls this group is blocked."
    Position {
        /// Where the sender is.
        place: Place,
        /// The ranks that it waits for, directly or not, and where they are; not all of many.
        held_up_by: Vec<Place>,
        /// In which call of which group the thread is blocked; then, of the ranks for which it
        /// waits, what these have told of themselves, and so on.
        waits: Vec<Wait>,
    },
    /// To the coordinator: "this is my pending error."
    Report(Error),
    /// From the coordinator: "this is the first error."
    FirstError(Error),
    /// "I have left after this many calls."
    Goodbye {
        /// Calls made.
        calls: u64,
        /// Why another group of the process failed, if one did.
        failed_beside: Option<Error>,
    },
    /// To the coordinator: "I have failed, and this is my mark."
    Mark(u64),
    /// From the coordinator: "this is the agreed mark."
    Agreed(u64),
    /// To the coordinator: "the process of this rank has ended."
    Ended(u32),
    /// To the coordinator, and from it to all: "a rank waits in the collective of this number, and
    /// has no deadline."
    Patient(u64),
    /// To the coordinator, and from it to all: "this rank has made that call with a timeout."
    Clock(Clock),
    /// To the coordinator, where calls are checked: "I have made this collective."
    Entered(Call),
    /// From the coordinator: "all ranks have made the same collectives up to this number."
    AllEntered(u64),
    /// To the sender, where calls are checked: "I have posted this receive."
    Posted(Call),
    /// To all, where calls are checked: whether a receive from any rank waits for a message.
    PostedAny(bool),
    /// "In this call of mine, which differs from yours, the blocks have these lengths." Of many
    /// blocks, the first ones.
    Counts(Call, Vec<u64>),
}

impl Message {
    /// Whether `from`, one of the group's `members`, can have sent it: what it says is printed.
    #[must_use]
    pub fn is_possible(&self, from: usize, members: &Members) -> bool {
        let is_rank = |rank: usize| rank < members.count();
        match self {
            Message::Waiting(call) => is_rank(call.root),
            Message::Entered(call) => is_rank(call.root) && !call.is_pair(),
            Message::Counts(call, counts) => {
                is_rank(call.root) && !call.is_pair() && counts.len() <= COUNTS_TOLD_MAX
            }
            Message::Posted(call) => call.root == from && call.is_pair(),
            Message::Position {
                place,
                held_up_by,
                waits,
            } => {
                let is_place = |one: &Place| {
                    is_rank(one.rank as usize)
                        && one
                            .pair
                            .and_then(|pair| pair.peer)
                            .is_none_or(|peer| is_rank(peer as usize))
                };
                let is_of_world = |rank: &u32| (*rank as usize) < members.world_size();
                let is_wait = |one: &Wait| {
                    is_of_world(&one.rank)
                        && one.call.root < members.world_size()
                        && one.awaits.len() <= PLACES_MAX
                        && one.awaits.iter().all(is_of_world)
                };
                let first = waits.first();
                place.rank as usize == from
                    && is_place(place)
                    && held_up_by.len() <= PLACES_MAX
                    && held_up_by.iter().all(is_place)
                    && waits.len() <= PLACES_MAX
                    && waits.iter().all(is_wait)
                    && first.is_none_or(|one| one.rank as usize == members.world_rank(from))
            }
            Message::Report(error) | Message::FirstError(error) => {
                error.is_possible(members.count())
            }
            Message::Ended(rank) => is_rank(*rank as usize),
            Message::Clock(clock) => is_rank(clock.rank as usize),
            Message::Goodbye { .. } | Message::Mark(_) | Message::Agreed(_) => true,
            Message::Patient(_) | Message::AllEntered(_) | Message::PostedAny(_) => true,
        }
    }

    /// The message as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("invariant: memory takes every message")
    }

    /// The message in `bytes`; `None` if they are none.
    ///
    /// ```
    /// use ringtree::internal::protocol::message::{Message, Place};
    /// let place = Place {
    ///     rank: 3,
    ///     calls: 1 << 40,
    ///     inside: true,
    ///     pair_calls: 0,
    ///     pair: None,
    /// };
    /// let (held_up_by, waits) = (vec![place.clone(); 2], Vec::new());
    /// let message = Message::Position { place, held_up_by, waits };
    /// assert_eq!(Message::decode(&message.encode()), Some(message));
    /// let failed_beside = Some(ringtree::Error::system("the disk is full"));
    /// let goodbye = Message::Goodbye { calls: 1 << 40, failed_beside };
    /// let numbers = [goodbye, Message::Mark(3), Message::Agreed(1 << 40)];
    /// for message in numbers {
    ///     assert_eq!(Message::decode(&message.encode()), Some(message));
    /// }
    /// assert_eq!(Message::decode(b"?"), None);
    /// ```
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (message, rest) = postcard::take_from_bytes(bytes).ok()?;
        rest.is_empty().then_some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{CONTROL_MESSAGE_BYTES_MAX, DEADLINE_DEFAULT, NAME_BYTES_MAX};
    use crate::plan::spec::Collective;
    use crate::protocol::session::Session;

    /// Rank 1 tells of a wait with the longest title that fits a message. Rank 0 tells rank 2.
    #[test]
    fn a_long_title_of_a_peer_does_not_make_this_ranks_answer_too_long() {
        let call = Call::new(Collective::AllReduce, 7).numbered(1);
        let place = Place {
            rank: 1,
            calls: 0,
            inside: false,
            pair_calls: 0,
            pair: None,
        };
        let wait = |rank| Wait {
            rank,
            group: 3,
            title: "x".repeat((CONTROL_MESSAGE_BYTES_MAX - 256) / PLACES_MAX),
            call,
            awaits: vec![2],
        };
        let lie = Message::Position {
            place,
            held_up_by: Vec::new(),
            waits: (1..9).map(wait).collect(),
        };
        let lie = lie.encode();
        assert!(lie.len() <= CONTROL_MESSAGE_BYTES_MAX);
        let mut honest = Session::new(0, 10);
        honest.enter((&call, None), call.digest(), 1, DEADLINE_DEFAULT);
        honest.receive(1, Message::decode(&lie).unwrap());
        let waits = honest.waits(&call, &[1]);
        assert!(waits.iter().any(|one| one.title.len() > NAME_BYTES_MAX / 2));
        honest.stands(vec![1], None, waits);
        honest.receive(2, Message::Waiting(call));
        while let Some((_, message)) = honest.next_message() {
            assert!(message.encode().len() <= CONTROL_MESSAGE_BYTES_MAX / 8);
        }
    }
}
