use super::*;
use crate::limits::{CONTROL_MESSAGE_BYTES_MAX, DEADLINE_DEFAULT, NAME_BYTES_MAX};
use crate::plan::Collective;
use crate::protocol::session::Session;

/// Rank 1 reports waits whose titles fill a message. Rank 0 forwards the waits to rank 2.
#[test]
fn long_titles_from_peer_do_not_exceed_message_limit() {
    let call = Call::new(Collective::AllReduce, 7).numbered(1);
    let place = Place {
        rank: 1,
        calls: 0,
        inside: false,
        pair_calls: 0,
        pair: None,
    };
    let wait = |rank| Wait {
        rank,
        group: 3,
        title: "x".repeat((CONTROL_MESSAGE_BYTES_MAX - 256) / PLACES_MAX),
        call,
        awaits: vec![2],
    };
    let lie = Message::Position {
        place,
        blocked_by: Vec::new(),
        waits: (1..9).map(wait).collect(),
    };
    let lie = encode(&lie);
    assert!(lie.len() <= CONTROL_MESSAGE_BYTES_MAX);
    let mut honest = Session::new(0, 10);
    honest.enter((&call, None), call.digest(), 1, DEADLINE_DEFAULT);
    honest.receive(1, decode(&lie).unwrap());
    let waits = honest.waits(&call, &[1]);
    assert!(waits.iter().any(|one| one.title.len() > NAME_BYTES_MAX / 2));
    honest.set_position(vec![1], None, waits);
    honest.receive(2, Message::Waiting(call));
    while let Some((_, message)) = honest.next_message() {
        assert!(encode(&message).len() <= CONTROL_MESSAGE_BYTES_MAX / 8);
    }
}
