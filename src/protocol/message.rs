//! Defines and encodes the messages that the ranks of a group exchange about the group.

use super::call::Call;
use super::members::Members;
use crate::error::{Error, decode_name};
use crate::limits::{COUNTS_SENT_MAX, PLACES_MAX};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// A rank's position in the sequence of a group's collectives, sends and receives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The rank.
    pub rank: u32,
    /// Number of collectives that the rank has called.
    pub calls: u64,
    /// `true` if the last collective is still in flight.
    pub inside: bool,
    /// Total number of sends and receives that the rank has called, across all peers.
    pub pair_calls: u64,
    /// The oldest send or receive that is still in flight.
    pub pair: Option<PairPlace>,
}

/// A call, in any group, in which a thread of a rank is blocked. All ranks are world ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// The rank.
    pub rank: u32,
    /// The group's number.
    pub group: u32,
    /// Human-readable name of the communicator.
    #[serde(deserialize_with = "decode_name")]
    pub title: String,
    /// The call.
    pub call: Call,
    /// The ranks that the call waits for and that have reported that they have not made the call.
    pub awaits: Vec<u32>,
}

/// A send or a receive in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairPlace {
    /// `true` for a send, `false` for a receive.
    pub sends: bool,
    /// The rank at the other end; `None` for a receive from any rank.
    pub peer: Option<u32>,
    /// Sequence number of the message among those from its sender to its receiver; 0 until one is
    /// assigned.
    pub sequence: u64,
}

impl fmt::Display for PairPlace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(peer) = self.peer else {
            return write!(formatter, "recv from any rank");
        };
        let sequence = self.sequence;
        match (self.sends, sequence) {
            (true, _) => write!(formatter, "send #{sequence} to rank {peer}"),
            (false, 0) => write!(formatter, "recv from rank {peer}"),
            (false, _) => write!(formatter, "recv #{sequence} from rank {peer}"),
        }
    }
}

/// One rank's timeout for a collective in which other ranks wait without a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    /// Sequence number of the collective.
    pub sequence: u64,
    /// The rank that made the same call with a timeout.
    pub rank: u32,
    /// The timeout of that rank.
    pub timeout: Duration,
}

impl Place {
    /// Value of `calls` if the rank has not reported its position.
    pub const UNKNOWN: u64 = u64::MAX;
}

/// A message between the sessions of two ranks of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// "I am waiting for you in this call."
    Waiting(Call),
    /// "This is my position, these ranks are blocking me, and my thread is blocked here."
    Position {
        /// Position of the sender.
        place: Place,
        /// Positions of the ranks that the sender is waiting for, directly or indirectly; at most
        /// [`PLACES_MAX`].
        blocked_by: Vec<Place>,
        /// The call in which the sender's thread that calls this group is blocked, followed by the
        /// waits reported by the ranks that the call is waiting for, and so on.
        waits: Vec<Wait>,
    },
    /// To the coordinator: "this is my pending error."
    Report(Error),
    /// From the coordinator: "this is the first error."
    FirstError(Error),
    /// "I have left."
    Goodbye {
        /// Number of collectives that the sender has called.
        calls: u64,
        /// The error of another group of the same process, if one failed.
        failed_beside: Option<Error>,
    },
    /// To the coordinator: "I have failed, and this is my mark."
    Mark(u64),
    /// From the coordinator: "this is the agreed mark."
    Agreed(u64),
    /// To the coordinator: "the process of this rank has ended."
    Ended(u32),
    /// To the coordinator, and from it to all ranks: "a rank is waiting without a deadline in the
    /// collective with this number."
    UntimedWait(u64),
    /// To the coordinator, and from it to all ranks: "this rank has made such a call with a
    /// timeout."
    Clock(Clock),
    /// To the coordinator, if calls are checked: "I have made this collective."
    Entered(Call),
    /// From the coordinator: "all ranks have made the same collectives up to this number."
    AllEntered(u64),
    /// To the sender, if calls are checked: "I have posted this receive."
    Posted(Call),
    /// To all ranks, if calls are checked: `true` if a receive from any rank is waiting for a
    /// message.
    PostedAny(bool),
    /// "My call differs from yours. Its blocks have these lengths." Contains at most the first
    /// [`COUNTS_SENT_MAX`] blocks.
    Counts(Call, Vec<u64>),
    /// To the coordinator: "I am waiting for another rank in a send or a receive. Send me your
    /// position."
    Asking,
}

impl Message {
    /// Returns `true` if this message could have been sent by `from`, which is one of the group's
    /// `members`. The ranks in a message are printed, so they must exist.
    #[must_use]
    pub fn is_possible(&self, from: usize, members: &Members) -> bool {
        let is_rank = |rank: usize| rank < members.count();
        match self {
            Message::Waiting(call) => is_rank(call.root),
            Message::Entered(call) => is_rank(call.root) && !call.is_pair(),
            Message::Counts(call, counts) => {
                is_rank(call.root) && !call.is_pair() && counts.len() <= COUNTS_SENT_MAX
            }
            Message::Posted(call) => call.root == from && call.is_pair(),
            Message::Position {
                place,
                blocked_by,
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
                    && blocked_by.len() <= PLACES_MAX
                    && blocked_by.iter().all(is_place)
                    && waits.len() <= PLACES_MAX
                    && waits.iter().all(is_wait)
                    && first.is_none_or(|one| one.rank as usize == members.world_rank(from))
            }
            Message::Report(error) | Message::FirstError(error) => {
                error.is_possible(members.count())
            }
            Message::Ended(rank) => is_rank(*rank as usize),
            Message::Clock(clock) => is_rank(clock.rank as usize),
            Message::Goodbye { .. } | Message::Mark(_) | Message::Agreed(_) | Message::Asking => {
                true
            }
            Message::UntimedWait(_) | Message::AllEntered(_) | Message::PostedAny(_) => true,
        }
    }
}

/// Encodes `message` in the postcard format.
pub fn encode(message: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(message).expect("invariant: the length of every sequence is known")
}

/// Decodes a message. Returns `None` if `bytes` is not exactly one message.
///
/// No decoded string is longer than `bytes`, and no sequence reserves more than 1 MiB before its
/// elements have been read.
///
/// ```
/// use ringtree::internal::protocol::message::{Message, Place, decode, encode};
/// let place = Place {
///     rank: 3,
///     calls: 1 << 40,
///     inside: true,
///     pair_calls: 0,
///     pair: None,
/// };
/// let (blocked_by, waits) = (vec![place.clone(); 2], Vec::new());
/// let message = Message::Position { place, blocked_by, waits };
/// assert_eq!(decode(&encode(&message)), Some(message));
/// let full = ringtree::Error::new(ringtree::ErrorKind::System, "the disk is full");
/// let failed_beside = Some(full);
/// let goodbye = Message::Goodbye { calls: 1 << 40, failed_beside };
/// let numbers = [goodbye, Message::Mark(3), Message::Agreed(1 << 40)];
/// for message in numbers {
///     assert_eq!(decode(&encode(&message)), Some(message));
/// }
/// assert_eq!(decode::<Message>(b"?"), None);
/// ```
#[must_use]
pub fn decode<M: DeserializeOwned>(bytes: &[u8]) -> Option<M> {
    let (message, rest) = postcard::take_from_bytes(bytes).ok()?;
    rest.is_empty().then_some(message)
}

#[cfg(test)]
mod tests;
