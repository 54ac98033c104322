use super::*;
use crate::error::{Error, ErrorKind};
use crate::protocol::call::Call;
use crate::protocol::message::{Place, Wait};
use crate::protocol::session::{ITS_PROCESS_ENDED, To};

fn goodbye(calls: u64) -> Message {
    Message::Goodbye {
        calls,
        failed_beside: None,
    }
}

fn is_lost(session: &Session, peer: usize) -> bool {
    let error = session.first_error();
    error.is_some_and(|error| error.kind() == ErrorKind::PeerLost && error.peer() == Some(peer))
}

#[test]
fn coordinator_declares_death_unless_goodbye_arrives() {
    for says_goodbye in [true, false] {
        let (mut coordinator, mut other) = (Session::new(0, 4), Session::new(1, 4));
        other.process_ended(2, ITS_PROCESS_ENDED);
        let (to, report) = other.next_message().unwrap();
        assert_eq!(to, To::Rank(0));
        coordinator.receive(1, report);
        coordinator.tick(Duration::ZERO);
        if says_goodbye {
            coordinator.receive(2, goodbye(0));
        }
        coordinator.tick(GOODBYE_GRACE);
        assert_eq!(is_lost(&coordinator, 2), !says_goodbye);
        assert!(other.next_message().is_none(), "reported twice");
    }
}

#[test]
fn survivor_without_coordinator_names_first_ended_rank() {
    let mut survivor = Session::new(3, 4);
    survivor.process_ended(2, ITS_PROCESS_ENDED);
    survivor.tick(Duration::from_secs(1));
    // Another survivor has stopped waiting and is gone, too.
    survivor.process_ended(1, ITS_PROCESS_ENDED);
    survivor.tick(Duration::from_secs(1) + FIRST_ERROR_GRACE / 2);
    assert_eq!(survivor.first_error(), None);
    survivor.tick(Duration::from_secs(1) + FIRST_ERROR_GRACE);
    assert!(is_lost(&survivor, 2));
}

#[test]
fn coordinator_is_blamed_unless_other_rank_ended_long_ago() {
    for is_long_ago in [false, true] {
        let mut survivor = Session::new(3, 4);
        // Rank 1 ended because the coordinator was gone, or it had ended long before.
        survivor.process_ended(1, ITS_PROCESS_ENDED);
        survivor.tick(Duration::ZERO);
        if is_long_ago {
            survivor.tick(GOODBYE_GRACE);
        }
        survivor.control_lost(0, "it closed its connection");
        assert!(is_lost(&survivor, usize::from(is_long_ago)));
    }
}

#[test]
fn survivor_with_first_error_awaits_no_goodbye() {
    let mut survivor = Session::new(3, 4);
    survivor.control_lost(0, "it closed its connection");
    assert!(is_lost(&survivor, 0));
    // Another survivor has stopped waiting and is gone.
    survivor.process_ended(1, ITS_PROCESS_ENDED);
    assert!(!survivor.awaits_goodbyes());
}

#[test]
fn impossible_messages_are_rejected() {
    let place = |rank| Place {
        rank,
        calls: 0,
        inside: false,
        pair_calls: 0,
        pair: None,
    };
    let report = |rank, blocked_by: Vec<Place>, waits: Vec<Wait>| Message::Position {
        place: place(rank),
        blocked_by,
        waits,
    };
    let position = |rank, blocked_by| report(rank, blocked_by, Vec::new());
    let wait = |rank, awaits| Wait {
        rank,
        group: 0,
        title: String::new(),
        call: Call::barrier(),
        awaits: vec![awaits],
    };
    let lost = |rank| Error::peer_lost(rank, format!("rank {rank} is gone"));
    let lies = [
        Message::Ended(3),
        Message::Report(lost(1 << 63)),
        Message::FirstError(lost(3)),
        position(2, Vec::new()),
        position(1, vec![place(1_124_007_936)]),
        position(1, vec![place(0); 100]),
        report(1, Vec::new(), vec![wait(1, 3)]),
        report(1, Vec::new(), vec![wait(2, 1)]),
        report(1, Vec::new(), vec![wait(1, 2); 100]),
    ];
    for lie in lies {
        let mut coordinator = Session::new(0, 3);
        coordinator.receive(1, lie);
        let error = coordinator
            .first_error()
            .expect("the message must be rejected")
            .to_string();
        assert!(
            error.starts_with("rank 1 sent an impossible message"),
            "{error}"
        );
    }
    let truths = [
        position(1, vec![place(2)]),
        report(1, Vec::new(), vec![wait(1, 2), wait(2, 0)]),
        Message::Ended(0),
        goodbye(1 << 60),
    ];
    for truth in truths {
        let mut coordinator = Session::new(0, 3);
        coordinator.receive(1, truth);
        assert_eq!(coordinator.first_error(), None);
    }
}
