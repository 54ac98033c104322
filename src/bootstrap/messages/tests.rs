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
fn messages_round_trip() {
    let record = Record {
        rank: 7,
        peer: peer(1),
        agreed: vec![("RINGTREE_ALGORITHM".into(), "ring".into())],
        room: DescriptorUsage::here(),
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
fn large_table_is_split_into_pieces_that_cover_all_ranks() {
    let peers: Vec<Peer> = (0..5000).map(peer).collect();
    let mut covered = Vec::new();
    for piece in table(&peers, CONTROL_MESSAGE_BYTES_MAX - 64) {
        assert!(encode(&piece).len() <= CONTROL_MESSAGE_BYTES_MAX);
        let Message::Table { first, peers } = piece else {
            panic!("expected a piece of the table");
        };
        assert_eq!(first, covered.len());
        covered.extend(peers);
    }
    assert_eq!(covered, peers);
}

#[test]
fn unread_channel_queues_only_one_table_piece() {
    let (_poll, mut connections, ends) = connected(1);
    let id = 0;
    // The table is larger than a queue may be, and much larger than the system's buffers.
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
