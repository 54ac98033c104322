//! Encodes the message with which a rank passes a descriptor to another rank on its host.
//!
//! ```text
//! magic 8, version 2, attempt 2, channel 4, from 4, to 4, proof 32 bytes
//! ```
//! The message and the descriptor travel in one datagram. The datagram begins with a [`Word`],
//! without which the receiver's socket drops it. The proof is the HMAC-SHA256, under the job's
//! secret, of the fields and of a *nonce* that the ranks of the host share. The nonce is a hash of
//! random [`Token`]s, one from each rank. The ranks exchange their tokens over the authenticated
//! control connections when they join, and store them nowhere else. So a proof is invalid in a
//! different job or attempt, for a different channel, and in the opposite direction. Even in a job
//! without a secret, which uses only loopback addresses, only the ranks of the job can create a
//! valid proof. Therefore, the user ID of the sender is not checked.

use super::handshake::{NONCE_BYTES, Secret, WIRE_VERSION, is_same};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;

/// Length of the message in bytes.
pub const FD_MESSAGE_BYTES: usize = HEAD_BYTES + NONCE_BYTES;
/// Length of a token in bytes.
pub const TOKEN_BYTES: usize = 16;
/// Length of a word in bytes: too many to guess, even at a million datagrams per second.
pub const WORD_BYTES: usize = 8;

const HEAD_BYTES: usize = 24;
const MAGIC: [u8; 8] = *b"ringhand";

/// A rank's contribution to the nonce: fresh random bytes that only the ranks of the job know.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(pub [u8; TOKEN_BYTES]);

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Token(hidden)")
    }
}

/// The first bytes of every datagram that is sent to a particular rank's local socket.
pub type Word = [u8; WORD_BYTES];

impl Token {
    /// Returns the word for datagrams to the rank that owns this token. The token cannot be derived
    /// from the word.
    #[must_use]
    pub fn word(&self) -> Word {
        let hash = Sha256::new_with_prefix(b"ringtree word").chain_update(self.0);
        let mut word = [0; WORD_BYTES];
        word.copy_from_slice(&hash.finalize()[..WORD_BYTES]);
        word
    }
}

/// A secret value that the ranks that share memory include in their proofs, in addition to the
/// job's secret.
#[derive(Clone)]
pub struct Nonce([u8; NONCE_BYTES]);

impl Nonce {
    /// Creates the nonce of the ranks that own these tokens, which must be in rank order.
    #[must_use]
    pub fn new<'a>(tokens: impl IntoIterator<Item = &'a Token>) -> Self {
        let mut hash = Sha256::new();
        for token in tokens {
            hash.update(token.0);
        }
        Self(hash.finalize().into())
    }
}

/// The fields of a message that passes a descriptor from one rank to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FdMessage {
    /// Number of times that the job has been restarted.
    pub attempt: u16,
    /// Number of the channel that the descriptor belongs to. A job uses each channel number only
    /// once.
    pub channel: u32,
    /// The rank that sends the descriptor.
    pub from: u32,
    /// The rank that receives the descriptor.
    pub to: u32,
}

impl FdMessage {
    /// Encodes the message and its proof.
    ///
    /// ```
    /// use ringtree::internal::protocol::fd_passing::{Claim, FdMessage, Nonce, Token};
    /// use ringtree::internal::protocol::handshake::Secret;
    /// let (secret, nonce) = (Secret::new([7; 32]), Nonce::new([&Token([1; 16])]));
    /// let message = FdMessage { attempt: 0, channel: 4, from: 0, to: 1 };
    /// let claim = Claim::decode(&message.encode(&secret, &nonce)).expect("a message");
    /// assert_eq!(claim.said, message);
    /// assert!(claim.is_proven(&secret, &nonce));
    /// assert!(!claim.is_proven(&Secret::new([8; 32]), &nonce));
    /// ```
    #[must_use]
    pub fn encode(&self, secret: &Secret, nonce: &Nonce) -> [u8; FD_MESSAGE_BYTES] {
        let mut bytes = [0; FD_MESSAGE_BYTES];
        bytes[..HEAD_BYTES].copy_from_slice(&self.head());
        bytes[HEAD_BYTES..].copy_from_slice(&self.proof(secret, nonce));
        bytes
    }

    fn head(&self) -> [u8; HEAD_BYTES] {
        let mut head = [0; HEAD_BYTES];
        head[..8].copy_from_slice(&MAGIC);
        head[8..10].copy_from_slice(&WIRE_VERSION.to_le_bytes());
        head[10..12].copy_from_slice(&self.attempt.to_le_bytes());
        head[12..16].copy_from_slice(&self.channel.to_le_bytes());
        head[16..20].copy_from_slice(&self.from.to_le_bytes());
        head[20..24].copy_from_slice(&self.to.to_le_bytes());
        head
    }

    fn proof(&self, secret: &Secret, nonce: &Nonce) -> [u8; NONCE_BYTES] {
        secret.mac(&[b"ringtree hand-over", &self.head(), &nonce.0])
    }
}

/// A received message whose proof has not been checked yet.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// Contents of the message.
    pub said: FdMessage,
    proof: [u8; NONCE_BYTES],
}

impl Claim {
    /// Decodes a message. Returns `None` if `bytes` is not a message of this version.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; FD_MESSAGE_BYTES] = bytes.try_into().ok()?;
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let said = FdMessage {
            attempt: u16::from_le_bytes([bytes[10], bytes[11]]),
            channel: word(12),
            from: word(16),
            to: word(20),
        };
        let mut proof = [0; NONCE_BYTES];
        proof.copy_from_slice(&bytes[HEAD_BYTES..]);
        (said.head() == bytes[..HEAD_BYTES]).then_some(Self { said, proof })
    }

    /// Returns `true` if the sender holds `secret` and `nonce`. This call computes a hash, so
    /// perform cheap checks first.
    #[must_use]
    pub fn is_proven(&self, secret: &Secret, nonce: &Nonce) -> bool {
        is_same(&self.said.proof(secret, nonce), &self.proof)
    }
}

#[cfg(test)]
mod tests;
