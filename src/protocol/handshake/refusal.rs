//! Why a handshake came to nothing, in numbers and in words.

use super::WIRE_VERSION;
use std::fmt;

/// Why a handshake ended without a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The other end does not speak this protocol at all.
    Garbage,
    /// The other end speaks another version of it.
    Version {
        /// The other end's version.
        theirs: u16,
    },
    /// The acceptor could not confirm the initiator's secret.
    Secret,
    /// The acceptor could not prove that it holds the secret.
    Impostor,
    /// The world sizes differ.
    WorldSize {
        /// This end's.
        ours: u32,
        /// The other end's.
        theirs: u32,
    },
    /// The initiator's rank is no other rank of the acceptor's world.
    Rank,
    /// The acceptor is not the rank that the initiator wanted.
    Addressee {
        /// The acceptor's rank.
        acceptor: u32,
    },
    /// The acceptor takes no connections for this purpose here.
    Purpose,
    /// The job was restarted between the starts of the two ends.
    Attempt {
        /// This end's.
        ours: u16,
        /// The other end's.
        theirs: u16,
    },
}

impl Refusal {
    /// Whether an initiator that was told so knows that the acceptor holds the secret. What is not
    /// proven can be said by any process that has the port.
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

    /// The number that stands for it in an answer.
    pub(super) fn code(self) -> u8 {
        match self {
            Refusal::Garbage | Refusal::Impostor => 0,
            Refusal::Version { .. } => 1,
            Refusal::Secret => 2,
            Refusal::WorldSize { .. } => 3,
            Refusal::Rank => 4,
            Refusal::Addressee { .. } => 5,
            Refusal::Purpose => 6,
            Refusal::Attempt { .. } => 7,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Garbage => formatter.write_str("it does not speak ringtree's protocol"),
            Refusal::Version { theirs } => write!(
                formatter,
                "it speaks wire version {theirs}, this end {WIRE_VERSION}: \
                 run the same ringtree on all ranks"
            ),
            Refusal::Secret => {
                formatter.write_str("the job secret was refused (RINGTREE_SECRET differs?)")
            }
            Refusal::Impostor => {
                formatter.write_str("it did not prove that it holds the job secret")
            }
            Refusal::WorldSize { ours, theirs } => write!(
                formatter,
                "the world size is {ours} here and {theirs} there (WORLD_SIZE differs)"
            ),
            Refusal::Rank => formatter.write_str("the rank is no other rank of its world"),
            Refusal::Addressee { acceptor } => {
                write!(formatter, "rank {acceptor} was reached instead")
            }
            Refusal::Purpose => formatter.write_str("it takes no connection for this purpose"),
            Refusal::Attempt { ours, theirs } => write!(
                formatter,
                "this process is of attempt {ours} of the job, that one of attempt {theirs}: the \
                 older was replaced when the job was restarted"
            ),
        }
    }
}
