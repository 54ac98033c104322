//! Defines the messages between rank 0 and the other ranks during a join.

use crate::control::connections::Connections;
use crate::control::descriptors::DescriptorUsage;
use crate::control::message::encode;
use crate::control::peer::Peer;
use crate::error::{Error, decode_line};
use crate::limits::CONTROL_MESSAGE_BYTES_MAX;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The record that a rank sends to rank 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) rank: usize,
    pub(crate) peer: Peer,
    /// Names and values of the settings that must be the same on all ranks.
    #[serde(deserialize_with = "decode_line")]
    pub(crate) agreed: Vec<(String, String)>,
    /// The number of file descriptors that the rank uses, and its limits.
    pub(crate) room: DescriptorUsage,
}

/// A message that is sent during a join.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Message {
    /// To rank 0: the sender's record.
    Record(Box<Record>),
    /// From rank 0: entries of the table, starting with rank `first`.
    Table { first: usize, peers: Vec<Peer> },
    /// To rank 0: the reason why this rank cannot join or has stopped trying. From rank 0: the
    /// reason why the join failed.
    Failed(Error),
    /// From rank 0: the join is still in progress. The text names the missing ranks.
    Waiting(#[serde(deserialize_with = "decode_line")] String),
}

/// Splits the table into messages that each hold at most `bytes_max` bytes of entries. An entry
/// that is longer gets its own message.
fn table(peers: &[Peer], bytes_max: usize) -> Vec<Message> {
    let mut pieces = Vec::new();
    let (mut first, mut bytes) = (0, 0);
    for (rank, peer) in peers.iter().enumerate() {
        let more = encode(peer).len();
        if rank > first && bytes + more > bytes_max {
            pieces.push(Message::Table {
                first,
                peers: peers[first..rank].to_vec(),
            });
            (first, bytes) = (rank, 0);
        }
        bytes += more;
    }
    pieces.push(Message::Table {
        first,
        peers: peers[first..].to_vec(),
    });
    pieces
}

/// Sends the table to all ranks. The table is encoded once and sent piece by piece, so that at most
/// one piece is queued per channel.
pub(super) struct Handout {
    pieces: Vec<Vec<u8>>,
    /// Index of the next piece to send on each unfinished channel, keyed by channel.
    next: BTreeMap<usize, usize>,
}

impl Handout {
    pub(super) fn new(peers: &[Peer], channels: Vec<usize>) -> Self {
        let pieces = table(peers, CONTROL_MESSAGE_BYTES_MAX - 64);
        Self {
            pieces: pieces.iter().map(encode).collect(),
            next: channels.into_iter().map(|id| (id, 0)).collect(),
        }
    }

    /// Sends as much as the system accepts now. Returns `true` if everything has been sent.
    pub(super) fn proceed(&mut self, connections: &mut Connections) -> bool {
        let is_flushed = connections.flush();
        self.next.retain(|id, at| {
            while connections.queued_bytes(*id) == 0 {
                let Some(piece) = self.pieces.get(*at) else {
                    return false;
                };
                *at += 1;
                connections.send_encoded(*id, piece);
            }
            true
        });
        is_flushed && self.next.is_empty()
    }
}

#[cfg(test)]
mod tests;
