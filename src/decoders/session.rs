//! Decodes the messages between the sessions of a group, and the notices about groups that are
//! being created. Also checks how a session or the registrar reacts to them.

use super::control::encoded;
use super::{Decoder, Input};
use crate::dtype::Dtype;
use crate::error::Error;
use crate::limits::{DEADLINE_DEFAULT, NAME_BYTES_MAX, NO_TIMEOUT};
use crate::plan::Collective;
use crate::protocol::call::Call;
use crate::protocol::group_creation::{Notice, Registrar};
use crate::protocol::message::{Clock, Message, PairPlace, Place, Wait, decode, encode};
use crate::protocol::session::{Session, To};
use std::time::Duration;

const WORLD_SIZE: usize = 4;
/// Maximum number of messages that one step of a session may send: a few for each rank.
const SENT_MAX: usize = 4 * WORLD_SIZE;

pub(super) const MESSAGE: Decoder = Decoder {
    name: "message",
    run: |bytes| {
        if let Some(message) = decode::<Message>(bytes) {
            let once = encode(&message);
            if let Message::Position { waits, .. } = &message {
                assert!(waits.iter().all(|one| one.title.len() <= NAME_BYTES_MAX));
            }
            assert_eq!(decode(&once), Some(message));
        }
    },
    seeds: || encoded(messages().into_iter().chain([long_title()])),
};

/// Notices that ranks send to rank 0's registrar one after another. The registrar's answers are
/// checked, too.
pub(super) const NOTICES: Decoder = Decoder {
    name: "notices",
    run: notices,
    seeds: || {
        let told =
            |(from, notice): (u8, Vec<u8>)| [&[from, notice.len() as u8][..], &notice].concat();
        let all = (0..).zip(encoded(some_notices())).map(told);
        vec![all.collect::<Vec<_>>().concat()]
    },
};

fn some_notices() -> Vec<Notice> {
    let join = |serial| Notice::Join {
        serial,
        parent: 0,
        members: vec![1, 0, 2],
    };
    let withdraw = Notice::Withdraw {
        serial: 1,
        waited_ms: 300_000,
    };
    let (made, refused) = (
        Notice::Made {
            serial: 0,
            number: 2,
        },
        Notice::Refused {
            serial: 0,
            why: Error::deadline("late"),
        },
    );
    let lost = Notice::Lost {
        rank: 3,
        why: "reset".to_owned(),
    };
    vec![
        join(0),
        join(1),
        join(0),
        Notice::Left,
        withdraw,
        made,
        refused,
        lost,
    ]
}

fn notices(bytes: &[u8]) {
    let mut input = Input(bytes);
    let (mut registrar, mut joined) = (Registrar::default(), 0);
    while !input.is_empty() {
        let from = usize::from(input.byte()) % WORLD_SIZE;
        let length = input.byte();
        let Some(notice) = decode::<Notice>(input.take(length.into())) else {
            let told = registrar.lost(from, "reset");
            assert!(told.iter().all(|(to, _)| *to != from));
            continue;
        };
        assert_eq!(decode(&encode(&notice)), Some(notice.clone()));
        joined += usize::from(matches!(notice, Notice::Join { .. }));
        let told = registrar.receive(from, notice);
        assert!(told.len() <= joined, "more answers than requests");
        for (to, answer) in told {
            let is_answer = matches!(answer, Notice::Made { .. } | Notice::Refused { .. });
            assert!(is_answer && to < WORLD_SIZE);
        }
    }
}

/// Events of one session, in sequence: messages, its own calls, deaths, and the passage of time.
pub(super) const SESSION: Decoder = Decoder {
    name: "session",
    run: session,
    seeds: || {
        let told = |message: Vec<u8>| [&[0, 1, message.len() as u8][..], &message].concat();
        let all: Vec<Vec<u8>> = encoded(messages()).into_iter().map(told).collect();
        let calls = [1, 0, 2, 1, 3, 0, 8, 0, 4, 1, 5, 2, 7, 9, 6, 1];
        let rank = |rank: u8| [&[rank, rank / 2][..], &calls, &all.concat(), &calls].concat();
        vec![rank(0), rank(2)]
    },
};

fn call() -> Call {
    Call::new(Collective::AllReduce, 1000).numbered(1)
}

fn messages() -> Vec<Message> {
    let place = |rank| Place {
        rank,
        calls: 1,
        inside: true,
        pair_calls: 2,
        pair: Some(PairPlace {
            sends: true,
            peer: Some((rank + 1) % 4),
            sequence: 2,
        }),
    };
    let wait = |rank, group| Wait {
        rank,
        group,
        title: "\"loss\"".to_owned(),
        call: call(),
        awaits: vec![1 - rank],
    };
    let clock = Clock {
        sequence: 1,
        rank: 2,
        timeout: DEADLINE_DEFAULT,
    };
    let lost = Error::peer_lost(3, "rank 3 is gone".to_owned());
    let position = Message::Position {
        place: place(1),
        blocked_by: vec![place(2), place(3)],
        waits: vec![wait(1, 2), wait(0, 0)],
    };
    vec![
        Message::Waiting(call()),
        Message::Counts(call(), vec![1, 0, 5, 4]),
        Message::Waiting(Call::message(10, Dtype::F32, 2).numbered(1)),
        position,
        Message::Report(lost.clone()),
        Message::FirstError(lost),
        Message::Report(Error::deadline("late")),
        Message::Goodbye {
            calls: 1,
            failed_beside: Some(Error::deadline("late")),
        },
        Message::Mark(3),
        Message::Agreed(3),
        Message::UntimedWait(1),
        Message::Clock(clock),
        Message::Entered(call()),
        Message::AllEntered(1),
        Message::Posted(Call::message(10, Dtype::F32, 1).numbered(1)),
        Message::PostedAny(true),
        Message::Asking,
    ]
}

/// Returns a message whose title fills a control message.
fn long_title() -> Message {
    let place = Place {
        rank: 1,
        calls: 0,
        inside: false,
        pair_calls: 0,
        pair: None,
    };
    let wait = Wait {
        rank: 1,
        group: 3,
        title: "x".repeat(65_500 - 64),
        call: call(),
        awaits: vec![2],
    };
    Message::Position {
        place,
        blocked_by: Vec::new(),
        waits: vec![wait],
    }
}

fn session(bytes: &[u8]) {
    let mut input = Input(bytes);
    let rank = usize::from(input.byte()) % WORLD_SIZE;
    let mut session = Session::new(rank, WORLD_SIZE);
    if input.byte() % 2 == 1 {
        session.check_calls();
    }
    let (mut made, mut now, mut first) = (0, Duration::ZERO, None);
    while !input.is_empty() {
        let what = input.byte();
        let other = (rank + 1 + usize::from(input.byte()) % (WORLD_SIZE - 1)) % WORLD_SIZE;
        let pair = Call::message(10, Dtype::F32, other).numbered(made);
        match what % 11 {
            0 => {
                let length = input.byte();
                if let Some(message) = decode(input.take(length.into())) {
                    session.receive(other, message);
                }
            }
            1 => {
                made += 1;
                let call = call().numbered(made);
                let timeout = [NO_TIMEOUT, DEADLINE_DEFAULT][usize::from(input.byte() % 2)];
                session.enter((&call, None), call.digest(), made, timeout);
            }
            2 => session.notify_waiting(&call().numbered(made), &[other], made as usize),
            3 => session.idle(),
            4 => session.link_lost(other, &call().numbered(made), "reset"),
            5 => session.control_lost(other, "reset"),
            6 => session.mismatched(other, &call().numbered(made), made, 0),
            7 => now += Duration::from_millis(u64::from(input.byte()) * 10),
            8 => session.enter_pair(other, &pair),
            9 => session.report_untimed_wait(made),
            _ => {
                let place = PairPlace {
                    sends: made % 2 == 0,
                    // A rank is less than `WORLD_SIZE`, so it fits in 32 bits.
                    peer: Some(other as u32),
                    sequence: made,
                };
                let waits = session.waits(&pair, &[other]);
                session.set_position(vec![other], Some(place), waits);
            }
        }
        session.tick(now);
        told(&mut session);
        let error = session.first_error().cloned();
        assert!(
            first.is_none() || first == error,
            "the first error must not change"
        );
        first = error;
        assert!(
            session
                .unready(&call().numbered(made))
                .iter()
                .all(|one| *one < WORLD_SIZE)
        );
        for call in [pair, call().numbered(made)] {
            let report = session.wait_report(&call, &[other]);
            assert!(report.words.starts_with("rank"), "{report:?}");
            assert!(report.ranks.iter().all(|one| *one < WORLD_SIZE));
        }
    }
}

/// Checks that the session now sends at most [`SENT_MAX`] messages, and that all of them can be
/// decoded.
fn told(session: &mut Session) {
    for _ in 0..SENT_MAX {
        let Some((to, message)) = session.next_message() else {
            return;
        };
        assert!(to == To::All || matches!(to, To::Rank(rank) if rank < WORLD_SIZE));
        assert_eq!(decode(&encode(&message)), Some(message));
    }
    panic!("one step sends more than {SENT_MAX} messages");
}
