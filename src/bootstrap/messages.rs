//! What travels on a control connection: a kind byte, then the content.

use super::sharing::{Offer, SharingKey};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// A rank as the others see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Where it takes data connections.
    pub address: SocketAddr,
    /// Its host's name, for messages to people; never resolved.
    pub host_name: String,
    /// Ranks with different host ids share no memory.
    pub host_id: String,
    /// Where it can share memory, or why with nobody.
    pub place: Offer,
    /// Its process id on its host.
    pub pid: u32,
    /// Its rank among those of its host.
    pub local_rank: usize,
}

impl Peer {
    /// What must be the same for two ranks to share memory; `None` for one that shares with nobody.
    #[must_use]
    pub fn sharing_key(&self) -> Option<SharingKey<'_>> {
        let place = self.place.as_ref().ok()?;
        Some(SharingKey {
            host_id: &self.host_id,
            boot_id: &place.boot_id,
            network: place.network,
            users: place.users,
            user: place.user,
        })
    }
}

/// What a rank says when it comes to the rendezvous.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) rank: usize,
    pub(super) peer: Peer,
    /// Settings that must be the same on all ranks, by name.
    pub(super) agreed: Vec<(String, String)>,
}

/// The receiver of a relayed message that goes to every rank but its sender.
pub(super) const TO_ALL: u32 = u32::MAX;

/// A control message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// To rank 0: I am here.
    Record(Record),
    /// From rank 0: the peers from rank `first` on.
    Table { first: usize, peers: Vec<Peer> },
    /// From rank 0: the join failed, and why.
    Failed(String),
    /// From rank 0: the join goes on; who is missing.
    Waiting(String),
    /// Between ranks, by way of rank 0.
    Relay {
        from: u32,
        to: u32,
        group: u32,
        payload: Vec<u8>,
    },
}

const RECORD: u8 = 1;
const TABLE: u8 = 2;
const FAILED: u8 = 3;
const WAITING: u8 = 4;
const RELAY: u8 = 5;
/// Bytes of a relayed message before its payload.
const RELAY_HEAD_BYTES: usize = 13;

fn tagged(kind: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1 + content.len());
    bytes.push(kind);
    bytes.extend_from_slice(content);
    bytes
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("invariant: these types have no map keys and no floats")
}

impl Message {
    /// The message as bytes.
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Message::Record(record) => tagged(RECORD, &json(record)),
            Message::Table { first, peers } => tagged(TABLE, &json(&(first, peers))),
            Message::Failed(text) => tagged(FAILED, text.as_bytes()),
            Message::Waiting(text) => tagged(WAITING, text.as_bytes()),
            Message::Relay {
                from,
                to,
                group,
                payload,
            } => {
                let mut bytes = Vec::with_capacity(RELAY_HEAD_BYTES + payload.len());
                bytes.push(RELAY);
                for word in [from, to, group] {
                    bytes.extend_from_slice(&word.to_le_bytes());
                }
                bytes.extend_from_slice(payload);
                bytes
            }
        }
    }

    /// The message in `bytes`, if it is one.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, content) = bytes.split_first()?;
        match *kind {
            RECORD => serde_json::from_slice(content).ok().map(Message::Record),
            TABLE => {
                let (first, peers) = serde_json::from_slice(content).ok()?;
                Some(Message::Table { first, peers })
            }
            FAILED => Some(Message::Failed(text(content))),
            WAITING => Some(Message::Waiting(text(content))),
            RELAY => {
                let (from, content) = word(content)?;
                let (to, content) = word(content)?;
                let (group, payload) = word(content)?;
                Some(Message::Relay {
                    from,
                    to,
                    group,
                    payload: payload.to_vec(),
                })
            }
            _ => None,
        }
    }
}

fn text(content: &[u8]) -> String {
    String::from_utf8_lossy(content).into_owned()
}

fn word(content: &[u8]) -> Option<(u32, &[u8])> {
    let (head, rest) = content.split_first_chunk::<4>()?;
    Some((u32::from_le_bytes(*head), rest))
}

/// The whole table in pieces of at most `bytes_max` bytes each (a single longer entry alone).
pub(super) fn table(peers: &[Peer], bytes_max: usize) -> Vec<Message> {
    let mut pieces = Vec::new();
    let (mut first, mut bytes) = (0, 0);
    for (rank, peer) in peers.iter().enumerate() {
        let more = json(peer).len() + 1;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::CONTROL_MESSAGE_BYTES_MAX;
    use proptest::prelude::*;

    fn peer(port: u16) -> Peer {
        Peer {
            address: ([127, 0, 0, 1], port).into(),
            host_name: "héron".into(),
            host_id: "a/b".into(),
            place: Err("memfd_create: no".into()),
            pid: 4_000_000,
            local_rank: 3,
        }
    }

    #[test]
    fn messages_come_back_as_they_were() {
        let record = Record {
            rank: 7,
            peer: peer(1),
            agreed: vec![("RINGTREE_ALGORITHM".into(), "ring".into())],
        };
        let messages = [
            Message::Record(record),
            Message::Table {
                first: 5,
                peers: vec![peer(2), peer(3)],
            },
            Message::Failed("no".into()),
            Message::Waiting("rank 3".into()),
            Message::Relay {
                from: 1,
                to: TO_ALL,
                group: 9,
                payload: vec![0, 255],
            },
        ];
        for message in messages {
            assert_eq!(Message::decode(&message.encode()), Some(message));
        }
    }

    #[test]
    fn a_large_table_is_cut_into_short_messages_that_cover_every_rank_once() {
        let peers: Vec<Peer> = (0..5000).map(peer).collect();
        let mut covered = Vec::new();
        for piece in table(&peers, CONTROL_MESSAGE_BYTES_MAX - 64) {
            assert!(piece.encode().len() <= CONTROL_MESSAGE_BYTES_MAX);
            let Message::Table { first, peers } = piece else {
                panic!("a piece of the table");
            };
            assert_eq!(first, covered.len());
            covered.extend(peers);
        }
        assert_eq!(covered, peers);
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Message::decode(&bytes);
        }
    }
}
