//! What ranks tell each other about a group, as values and as bytes.

use super::call::Call;
use crate::error::Error;
use crate::limits::PLACES_MAX;
use serde::{Deserialize, Serialize};

/// Where a rank is in a group's order of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The rank.
    pub rank: u32,
    /// Calls made so far.
    pub calls: u64,
    /// Whether the last one is still under way.
    pub inside: bool,
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
    /// "I am here, and these ranks hold me up."
    Position {
        /// Where the sender is.
        place: Place,
        /// The ranks that it waits for, directly or not, and where they are; not all of many.
        held_up_by: Vec<Place>,
    },
    /// To the coordinator: "this is my pending error."
    Report(Error),
    /// From the coordinator: "this is the first error."
    FirstError(Error),
    /// "I have left after this many calls."
    Goodbye {
        /// Calls made.
        calls: u64,
    },
    /// To the coordinator: "I have failed, and this is my mark."
    Mark(u64),
    /// From the coordinator: "this is the agreed mark."
    Agreed(u64),
    /// To the coordinator: "the process of this rank has ended."
    Ended(u32),
}

impl Message {
    /// Whether `from` can have sent it in a world of `world_size`: what it says is printed.
    #[must_use]
    pub fn is_possible(&self, from: usize, world_size: usize) -> bool {
        let is_rank = |rank: usize| rank < world_size;
        match self {
            Message::Waiting(call) => is_rank(call.root),
            Message::Position { place, held_up_by } => {
                place.rank as usize == from
                    && held_up_by.len() <= PLACES_MAX
                    && held_up_by.iter().all(|one| is_rank(one.rank as usize))
            }
            Message::Report(error) | Message::FirstError(error) => error.is_possible(world_size),
            Message::Ended(rank) => is_rank(*rank as usize),
            Message::Goodbye { .. } | Message::Mark(_) | Message::Agreed(_) => true,
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
    /// use ringtree::protocol::message::{Message, Place};
    /// let place = Place { rank: 3, calls: 1 << 40, inside: true };
    /// let message = Message::Position { place, held_up_by: vec![place; 2] };
    /// assert_eq!(Message::decode(&message.encode()), Some(message));
    /// let numbers = [Message::Goodbye { calls: 12 }, Message::Mark(3), Message::Agreed(1 << 40)];
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
