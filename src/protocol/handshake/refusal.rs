//! Defines the reasons for which a handshake can fail, with their codes and texts.

use super::WIRE_VERSION;
use std::fmt;

/// Codes of the refusals that the acceptor signs.
pub(super) const WORLD_SIZE: u8 = 3;
pub(super) const RANK: u8 = 4;
pub(super) const ADDRESSEE: u8 = 5;
pub(super) const PURPOSE: u8 = 6;
pub(super) const ATTEMPT: u8 = 7;

/// The reason why a handshake failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The other end does not speak this protocol.
    Garbage,
    /// The other end speaks a different version of this protocol.
    Version {
        /// Version of the other end.
        theirs: u16,
    },
    /// The acceptor could not confirm the initiator's secret.
    Secret,
    /// The acceptor could not prove that it holds the secret.
    Impostor,
    /// The world sizes differ.
    WorldSize {
        /// World size of this end.
        ours: u32,
        /// World size of the other end.
        theirs: u32,
    },
    /// The initiator's rank is out of range, or equals the rank that it wants to reach.
    Rank,
    /// The acceptor is not the rank that the initiator wants to reach.
    Addressee {
        /// Rank of the acceptor.
        acceptor: u32,
    },
    /// The acceptor's listener does not accept connections for this purpose.
    Purpose,
    /// The job was restarted between the starts of the two ends.
    Attempt {
        /// Attempt of this end.
        ours: u16,
        /// Attempt of the other end.
        theirs: u16,
    },
}

impl Refusal {
    /// Returns `true` if this refusal shows the initiator that the acceptor holds the secret. The
    /// other refusals can be sent by any process that listens on the port.
    #[must_use]
    pub fn is_proven(self) -> bool {
        match self {
            Refusal::Garbage | Refusal::Version { .. } | Refusal::Secret | Refusal::Impostor => {
                false
            }
            Refusal::WorldSize { .. }
            | Refusal::Rank
            | Refusal::Addressee { .. }
            | Refusal::Purpose
            | Refusal::Attempt { .. } => true,
        }
    }

    /// Returns the code that represents the refusal in an answer.
    pub(super) fn code(self) -> u8 {
        match self {
            Refusal::Garbage | Refusal::Impostor => 0,
            Refusal::Version { .. } => 1,
            Refusal::Secret => 2,
            Refusal::WorldSize { .. } => WORLD_SIZE,
            Refusal::Rank => RANK,
            Refusal::Addressee { .. } => ADDRESSEE,
            Refusal::Purpose => PURPOSE,
            Refusal::Attempt { .. } => ATTEMPT,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Garbage => formatter.write_str("it does not speak ringtree's protocol"),
            Refusal::Version { theirs } => write!(
                formatter,
                "it speaks wire version {theirs}, but this end speaks {WIRE_VERSION}; run the same \
                 version of ringtree on all ranks"
            ),
            Refusal::Secret => formatter.write_str(
                "the job secret was rejected; set the same RINGTREE_SECRET on all ranks",
            ),
            Refusal::Impostor => {
                formatter.write_str("it did not prove that it holds the job secret")
            }
            Refusal::WorldSize { ours, theirs } => write!(
                formatter,
                "the world size is {ours} at this end but {theirs} at the other; set the same \
                 WORLD_SIZE on all ranks"
            ),
            Refusal::Rank => formatter.write_str(
                "the connecting rank is out of range or equals the rank that it connects to; check \
                 RANK and WORLD_SIZE",
            ),
            Refusal::Addressee { acceptor } => {
                write!(formatter, "rank {acceptor} was reached instead")
            }
            Refusal::Purpose => {
                formatter.write_str("it does not accept connections for this purpose")
            }
            Refusal::Attempt { ours, theirs } => write!(
                formatter,
                "this process belongs to attempt {ours} of the job, but the other process belongs \
                 to attempt {theirs}: a restart has replaced the older process"
            ),
        }
    }
}
