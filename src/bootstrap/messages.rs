//! What the ranks say to rank 0 while they join, and what it answers.

use crate::control::message::encode;
use crate::control::peer::Peer;
use serde::{Deserialize, Serialize};

/// What a rank says when it comes to the rendezvous.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) rank: usize,
    pub(crate) peer: Peer,
    /// Settings that must be the same on all ranks, by name.
    pub(crate) agreed: Vec<(String, String)>,
}

/// A message of the join.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Message {
    /// To rank 0: I am here.
    Record(Box<Record>),
    /// From rank 0: the peers from rank `first` on.
    Table { first: usize, peers: Vec<Peer> },
    /// From rank 0: the join failed, and why. To rank 0: this rank gives up, and why.
    Failed(String),
    /// From rank 0: the join goes on; which ranks are missing.
    Waiting(String),
}

/// The whole table in pieces of at most `bytes_max` bytes of peers each (a single longer entry
/// alone).
pub(super) fn table(peers: &[Peer], bytes_max: usize) -> Vec<Message> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::message::decode;
    use crate::control::process::Process;
    use crate::limits::CONTROL_MESSAGE_BYTES_MAX;
    use proptest::prelude::*;

    fn peer(port: u16) -> Peer {
        Peer {
            address: ([127, 0, 0, 1], port).into(),
            host_name: "héron".into(),
            host_id: "a/b".into(),
            place: Err("memfd_create: no".into()),
            pid: 4_000_000,
            process: Some(Process {
                space: "c/4026531836".into(),
                started: 1 << 40,
            }),
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
            Message::Record(record.into()),
            Message::Table {
                first: 5,
                peers: vec![peer(2), peer(3)],
            },
            Message::Failed("no".into()),
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

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode::<Message>(&bytes);
        }
    }
}
