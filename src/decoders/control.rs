//! Decodes unique IDs, and messages in the postcard format: messages that rank 0 relays, messages
//! of a join, messages between launchers, and reports from ranks to their launcher.

use super::Decoder;
use crate::bootstrap::messages::{Message as JoinMessage, Record};
use crate::bootstrap::unique_id::UniqueId;
use crate::control::descriptors::DescriptorUsage;
use crate::control::message::{Relay, decode, encode};
use crate::control::peer::Process;
use crate::control::peer::{Peer, Place};
use crate::control::report::Report;
use crate::error::Error;
use crate::launch::cause::{Cause, Confidence, Remedy};
use crate::launch::message::{Join, Message as LaunchMessage, Start};
use crate::protocol::fd_passing::{TOKEN_BYTES, Token};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub(super) const RELAY: Decoder = Decoder {
    name: "relay",
    run: value::<Relay>,
    seeds: || encoded([relay(&[]), relay(&[7; 30])]),
};

pub(super) const JOIN: Decoder = Decoder {
    name: "join",
    run: value::<JoinMessage>,
    seeds: || encoded(join_messages()),
};

/// A unique ID, which a program distributes to its ranks.
pub(super) const UNIQUE_ID: Decoder = Decoder {
    name: "unique-id",
    run: |bytes| {
        if let Ok(id) = UniqueId::from_bytes(bytes) {
            assert_eq!(id.to_bytes(), bytes);
            let again: UniqueId = id.to_hex().parse().expect("an encoded id can be decoded");
            assert_eq!(again.to_bytes(), bytes);
        }
        if let Ok(text) = std::str::from_utf8(bytes) {
            let _ = text.parse::<UniqueId>();
        }
    },
    seeds: || {
        let id = UniqueId::on("127.0.0.1").expect("this host has a loopback address");
        vec![id.to_bytes().to_vec(), id.to_hex().into_bytes()]
    },
};

pub(super) const LAUNCHERS: Decoder = Decoder {
    name: "launchers",
    run: launchers,
    seeds: || encoded(launch_messages()),
};

pub(super) const REPORTS: Decoder = Decoder {
    name: "reports",
    run: |bytes| {
        let mut rest = bytes.to_vec();
        let reports = Report::take_all(&mut rest);
        let mut again = encoded(&reports).concat();
        assert_eq!(Report::take_all(&mut again), reports);
        assert!(again.is_empty() && bytes.ends_with(&rest));
    },
    seeds: || {
        let table = Report::Table("a table".to_owned());
        let (blames, text) = (Some(3), "rank 3 is lost".to_owned());
        vec![encoded([table, Report::Failed { blames, text }]).concat()]
    },
};

/// Checks that a decoded message, encoded and decoded again, has the same encoding.
fn value<M: Serialize + DeserializeOwned>(bytes: &[u8]) {
    if let Some(message) = decode::<M>(bytes) {
        let once = encode(&message);
        let again = decode::<M>(&once).expect("an encoded message can be decoded");
        assert_eq!(encode(&again), once);
    }
}

/// Returns the encoded messages.
pub(super) fn encoded<M: Serialize>(messages: impl IntoIterator<Item = M>) -> Vec<Vec<u8>> {
    messages.into_iter().map(|one| encode(&one)).collect()
}

fn launchers(bytes: &[u8]) {
    value::<LaunchMessage>(bytes);
    if let Some(LaunchMessage::Join(theirs)) = decode(bytes) {
        let _ = (theirs.who(), theirs.name());
        let _ = Join::contradiction(&join(), &theirs);
        let _ = Join::contradiction(&theirs, &join());
    }
}

fn relay(payload: &[u8]) -> Relay {
    Relay {
        from: 3,
        to: u32::MAX,
        group: 1 << 20,
        payload: payload.to_vec(),
    }
}

fn join_messages() -> Vec<JoinMessage> {
    let place = Place {
        boot_id: "7f0e".to_owned(),
        network: 4_026_531_840,
        users: 4_026_531_837,
        user: 1000,
        socket: "ringtree-7".to_owned(),
        token: Token([7; TOKEN_BYTES]),
    };
    let peer = |place| Peer {
        address: ([127, 0, 0, 1], 29_500).into(),
        host_name: "héron".to_owned(),
        host_id: "a/b".to_owned(),
        site: "s".to_owned(),
        place,
        pid: 4_000_000,
        process: Some(Process {
            space: "c/4026531836".to_owned(),
            started: 1 << 40,
        }),
    };
    let peers = vec![peer(Ok(place.clone())), peer(Err("no memfd".to_owned()))];
    let agreed = vec![("RINGTREE_ALGORITHM".to_owned(), "ring".to_owned())];
    let record = Record {
        rank: 7,
        peer: peer(Ok(place)),
        agreed,
        room: DescriptorUsage::here(),
    };
    vec![
        JoinMessage::Record(Box::new(record)),
        JoinMessage::Table { first: 5, peers },
        JoinMessage::Failed(Error::join("no")),
        JoinMessage::Waiting("rank 3".to_owned()),
    ]
}

fn join() -> Join {
    Join {
        id: Some("job".to_owned()),
        nodes: 2,
        ranks: 8,
        max_restarts: 3,
        node_rank: Some(1),
        host: "héron".to_owned(),
        process: 4_000_000,
    }
}

fn launch_messages() -> Vec<LaunchMessage> {
    let text = || "rank 3 was killed by SIGKILL".to_owned();
    let cause = Cause {
        text: text(),
        blames: None,
        rank: Some(3),
        words: Some("its last output: step 4".to_owned()),
        log: Some("logs/rank-3.log".to_owned()),
        then: None,
        standing: Confidence::Original,
        remedy: Remedy::Restart,
    };
    let start = Start {
        node: 1,
        first_rank: 8,
        world_size: 16,
        run_id: "job".to_owned(),
        master_port: 29_500,
    };
    vec![
        LaunchMessage::Join(join()),
        LaunchMessage::Refused(text()),
        LaunchMessage::Start(start),
        LaunchMessage::Failed(cause.clone()),
        LaunchMessage::Finished,
        LaunchMessage::End(Cause {
            words: None,
            remedy: Remedy::Correction,
            ..cause.clone()
        }),
        LaunchMessage::Done,
        LaunchMessage::Restart(cause),
        LaunchMessage::Stopped,
        LaunchMessage::Again {
            attempt: 1,
            master_port: 29_501,
            tuning: Some(text()),
        },
    ]
}
