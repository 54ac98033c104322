//! Defines the messages between rank 0 and the other ranks during a join.

use crate::control::connections::Connections;
use crate::control::descriptors::Room;
use crate::control::message::encode;
use crate::control::peer::Peer;
use crate::error::{Error, told_line};
use crate::limits::CONTROL_MESSAGE_BYTES_MAX;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The record that a rank sends to rank 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) rank: usize,
    pub(crate) peer: Peer,
    /// Names and values of the settings that must be the same on all ranks.
    #[serde(deserialize_with = "told_line")]
    pub(crate) agreed: Vec<(String, String)>,
    /// The rank's limits on file descriptors and how many it uses.
    pub(crate) room: Room,
}

/// A message of the join.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Message {
    /// To rank 0: the sender's record.
    Record(Box<Record>),
    /// From rank 0: entries of the table, starting with rank `first`.
    Table { first: usize, peers: Vec<Peer> },
    /// To rank 0: the reason why this rank cannot join or gave up. From rank 0: the reason why the
    /// join failed.
    Failed(Error),
    /// From rank 0: the join is still in progress. The text names the missing ranks.
    Waiting(#[serde(deserialize_with = "told_line")] String),
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
mod tests {
    use super::*;
    use crate::control::connections::tests::connected;
    use crate::control::message::decode;
    use crate::control::peer::Process;
    use proptest::prelude::*;

    fn peer(port: u16) -> Peer {
        Peer {
            address: ([127, 0, 0, 1], port).into(),
            host_name: "héron".into(),
            host_id: "a/b".into(),
            site: "s".into(),
            place: Err("memfd_create: no".into()),
            pid: 4_000_000,
            process: Some(Process {
                space: "c/4026531836".into(),
                started: 1 << 40,
            }),
        }
    }

    #[test]
    fn messages_come_back_as_they_were() {
        let record = Record {
            rank: 7,
            peer: peer(1),
            agreed: vec![("RINGTREE_ALGORITHM".into(), "ring".into())],
            room: Room::here(),
        };
        let messages = [
            Message::Record(Box::new(record)),
            Message::Table {
                first: 5,
                peers: vec![peer(2), peer(3)],
            },
            Message::Failed(Error::join("no")),
            Message::Waiting("rank 3".into()),
        ];
        for message in messages {
            assert_eq!(decode(&encode(&message)), Some(message));
        }
    }

    #[test]
    fn a_large_table_is_cut_into_short_messages_that_cover_every_rank_once() {
        let peers: Vec<Peer> = (0..5000).map(peer).collect();
        let mut covered = Vec::new();
        for piece in table(&peers, CONTROL_MESSAGE_BYTES_MAX - 64) {
            assert!(encode(&piece).len() <= CONTROL_MESSAGE_BYTES_MAX);
            let Message::Table { first, peers } = piece else {
                panic!("a piece of the table");
            };
            assert_eq!(first, covered.len());
            covered.extend(peers);
        }
        assert_eq!(covered, peers);
    }

    #[test]
    fn of_the_table_only_a_piece_waits_for_a_rank_that_does_not_read() {
        let (_poll, mut connections, ends) = connected(1);
        let id = 0;
        // More than a queue may hold, and much more than the system buffers.
        let peers: Vec<Peer> = (0..60_000)
            .map(|port| Peer {
                host_id: "h".repeat(400),
                ..peer(port)
            })
            .collect();
        let mut table = Handout::new(&peers, vec![id]);
        for _ in 0..1000 {
            assert!(!table.proceed(&mut connections));
            assert!(connections.queued_bytes(id) <= 2 * CONTROL_MESSAGE_BYTES_MAX);
        }
        drop(ends);
        // After the channel is lost, nothing is left to send.
        drop(connections.remove(id));
        assert!(table.proceed(&mut connections) || table.proceed(&mut connections));
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode::<Message>(&bytes);
        }
    }
}
