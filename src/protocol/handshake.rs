//! Authenticates the two ends of a new connection to each other with the job's secret.
//!
//! ```text
//! initiator                                   acceptor
//!   hello: purpose, ranks, nonce         ──▶
//!                                        ◀──   challenge: nonce
//!   proof: MAC(initiator, hello, nonce)  ──▶   checks it
//!   checks it                            ◀──   answer: accepted or reason, MAC(acceptor, ..)
//!   confirm                              ──▶
//! ```
//! The MAC is HMAC-SHA256 under the secret. It covers the role, the complete hello (wire version,
//! purpose, world size, group, epoch, attempt, both ranks, the initiator's nonce) and the
//! acceptor's nonce, so a proof is invalid on a different connection and in the opposite direction.
//! The acceptor proves itself only after it has checked the initiator, so it computes no proof for
//! unauthenticated peers. A refusal because of the version or the secret is sent to an initiator
//! that is not authenticated, so it carries no MAC. Any other refusal carries the acceptor's MAC
//! and is sent only to an authenticated initiator.
//!
//! The *attempt* counts the restarts of the job. A process that is left over from an earlier
//! attempt has the same secret and the same rank as its replacement, so only the attempt
//! distinguishes the two.
//!
//! The connection is established only by the confirmation. An initiator that has stopped waiting
//! closes the connection instead, so an acceptor never keeps a connection that its initiator has
//! already replaced. Once the initiator is authenticated, the acceptor can afford to wait much
//! longer for its confirmation.
//!
//! Frames have fixed sizes, so an unauthenticated peer cannot make this process hold more than
//! [`HELLO_BYTES`] bytes.

use crate::error::{Error, Result};
use ctutils::CtEq;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;
use std::str::FromStr;

mod refusal;
pub use refusal::Refusal;

/// Version of all formats in which ranks exchange data. Ranks with different versions reject each
/// other. The first ten bytes of a hello and the first six bytes of an answer never change.
pub const WIRE_VERSION: u16 = 11;
/// Length of the initiator's first frame in bytes.
pub const HELLO_BYTES: usize = 64;
/// Length of a nonce, a proof or a secret in bytes.
pub const NONCE_BYTES: usize = 32;
/// Length of each of the acceptor's two frames in bytes.
pub const ANSWER_BYTES: usize = 48;

const HELLO_MAGIC: [u8; 8] = *b"ringtree";
const ANSWER_MAGIC: [u8; 4] = *b"rtok";
const KIND_CHALLENGE: u8 = 1;
const KIND_ACCEPTED: u8 = 2;
const KIND_REFUSED: u8 = 3;
/// The initiator's last frame.
const CONFIRM: [u8; 1] = [0xC0];

type Digest = [u8; NONCE_BYTES];

/// The job's shared secret: 32 bytes that only the job's ranks know.
#[derive(Clone)]
pub struct Secret([u8; NONCE_BYTES]);

impl Secret {
    /// Creates a secret from its bytes.
    #[must_use]
    pub fn new(bytes: [u8; NONCE_BYTES]) -> Self {
        Self(bytes)
    }

    /// Parses a secret from 64 hexadecimal digits, ignoring surrounding white space. Returns `None`
    /// if `text` is anything else.
    pub(crate) fn from_hex(text: &str) -> Option<Self> {
        from_hex(text)?.try_into().ok().map(Self)
    }

    /// Returns the placeholder that a job without a secret uses. It proves nothing, so both ends of
    /// such a connection accept only loopback addresses.
    pub(crate) fn absent() -> Self {
        Self([0; NONCE_BYTES])
    }

    /// Returns 16 hexadecimal digits by which ranks can find out whether they have the same secret.
    /// They do not reveal the secret.
    pub(crate) fn fingerprint(&self) -> String {
        let digest = self.mac(&[b"ringtree fingerprint"]);
        digest[..8]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }

    pub(super) fn mac(&self, parts: &[&[u8]]) -> Digest {
        mac(&self.0, parts)
    }
}

/// Decodes pairs of hexadecimal digits. Ignores surrounding white space.
pub(crate) fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let pair = |pair: &[u8]| u8::try_from(digit(pair.first()?)? << 4 | digit(pair.get(1)?)?).ok();
    text.trim().as_bytes().chunks(2).map(pair).collect()
}

/// Parses 64 hexadecimal digits. White space around them is ignored.
///
/// ```
/// use ringtree::start::Secret;
/// assert!("a0".repeat(32).parse::<Secret>().is_ok());
/// assert!("a0".parse::<Secret>().is_err());
/// ```
impl FromStr for Secret {
    type Err = Error;

    /// The error does not contain the text, which may be the secret with a typo.
    fn from_str(text: &str) -> Result<Self> {
        Self::from_hex(text).ok_or_else(|| {
            Error::usage(format!(
                "a secret must be {} hexadecimal digits; generate one with `openssl rand -hex 32`",
                2 * NONCE_BYTES
            ))
        })
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret(hidden)")
    }
}

/// Returns the HMAC-SHA256 of the concatenated `parts`. For each kind of use, all parts except the
/// last must have fixed lengths, so that no two lists of parts have the same concatenation.
pub(super) fn mac(key: &[u8; NONCE_BYTES], parts: &[&[u8]]) -> Digest {
    let mut state = <Hmac<Sha256> as KeyInit>::new_from_slice(key)
        .expect("invariant: HMAC accepts keys of any length");
    for part in parts {
        state.update(part);
    }
    state.finalize().into_bytes().into()
}

/// Returns `true` if two digests are equal. The time that this takes does not depend on where they
/// differ.
pub(super) fn is_same(left: &[u8], right: &[u8]) -> bool {
    left.ct_eq(right).to_bool()
}

/// A key that only the two ends of one connection know.
#[derive(Clone)]
pub struct ConnectionKey(pub(super) [u8; NONCE_BYTES]);

impl fmt::Debug for ConnectionKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ConnectionKey(hidden)")
    }
}

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Control messages between a rank and rank 0.
    Control = 1,
    /// Data between two ranks of a group.
    Data = 2,
    /// Messages between the launchers of a job's hosts.
    Launch = 3,
}

/// The initiator's description of the connection that it is opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Purpose of the connection.
    pub purpose: Purpose,
    /// World size of the initiator.
    pub world_size: u32,
    /// Group that a data connection belongs to; 0 for a control connection.
    pub group: u32,
    /// Epoch of the group; 0 for a control connection.
    pub epoch: u16,
    /// Number of times that the job had been restarted when the initiator was started.
    pub attempt: u16,
    /// Rank of the initiator.
    pub from: u32,
    /// Rank that the initiator wants to reach.
    pub to: u32,
}

impl Hello {
    fn encode(&self, nonce: &[u8; NONCE_BYTES]) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&HELLO_MAGIC);
        bytes[8..10].copy_from_slice(&WIRE_VERSION.to_le_bytes());
        bytes[10] = self.purpose as u8;
        bytes[12..16].copy_from_slice(&self.world_size.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.group.to_le_bytes());
        bytes[20..22].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[22..24].copy_from_slice(&self.attempt.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.from.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.to.to_le_bytes());
        bytes[32..].copy_from_slice(nonce);
        bytes
    }

    fn decode(bytes: &[u8; HELLO_BYTES]) -> Option<Self> {
        let mut purposes = [Purpose::Control, Purpose::Data, Purpose::Launch].into_iter();
        let purpose = purposes.find(|purpose| *purpose as u8 == bytes[10])?;
        if bytes[11] != 0 {
            return None;
        }
        Some(Self {
            purpose,
            world_size: word(bytes, 12),
            group: word(bytes, 16),
            epoch: half(bytes, 20),
            attempt: half(bytes, 22),
            from: word(bytes, 24),
            to: word(bytes, 28),
        })
    }
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The action that an end must take after an input.
#[derive(Debug)]
pub enum Output {
    /// Send this frame and wait for [`Initiator::bytes_wanted`] or [`Acceptor::bytes_wanted`]
    /// further bytes.
    Reply(Vec<u8>),
    /// Send `reply`. Both ends have authenticated each other, and both know this.
    Done {
        /// The frame to send; empty on the acceptor.
        reply: Vec<u8>,
        /// The initiator's hello, which is now authenticated.
        hello: Hello,
        /// Key of this connection.
        key: ConnectionKey,
    },
    /// Send `reply` if possible, and close the connection. Only the acceptor refuses.
    Refuse {
        /// The frame to send.
        reply: Vec<u8>,
        /// The initiator's hello, if it is authenticated.
        proven: Option<Hello>,
        /// The reason.
        refusal: Refusal,
    },
}

struct Transcript {
    hello: [u8; HELLO_BYTES],
    challenge: [u8; NONCE_BYTES],
}

impl Transcript {
    fn initiator_proof(&self, secret: &Secret) -> Digest {
        secret.mac(&[b"ringtree initiator", &self.hello, &self.challenge])
    }

    fn acceptor_proof(&self, secret: &Secret, answer: &[u8]) -> Digest {
        secret.mac(&[b"ringtree acceptor ", &self.hello, &self.challenge, answer])
    }

    fn key(&self, secret: &Secret) -> ConnectionKey {
        ConnectionKey(secret.mac(&[b"ringtree key      ", &self.hello, &self.challenge]))
    }
}

fn acceptor_frame(kind: u8, reason: u8, detail: u32, body: &Digest) -> [u8; ANSWER_BYTES] {
    let mut bytes = [0; ANSWER_BYTES];
    bytes[..4].copy_from_slice(&ANSWER_MAGIC);
    bytes[4..6].copy_from_slice(&WIRE_VERSION.to_le_bytes());
    bytes[6] = kind;
    bytes[7] = reason;
    bytes[8..12].copy_from_slice(&detail.to_le_bytes());
    bytes[16..].copy_from_slice(body);
    bytes
}

/// Returns the refusal of an initiator that has not proven that it holds the secret.
fn refuse(refusal: Refusal) -> Output {
    Output::Refuse {
        reply: acceptor_frame(KIND_REFUSED, refusal.code(), 0, &[0; NONCE_BYTES]).to_vec(),
        proven: None,
        refusal,
    }
}

/// The end that opened the connection.
pub struct Initiator {
    secret: Secret,
    hello: Hello,
    transcript: Transcript,
    has_sent_proof: bool,
}

impl Initiator {
    /// Creates an initiator and returns it together with the first frame to send. `nonce` must be
    /// fresh random bytes.
    #[must_use]
    pub fn new(secret: &Secret, hello: Hello, nonce: [u8; NONCE_BYTES]) -> (Self, Vec<u8>) {
        let frame = hello.encode(&nonce);
        let transcript = Transcript {
            hello: frame,
            challenge: [0; NONCE_BYTES],
        };
        let initiator = Self {
            secret: secret.clone(),
            hello,
            transcript,
            has_sent_proof: false,
        };
        (initiator, frame.to_vec())
    }

    /// Returns the number of bytes that the next call of [`Initiator::input`] expects.
    #[must_use]
    pub fn bytes_wanted(&self) -> usize {
        ANSWER_BYTES
    }

    /// Processes the acceptor's next frame.
    ///
    /// # Errors
    /// Returns the [`Refusal`] that ends the handshake. In this case, close the connection.
    pub fn input(&mut self, bytes: &[u8]) -> Result<Output, Refusal> {
        let frame: &[u8; ANSWER_BYTES] = bytes.try_into().map_err(|_| Refusal::Garbage)?;
        if frame[..4] != ANSWER_MAGIC {
            return Err(Refusal::Garbage);
        }
        let theirs = half(frame, 4);
        if theirs != WIRE_VERSION {
            return Err(Refusal::Version { theirs });
        }
        if self.has_sent_proof {
            self.answer(frame)
        } else {
            self.challenge(frame)
        }
    }

    fn challenge(&mut self, frame: &[u8; ANSWER_BYTES]) -> Result<Output, Refusal> {
        if frame[6] != KIND_CHALLENGE || frame[7..16] != [0; 9] {
            return Err(Refusal::Garbage);
        }
        self.transcript.challenge.copy_from_slice(&frame[16..]);
        self.has_sent_proof = true;
        let proof = self.transcript.initiator_proof(&self.secret);
        Ok(Output::Reply(proof.to_vec()))
    }

    fn answer(&mut self, frame: &[u8; ANSWER_BYTES]) -> Result<Output, Refusal> {
        let (kind, reason, detail) = (frame[6], frame[7], word(frame, 8));
        if kind == KIND_REFUSED && reason == Refusal::Secret.code() {
            return Err(Refusal::Secret);
        }
        let expected = self.transcript.acceptor_proof(&self.secret, &frame[..16]);
        if !is_same(&expected, &frame[16..]) {
            return Err(Refusal::Impostor);
        }
        match (kind, reason) {
            (KIND_ACCEPTED, 0) => Ok(Output::Done {
                reply: CONFIRM.to_vec(),
                hello: self.hello,
                key: self.transcript.key(&self.secret),
            }),
            (KIND_REFUSED, refusal::WORLD_SIZE) => Err(Refusal::WorldSize {
                ours: self.hello.world_size,
                theirs: detail,
            }),
            (KIND_REFUSED, refusal::RANK) => Err(Refusal::Rank),
            (KIND_REFUSED, refusal::ADDRESSEE) => Err(Refusal::Addressee { acceptor: detail }),
            (KIND_REFUSED, refusal::PURPOSE) => Err(Refusal::Purpose),
            (KIND_REFUSED, refusal::ATTEMPT) => Err(Refusal::Attempt {
                ours: self.hello.attempt,
                theirs: half(frame, 8),
            }),
            _ => Err(Refusal::Garbage),
        }
    }
}

/// The acceptor's own values, which a hello must match in order to be accepted.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// Purpose of the acceptor's listener.
    pub purpose: Purpose,
    /// World size of the acceptor.
    pub world_size: u32,
    /// Rank of the acceptor.
    pub rank: u32,
    /// Attempt of the job that the acceptor belongs to.
    pub attempt: u16,
}

/// The end that accepted the connection.
pub struct Acceptor {
    secret: Secret,
    expected: Expected,
    nonce: [u8; NONCE_BYTES],
    state: State,
}

/// The frame that an acceptor is waiting for.
enum State {
    Hello,
    Proof(Hello, Transcript),
    Confirmation(Hello, ConnectionKey),
    Nothing,
}

impl Acceptor {
    /// Creates an acceptor. `nonce` must be fresh random bytes.
    #[must_use]
    pub fn new(secret: &Secret, expected: Expected, nonce: [u8; NONCE_BYTES]) -> Self {
        Self {
            secret: secret.clone(),
            expected,
            nonce,
            state: State::Hello,
        }
    }

    /// Returns the number of bytes that the next call of [`Acceptor::input`] expects.
    #[must_use]
    pub fn bytes_wanted(&self) -> usize {
        match self.state {
            State::Hello => HELLO_BYTES,
            State::Proof(..) => NONCE_BYTES,
            State::Confirmation(..) | State::Nothing => CONFIRM.len(),
        }
    }

    /// Returns `true` if the initiator has proven that it holds the secret but has not yet
    /// confirmed.
    #[must_use]
    pub fn is_proven(&self) -> bool {
        matches!(self.state, State::Confirmation(..))
    }

    /// Processes the initiator's next frame.
    ///
    /// # Errors
    /// Returns [`Refusal::Garbage`] if `bytes` is not the expected frame. In this case, close the
    /// connection without an answer.
    pub fn input(&mut self, bytes: &[u8]) -> Result<Output, Refusal> {
        match std::mem::replace(&mut self.state, State::Nothing) {
            State::Hello => self.hello(bytes),
            State::Proof(hello, transcript) => self.proof(bytes, hello, &transcript),
            State::Confirmation(hello, key) if bytes == CONFIRM => Ok(Output::Done {
                reply: Vec::new(),
                hello,
                key,
            }),
            State::Confirmation(..) | State::Nothing => Err(Refusal::Garbage),
        }
    }

    fn hello(&mut self, bytes: &[u8]) -> Result<Output, Refusal> {
        let frame: &[u8; HELLO_BYTES] = bytes.try_into().map_err(|_| Refusal::Garbage)?;
        if frame[..8] != HELLO_MAGIC {
            return Err(Refusal::Garbage);
        }
        let theirs = half(frame, 8);
        if theirs != WIRE_VERSION {
            // The version field of the answer contains the version of this end.
            return Ok(refuse(Refusal::Version { theirs }));
        }
        let hello = Hello::decode(frame).ok_or(Refusal::Garbage)?;
        let transcript = Transcript {
            hello: *frame,
            challenge: self.nonce,
        };
        self.state = State::Proof(hello, transcript);
        let reply = acceptor_frame(KIND_CHALLENGE, 0, 0, &self.nonce);
        Ok(Output::Reply(reply.to_vec()))
    }

    fn proof(
        &mut self,
        bytes: &[u8],
        hello: Hello,
        transcript: &Transcript,
    ) -> Result<Output, Refusal> {
        let proof: &[u8; NONCE_BYTES] = bytes.try_into().map_err(|_| Refusal::Garbage)?;
        let expected = transcript.initiator_proof(&self.secret);
        if !is_same(&expected, proof) {
            return Ok(refuse(Refusal::Secret));
        }
        let Some((refusal, detail)) = self.objection(&hello) else {
            self.state = State::Confirmation(hello, transcript.key(&self.secret));
            return Ok(Output::Reply(self.signed(KIND_ACCEPTED, 0, 0, transcript)));
        };
        Ok(Output::Refuse {
            reply: self.signed(KIND_REFUSED, refusal.code(), detail, transcript),
            proven: Some(hello),
            refusal,
        })
    }

    fn objection(&self, hello: &Hello) -> Option<(Refusal, u32)> {
        let own = self.expected;
        if hello.attempt != own.attempt {
            let (ours, theirs) = (own.attempt, hello.attempt);
            Some((Refusal::Attempt { ours, theirs }, ours.into()))
        } else if hello.world_size != own.world_size {
            let (ours, theirs) = (own.world_size, hello.world_size);
            Some((Refusal::WorldSize { ours, theirs }, ours))
        } else if hello.purpose != own.purpose {
            Some((Refusal::Purpose, 0))
        } else if hello.from >= own.world_size || hello.from == hello.to {
            Some((Refusal::Rank, 0))
        } else if hello.to != own.rank {
            let acceptor = own.rank;
            Some((Refusal::Addressee { acceptor }, acceptor))
        } else {
            None
        }
    }

    fn signed(&self, kind: u8, reason: u8, detail: u32, transcript: &Transcript) -> Vec<u8> {
        let mut reply = acceptor_frame(kind, reason, detail, &[0; NONCE_BYTES]);
        let proof = transcript.acceptor_proof(&self.secret, &reply[..16]);
        reply[16..].copy_from_slice(&proof);
        reply.to_vec()
    }
}

#[cfg(test)]
mod tests;
