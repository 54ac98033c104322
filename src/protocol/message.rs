//! What ranks tell each other about a group, as values and as bytes.

use super::call::Call;
use crate::error::Error;

/// Where a rank is in a group's order of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    const BYTES: usize = 13;

    fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.rank.to_le_bytes());
        bytes[4..12].copy_from_slice(&self.calls.to_le_bytes());
        bytes[12] = u8::from(self.inside);
        bytes
    }

    fn decode(bytes: &[u8; Self::BYTES]) -> Self {
        let (rank, rest) = bytes.split_at(4);
        let (calls, inside) = rest.split_at(8);
        let fold = |bytes: &[u8]| {
            bytes
                .iter()
                .rev()
                .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
        };
        Self {
            rank: fold(rank) as u32,
            calls: fold(calls),
            inside: inside == [1],
        }
    }
}

/// A message between the sessions of two ranks of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// "I am waiting for you in this call."
    Waiting(Call),
    /// "I am here, and these are what holds me up."
    Position {
        /// Where the sender is.
        place: Place,
        /// The ranks that it waits for, directly or not, and where they are; not all of many.
        held_up_by: Vec<Place>,
    },
    /// To the arbiter: "this is what I saw."
    Report(Error),
    /// From the arbiter: "this was first."
    Verdict(Error),
    /// "I have left after this many calls."
    Goodbye {
        /// Calls made.
        calls: u64,
    },
    /// To the arbiter: "I have failed, and this is my mark."
    Mark(u64),
    /// From the arbiter: "this is the agreed mark."
    Agreed(u64),
}

impl Message {
    /// The message as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let (kind, body) = match self {
            Message::Waiting(call) => (0, call.encode()),
            Message::Position { place, held_up_by } => {
                let places = std::iter::once(place).chain(held_up_by);
                (1, places.flat_map(Place::encode).collect())
            }
            Message::Report(error) => (2, encode_error(error)),
            Message::Verdict(error) => (3, encode_error(error)),
            Message::Goodbye { calls } => (4, calls.to_le_bytes().to_vec()),
            Message::Mark(number) => (5, number.to_le_bytes().to_vec()),
            Message::Agreed(number) => (6, number.to_le_bytes().to_vec()),
        };
        let mut bytes = vec![kind];
        bytes.extend_from_slice(&body);
        bytes
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
        let (kind, body) = bytes.split_first()?;
        let number = || {
            body.first_chunk::<8>()
                .map(|body| u64::from_le_bytes(*body))
        };
        match kind {
            0 => Call::decode(body).map(Message::Waiting),
            1 => {
                let (places, rest) = body.as_chunks::<{ Place::BYTES }>();
                let (place, held_up_by) = places.split_first()?;
                rest.is_empty().then(|| Message::Position {
                    place: Place::decode(place),
                    held_up_by: held_up_by.iter().map(Place::decode).collect(),
                })
            }
            2 => decode_error(body).map(Message::Report),
            3 => decode_error(body).map(Message::Verdict),
            4 => number().map(|calls| Message::Goodbye { calls }),
            5 => number().map(Message::Mark),
            6 => number().map(Message::Agreed),
            _ => None,
        }
    }
}

fn encode_error(error: &Error) -> Vec<u8> {
    let (kind, rank) = match error {
        Error::Usage(_) => (0, 0),
        Error::Configuration(_) => (1, 0),
        Error::Join(_) => (2, 0),
        Error::Mismatch(_) => (3, 0),
        Error::PeerLost { rank, .. } => (4, *rank as u64),
        Error::Deadline(_) => (5, 0),
        Error::Protocol(_) => (6, 0),
        Error::System(_) => (7, 0),
        Error::NoDevice(_) => (8, 0),
        Error::Device(_) => (9, 0),
    };
    let mut bytes = vec![kind];
    bytes.extend_from_slice(&rank.to_le_bytes());
    bytes.extend_from_slice(error.to_string().as_bytes());
    bytes
}

fn decode_error(bytes: &[u8]) -> Option<Error> {
    let (kind, rest) = bytes.split_first()?;
    let (rank, text) = rest.split_first_chunk::<8>()?;
    let message = String::from_utf8_lossy(text).into_owned();
    Some(match kind {
        0 => Error::Usage(message),
        1 => Error::Configuration(message),
        2 => Error::Join(message),
        3 => Error::Mismatch(message),
        4 => Error::PeerLost {
            rank: usize::try_from(u64::from_le_bytes(*rank)).ok()?,
            message,
        },
        5 => Error::Deadline(message),
        6 => Error::Protocol(message),
        7 => Error::System(message),
        8 => Error::NoDevice(message),
        9 => Error::Device(message),
        _ => return None,
    })
}
