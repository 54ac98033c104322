//! Mutual authentication of a new connection by the job's secret.
//!
//! ```text
//! initiator                                   acceptor
//!   hello: what for, which ranks, nonce  ──▶
//!                                        ◀──   challenge: nonce
//!   proof: MAC(initiator, hello, nonce)  ──▶   checks it
//!   checks it                            ◀──   answer: accepted or why not, MAC(acceptor, ..)
//!   confirm                              ──▶
//! ```
//! The MAC is HMAC-SHA256 under the secret. It covers the role, the whole hello (wire version,
//! purpose, world size, group, epoch, attempt, both ranks, the initiator's nonce) and the
//! acceptor's nonce, so a proof is worth nothing on another connection or in the other direction.
//! The acceptor proves itself only after it has checked the initiator, so it computes nothing for
//! strangers. A refusal for a reason other than the secret carries its MAC and goes only to a
//! proven initiator. A wrong version, after which no proof could follow, is told to any initiator.
//!
//! The *attempt* counts the restarts of the job. What is left of an earlier one holds the same
//! secret and the same place, and only this number tells it from the rank that replaced it.
//!
//! Only the confirmation makes the connection: an initiator that gave up waiting closes instead,
//! so no acceptor keeps a connection that its initiator has already replaced by another. Once the
//! initiator is proven, an acceptor can afford to wait for it without a deadline.
//!
//! Frames have fixed sizes: a stranger can make us hold [`HELLO_BYTES`] bytes.

use ctutils::CtEq;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;

mod refusal;
pub use refusal::Refusal;

/// The version of everything that travels between ranks. Ranks of different versions refuse each
/// other; the first ten bytes of a hello and the first six of an answer never change.
pub const WIRE_VERSION: u16 = 10;
/// Bytes of the initiator's first frame.
pub const HELLO_BYTES: usize = 64;
/// Bytes of a nonce, of a proof, and of a secret.
pub const NONCE_BYTES: usize = 32;
/// Bytes of each of the acceptor's two frames.
pub const ANSWER_BYTES: usize = 48;

const HELLO_MAGIC: [u8; 8] = *b"ringtree";
const ANSWER_MAGIC: [u8; 4] = *b"rtok";
const KIND_CHALLENGE: u8 = 1;
const KIND_ACCEPTED: u8 = 2;
const KIND_REFUSED: u8 = 3;
/// The initiator's last frame.
const CONFIRM: [u8; 1] = [0xC0];

type Digest = [u8; NONCE_BYTES];

/// The job's shared secret: 32 bytes that the ranks hold and no other process.
#[derive(Clone)]
pub struct Secret([u8; NONCE_BYTES]);

impl Secret {
    /// A secret of these bytes.
    #[must_use]
    pub fn new(bytes: [u8; NONCE_BYTES]) -> Self {
        Self(bytes)
    }

    /// The secret in 64 hexadecimal digits; surrounding white space is ignored. `None` if `text`
    /// is anything else.
    ///
    /// ```
    /// use ringtree::Secret;
    /// assert!(Secret::from_hex(&"a0".repeat(32)).is_some());
    /// assert!(Secret::from_hex("a0").is_none());
    /// ```
    #[must_use]
    pub fn from_hex(text: &str) -> Option<Self> {
        let digits = text.trim().as_bytes();
        if digits.len() != 2 * NONCE_BYTES {
            return None;
        }
        let mut bytes = [0; NONCE_BYTES];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let high = char::from(pair[0]).to_digit(16)?;
            let low = char::from(pair[1]).to_digit(16)?;
            *byte = u8::try_from(high << 4 | low).ok()?;
        }
        Some(Self(bytes))
    }

    /// What stands for the secret in a job without one. It proves nothing; the ends of such a
    /// connection insist on loopback instead.
    #[must_use]
    pub fn absent() -> Self {
        Self([0; NONCE_BYTES])
    }

    pub(super) fn mac(&self, parts: &[&[u8]]) -> Digest {
        mac(&self.0, parts)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret(hidden)")
    }
}

/// HMAC-SHA256 of the concatenated `parts`; callers keep every part but the last at a fixed length.
pub(super) fn mac(key: &[u8; NONCE_BYTES], parts: &[&[u8]]) -> Digest {
    let mut state = <Hmac<Sha256> as KeyInit>::new_from_slice(key)
        .expect("invariant: HMAC takes keys of any length");
    for part in parts {
        state.update(part);
    }
    state.finalize().into_bytes().into()
}

/// Whether two digests are the same, in a time that does not depend on where they differ.
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

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Control messages between a rank and rank 0.
    Control,
    /// Payload between two ranks of a group.
    Data,
    /// Messages between the launchers of a job's hosts.
    Launch,
}

impl Purpose {
    fn code(self) -> u8 {
        match self {
            Purpose::Control => 1,
            Purpose::Data => 2,
            Purpose::Launch => 3,
        }
    }
}

/// What the initiator says about the connection it opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// What the connection is for.
    pub purpose: Purpose,
    /// The initiator's world size.
    pub world_size: u32,
    /// The group a data connection belongs to; 0 for control.
    pub group: u32,
    /// The group's epoch; 0 for control.
    pub epoch: u16,
    /// How often the job had been restarted when the initiator was started.
    pub attempt: u16,
    /// The initiator's rank.
    pub from: u32,
    /// The rank it wants to reach.
    pub to: u32,
}

impl Hello {
    fn encode(&self, nonce: &[u8; NONCE_BYTES]) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&HELLO_MAGIC);
        bytes[8..10].copy_from_slice(&WIRE_VERSION.to_le_bytes());
        bytes[10] = self.purpose.code();
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
        let purpose = match bytes[10] {
            1 => Purpose::Control,
            2 => Purpose::Data,
            3 => Purpose::Launch,
            _ => return None,
        };
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

/// What an end does after an input.
#[derive(Debug)]
pub enum Output {
    /// Send this and wait for [`Initiator::bytes_wanted`] or [`Acceptor::bytes_wanted`] more bytes.
    Reply(Vec<u8>),
    /// Send this (the acceptor's is empty); both ends have proven themselves and know it.
    Done {
        /// What to send.
        reply: Vec<u8>,
        /// What the initiator said; now known to be true.
        hello: Hello,
        /// The key of this connection.
        key: ConnectionKey,
    },
    /// Send this, if it can be sent, and close. Only the acceptor refuses.
    Refuse {
        /// What to send.
        reply: Vec<u8>,
        /// What the initiator said, once it is known to be true.
        proven: Option<Hello>,
        /// Why.
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

fn answer(kind: u8, reason: u8, detail: u32, body: &Digest) -> [u8; ANSWER_BYTES] {
    let mut bytes = [0; ANSWER_BYTES];
    bytes[..4].copy_from_slice(&ANSWER_MAGIC);
    bytes[4..6].copy_from_slice(&WIRE_VERSION.to_le_bytes());
    bytes[6] = kind;
    bytes[7] = reason;
    bytes[8..12].copy_from_slice(&detail.to_le_bytes());
    bytes[16..].copy_from_slice(body);
    bytes
}

/// The end that opened the connection.
pub struct Initiator {
    secret: Secret,
    hello: Hello,
    transcript: Transcript,
    proven: bool,
}

impl Initiator {
    /// An initiator, and the frame it sends first. `nonce` must be fresh random bytes.
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
            proven: false,
        };
        (initiator, frame.to_vec())
    }

    /// How many bytes the next [`Initiator::input`] takes.
    #[must_use]
    pub fn bytes_wanted(&self) -> usize {
        ANSWER_BYTES
    }

    /// Takes the acceptor's next frame.
    ///
    /// # Errors
    /// The handshake is over: close the connection.
    pub fn input(&mut self, bytes: &[u8]) -> Result<Output, Refusal> {
        let frame: &[u8; ANSWER_BYTES] = bytes.try_into().map_err(|_| Refusal::Garbage)?;
        if frame[..4] != ANSWER_MAGIC {
            return Err(Refusal::Garbage);
        }
        let theirs = half(frame, 4);
        if theirs != WIRE_VERSION {
            return Err(Refusal::Version { theirs });
        }
        if self.proven {
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
        self.proven = true;
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
            (KIND_REFUSED, 3) => Err(Refusal::WorldSize {
                ours: self.hello.world_size,
                theirs: detail,
            }),
            (KIND_REFUSED, 4) => Err(Refusal::Rank),
            (KIND_REFUSED, 5) => Err(Refusal::Addressee { acceptor: detail }),
            (KIND_REFUSED, 6) => Err(Refusal::Purpose),
            (KIND_REFUSED, 7) => Err(Refusal::Attempt {
                ours: self.hello.attempt,
                theirs: half(frame, 8),
            }),
            _ => Err(Refusal::Garbage),
        }
    }
}

/// What an acceptor takes.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// The purpose its listener serves.
    pub purpose: Purpose,
    /// Its world size.
    pub world_size: u32,
    /// Its rank.
    pub rank: u32,
    /// The attempt of the job that it belongs to.
    pub attempt: u16,
}

/// The end that the connection came to.
pub struct Acceptor {
    secret: Secret,
    expected: Expected,
    nonce: [u8; NONCE_BYTES],
    state: State,
}

/// What an acceptor waits for.
enum State {
    Hello,
    Proof(Hello, Transcript),
    Confirmation(Hello, ConnectionKey),
    Nothing,
}

impl Acceptor {
    /// An acceptor. `nonce` must be fresh random bytes.
    #[must_use]
    pub fn new(secret: &Secret, expected: Expected, nonce: [u8; NONCE_BYTES]) -> Self {
        Self {
            secret: secret.clone(),
            expected,
            nonce,
            state: State::Hello,
        }
    }

    /// How many bytes the next [`Acceptor::input`] takes.
    #[must_use]
    pub fn bytes_wanted(&self) -> usize {
        match self.state {
            State::Hello => HELLO_BYTES,
            State::Proof(..) => NONCE_BYTES,
            State::Confirmation(..) | State::Nothing => CONFIRM.len(),
        }
    }

    /// Whether the initiator has proven that it holds the secret.
    #[must_use]
    pub fn is_proven(&self) -> bool {
        matches!(self.state, State::Confirmation(..))
    }

    /// Takes the initiator's next frame.
    ///
    /// # Errors
    /// The bytes are no frame of this protocol: close the connection, answer nothing.
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
            let refusal = Refusal::Version { theirs };
            // The answer's own version field says which version this end speaks.
            let reply = answer(KIND_REFUSED, refusal.code(), 0, &[0; NONCE_BYTES]);
            return Ok(Output::Refuse {
                reply: reply.to_vec(),
                proven: None,
                refusal,
            });
        }
        let hello = Hello::decode(frame).ok_or(Refusal::Garbage)?;
        let transcript = Transcript {
            hello: *frame,
            challenge: self.nonce,
        };
        self.state = State::Proof(hello, transcript);
        let reply = answer(KIND_CHALLENGE, 0, 0, &self.nonce);
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
            let refusal = Refusal::Secret;
            let reply = answer(KIND_REFUSED, refusal.code(), 0, &[0; NONCE_BYTES]);
            return Ok(Output::Refuse {
                reply: reply.to_vec(),
                proven: None,
                refusal,
            });
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
        let Expected {
            purpose,
            world_size,
            rank,
            attempt,
        } = self.expected;
        if hello.attempt != attempt {
            let refusal = Refusal::Attempt {
                ours: attempt,
                theirs: hello.attempt,
            };
            Some((refusal, attempt.into()))
        } else if hello.world_size != world_size {
            let refusal = Refusal::WorldSize {
                ours: world_size,
                theirs: hello.world_size,
            };
            Some((refusal, world_size))
        } else if hello.purpose != purpose {
            Some((Refusal::Purpose, 0))
        } else if hello.from >= world_size || hello.from == hello.to {
            Some((Refusal::Rank, 0))
        } else if hello.to != rank {
            Some((Refusal::Addressee { acceptor: rank }, rank))
        } else {
            None
        }
    }

    fn signed(&self, kind: u8, reason: u8, detail: u32, transcript: &Transcript) -> Vec<u8> {
        let mut reply = answer(kind, reason, detail, &[0; NONCE_BYTES]);
        let proof = transcript.acceptor_proof(&self.secret, &reply[..16]);
        reply[16..].copy_from_slice(&proof);
        reply.to_vec()
    }
}

#[cfg(test)]
mod tests;
