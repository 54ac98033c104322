use super::*;
use crate::dtype::Dtype;
use crate::protocol::call::Call;
use crate::protocol::message::Clock;
use crate::protocol::session::{Agreement, To};
use std::time::Duration;

fn goodbye() -> Message {
    Message::Goodbye {
        calls: 0,
        failed_beside: None,
    }
}

fn messages(session: &mut Session) -> Vec<(To, Message)> {
    std::iter::from_fn(|| session.next_message()).collect()
}

#[test]
fn report_is_repeated_to_next_coordinator() {
    let [mut one, mut two] = [1, 2].map(|rank| Session::new(rank, 4));
    let error = Error::system("the disk is full");
    two.failed(error.clone());
    let report = |to| vec![(To::Rank(to), Message::Report(error.clone()))];
    assert_eq!(messages(&mut two), report(0));
    two.receive(0, goodbye());
    assert_eq!(messages(&mut two), report(1));
    // Rank 1 does not know yet that rank 0 has left.
    one.receive(2, Message::Report(error.clone()));
    assert_eq!(messages(&mut one), report(0));
    one.receive(0, goodbye());
    let first = (To::All, Message::FirstError(error.clone()));
    assert!(messages(&mut one).contains(&first));
    two.receive(1, first.1);
    assert_eq!(two.first_error(), Some(&error));
}

#[test]
fn coordinator_that_was_not_asked_in_this_call_is_not_blamed() {
    let mut session = Session::new(2, 3);
    let blamed = |session: &Session| {
        let places = session.blocked_by(&[1]);
        places.iter().map(|one| one.rank).collect::<Vec<_>>()
    };
    session.notify_waiting(&Call::barrier(), &[1], 0);
    assert_eq!(
        blamed(&session),
        [0, 1],
        "the coordinator relays the answer of rank 1"
    );
    session.enter_pair(1, &Call::message(1, Dtype::F32, 1));
    assert_eq!(blamed(&session), [1]);
}

#[test]
fn leaving_rank_broadcasts_error_before_goodbye() {
    let mut session = Session::new(2, 4);
    let error = Error::system("the disk is full");
    session.failed(error.clone());
    session.leave(None);
    let sent: Vec<_> = messages(&mut session);
    let to_all: Vec<_> = sent.into_iter().filter(|(to, _)| *to == To::All).collect();
    let expected = [Message::FirstError(error), goodbye()].map(|one| (To::All, one));
    assert_eq!(to_all, expected);
}

#[test]
fn next_coordinator_decides_mark_unless_predecessor_died() {
    for has_left in [true, false] {
        let mut one = Session::new(1, 3);
        one.mark(7);
        match has_left {
            true => one.receive(0, goodbye()),
            false => one.control_lost(0, "killed"),
        }
        one.failed(Error::system("the disk is full"));
        one.receive(2, Message::Mark(6));
        let expected = match has_left {
            true => Agreement::Reached(6),
            false => Agreement::Unreachable,
        };
        assert_eq!(one.agreement(), expected);
    }
}

#[test]
fn failed_rank_answers_with_first_error() {
    let mut session = Session::new(2, 4);
    let error = Error::system("the disk is full");
    session.receive(1, Message::FirstError(error.clone()));
    messages(&mut session);
    let questions = [
        Message::Ended(1),
        Message::Waiting(Call::barrier().numbered(1)),
        Message::Report(Error::system("rank 1 is gone")),
    ];
    for question in questions {
        session.receive(3, question);
        let answer = (To::Rank(3), Message::FirstError(error.clone()));
        assert!(messages(&mut session).contains(&answer));
    }
    // When the coordinator's process ends, the rank that succeeds it receives the error.
    let mut session = Session::new(3, 4);
    session.receive(1, Message::FirstError(error.clone()));
    session.process_ended(0, "its process ended");
    let answer = (To::Rank(1), Message::Report(error));
    assert!(messages(&mut session).contains(&answer));
}

#[test]
fn clock_is_offered_to_next_coordinator() {
    let mut session = Session::new(3, 4);
    // The next coordinator asks before this rank knows that its predecessor has left.
    session.receive(1, Message::UntimedWait(1));
    session.receive(0, goodbye());
    let (call, timeout) = (Call::barrier(), Duration::from_secs(7));
    session.enter((&call, None), call.digest(), 1, timeout);
    let clock = Clock {
        sequence: 1,
        rank: 3,
        timeout,
    };
    assert!(messages(&mut session).contains(&(To::Rank(1), Message::Clock(clock))));
}
