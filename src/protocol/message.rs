//! What ranks tell each other about a group, as values and as bytes.

use super::call::Call;
use crate::error::Error;

/// A message between the sessions of two ranks of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// "I am waiting for you in this call."
    Waiting(Call),
    /// "I have made this many calls, and am (not) in the last of them."
    Position {
        /// Calls made so far.
        calls: u64,
        /// Whether the last one is still under way.
        inside: bool,
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
}

impl Message {
    /// The message as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let (kind, body) = match self {
            Message::Waiting(call) => (0, call.encode()),
            Message::Position { calls, inside } => {
                let mut body = calls.to_le_bytes().to_vec();
                body.push(u8::from(*inside));
                (1, body)
            }
            Message::Report(error) => (2, encode_error(error)),
            Message::Verdict(error) => (3, encode_error(error)),
            Message::Goodbye { calls } => (4, calls.to_le_bytes().to_vec()),
        };
        let mut bytes = vec![kind];
        bytes.extend_from_slice(&body);
        bytes
    }

    /// The message in `bytes`; `None` if they are none.
    ///
    /// ```
    /// use ringtree::protocol::message::Message;
    /// let message = Message::Goodbye { calls: 12 };
    /// assert_eq!(Message::decode(&message.encode()), Some(message));
    /// assert_eq!(Message::decode(b"?"), None);
    /// ```
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, body) = bytes.split_first()?;
        match kind {
            0 => Call::decode(body).map(Message::Waiting),
            1 => {
                let (calls, rest) = body.split_first_chunk::<8>()?;
                let calls = u64::from_le_bytes(*calls);
                Some(Message::Position {
                    calls,
                    inside: *rest.first()? == 1,
                })
            }
            2 => decode_error(body).map(Message::Report),
            3 => decode_error(body).map(Message::Verdict),
            4 => {
                let calls = u64::from_le_bytes(*body.first_chunk::<8>()?);
                Some(Message::Goodbye { calls })
            }
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
        _ => return None,
    })
}
