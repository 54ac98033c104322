//! Seals and opens a stream of messages, so that forged, modified, dropped, repeated and reordered
//! messages are detected.
//!
//! A sealed message consists of its length (32 bits, little-endian), its bytes, and the HMAC-SHA256
//! of direction ‖ counter ‖ length ‖ bytes under the connection key. The counter is not sent,
//! because both ends count messages. The length is used before the MAC is checked, but a length
//! above [`SEALED_BYTES_MAX`] is rejected.

use super::handshake::{ConnectionKey, is_same, mac};
use crate::limits::CONTROL_MESSAGE_BYTES_MAX;
use std::fmt;

/// Maximum size of a message in bytes: a control message and its addresses.
pub(crate) const SEALED_BYTES_MAX: usize = CONTROL_MESSAGE_BYTES_MAX + 64;

const LENGTH_BYTES: usize = 4;
const MAC_BYTES: usize = 32;

/// The end of the connection that sent a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// The end that opened the connection.
    FromInitiator,
    /// The end that accepted the connection.
    FromAcceptor,
}

fn tag(key: &ConnectionKey, direction: Direction, counter: u64, framed: &[u8]) -> [u8; MAC_BYTES] {
    let role = match direction {
        Direction::FromInitiator => [1],
        Direction::FromAcceptor => [2],
    };
    mac(&key.0, &[&role, &counter.to_le_bytes(), framed])
}

/// The reason why a stream cannot be read any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// A length above [`SEALED_BYTES_MAX`].
    TooLong,
    /// A message that the other end did not send at this point in the stream.
    Forged,
}

impl fmt::Display for Broken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Broken::TooLong => "a control message is too long",
            Broken::Forged => "a control message failed authentication",
        })
    }
}

/// The sending half of a stream.
#[derive(Debug)]
pub(crate) struct Sealer {
    key: ConnectionKey,
    direction: Direction,
    counter: u64,
}

impl Sealer {
    /// Creates the half that seals the messages that are sent in `direction`.
    #[must_use]
    pub(crate) fn new(key: ConnectionKey, direction: Direction) -> Self {
        Self {
            key,
            direction,
            counter: 0,
        }
    }

    /// Seals `message` and appends it to `out`. The other end rejects a message of more than
    /// [`SEALED_BYTES_MAX`] bytes.
    pub(crate) fn seal(&mut self, message: &[u8], out: &mut Vec<u8>) {
        let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
        let start = out.len();
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(message);
        let mac = tag(&self.key, self.direction, self.counter, &out[start..]);
        out.extend_from_slice(&mac);
        self.counter += 1;
    }
}

/// The receiving half of a stream.
#[derive(Debug)]
pub(crate) struct Opener {
    key: ConnectionKey,
    direction: Direction,
    counter: u64,
    buffer: Vec<u8>,
    read: usize,
}

impl Opener {
    /// Creates the half that opens the messages that are sent in `direction`.
    #[must_use]
    pub(crate) fn new(key: ConnectionKey, direction: Direction) -> Self {
        Self {
            key,
            direction,
            counter: 0,
            buffer: Vec::new(),
            read: 0,
        }
    }

    /// Appends received bytes. Before feeding more bytes, call [`Opener::next_message`] until it
    /// returns `None`.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.read);
        self.read = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next message if it has been received completely.
    ///
    /// # Errors
    /// Returns [`Broken`] if the stream cannot be read any further. In this case, close the
    /// connection.
    pub(crate) fn next_message(&mut self) -> Result<Option<Vec<u8>>, Broken> {
        let bytes = &self.buffer[self.read..];
        let Some((head, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*head) as usize;
        if length > SEALED_BYTES_MAX {
            return Err(Broken::TooLong);
        }
        if rest.len() < length + MAC_BYTES {
            return Ok(None);
        }
        let (framed, mac) =
            bytes[..LENGTH_BYTES + length + MAC_BYTES].split_at(LENGTH_BYTES + length);
        let expected = tag(&self.key, self.direction, self.counter, framed);
        if !is_same(&expected, mac) {
            return Err(Broken::Forged);
        }
        self.counter += 1;
        let message = framed[LENGTH_BYTES..].to_vec();
        self.read += LENGTH_BYTES + length + MAC_BYTES;
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests;
