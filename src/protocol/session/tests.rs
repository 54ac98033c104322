use super::*;
use crate::dtype::Dtype;
use crate::error::ErrorKind;
use crate::limits::CONTROL_MESSAGE_BYTES_MAX;
use crate::plan::Collective;
use crate::protocol::message::{decode, encode};

#[test]
fn messages_that_quote_long_causes_stay_within_limit() {
    let long = |what| Error::system(format!("{what}: {}", "é".repeat(100_000)));
    let goodbye = |cause| Message::Goodbye {
        calls: 3,
        failed_beside: Some(cause),
    };
    for (rank, cause) in [(0, long("one")), (1, long("other"))] {
        // Rank 1 reports the cause of another group's failure. Rank 0 broadcasts it.
        let mut session = Session::new(rank, 3);
        session.receive(2, goodbye(cause));
        session.fail_if_left_before(2, &Call::new(Collective::Barrier, 0).numbered(9));
        session.tick(Duration::ZERO);
        session.tick(GOODBYE_GRACE + FIRST_ERROR_GRACE);
        session.leave(session.first_error().cloned());
        let sent: Vec<_> = std::iter::from_fn(|| session.next_message()).collect();
        assert!(sent.len() >= 2);
        for (_, message) in sent {
            let bytes = encode(&message);
            assert!(bytes.len() <= CONTROL_MESSAGE_BYTES_MAX / 4);
            assert_eq!(decode(&bytes), Some(message));
        }
    }
}

#[test]
fn rank_does_not_wait_for_comparison_by_rank_that_has_left() {
    for has_left in [false, true] {
        let mut session = Session::new(0, 2);
        let call = Call::new(Collective::Barrier, 0).numbered(1);
        session.mismatched(1, &call, 1, 0);
        session.tick(Duration::ZERO);
        if has_left {
            let (calls, failed_beside) = (1, None);
            session.receive(
                1,
                Message::Goodbye {
                    calls,
                    failed_beside,
                },
            );
        }
        session.tick(GOODBYE_GRACE);
        assert_eq!(session.first_error().is_some(), has_left);
        session.tick(COMPARISON_GRACE);
        assert!(session.first_error().is_some());
    }
}

#[test]
fn coordinator_has_its_time_to_answer_after_report() {
    let mut session = Session::new(1, 3);
    session.mismatched(2, &Call::new(Collective::Barrier, 0).numbered(1), 1, 0);
    session.tick(Duration::ZERO);
    let reported = Duration::from_secs(1);
    session.failed(Error::deadline("the pending error is reported instead"));
    session.tick(reported);
    let answered = reported + FIRST_ERROR_GRACE;
    session.tick(answered - Duration::from_millis(1));
    assert!(session.first_error().is_none());
    session.tick(answered);
    let error = session.first_error().expect("the coordinator is silent");
    assert_eq!(error.kind(), ErrorKind::Mismatch);
}

#[test]
fn chained_failures_report_first_cause() {
    let mut cause = Error::system("the disk is full");
    for calls in 0..3 {
        let mut session = Session::new(2, 3);
        let goodbye = Message::Goodbye {
            calls,
            failed_beside: Some(cause),
        };
        session.receive(1, goodbye);
        session.fail_if_left_before(1, &Call::new(Collective::Barrier, 0).numbered(9));
        session.tick(Duration::ZERO);
        session.tick(GOODBYE_GRACE + FIRST_ERROR_GRACE);
        cause = session
            .first_error()
            .expect("the call needs rank 1")
            .clone();
        let text = cause.to_string();
        assert_eq!(text.matches("left after call").count(), 1, "{text}");
        assert!(text.ends_with("had failed: the disk is full"), "{text}");
    }
}

#[test]
fn tags_are_named_although_sender_has_left() {
    let received = Call::message(4, Dtype::F32, 1).numbered(5).tagged(2);
    for (sent, is_named) in [
        (received.tagged(0), true),
        (received.tagged(1 << 20), false),
        (Call::message(3, Dtype::F32, 1).numbered(5), false),
    ] {
        let mut session = Session::new(1, 2);
        session.mismatched(0, &received, 5, sent.digest());
        for seconds in 0..10 {
            session.tick(Duration::from_secs(seconds));
        }
        let text = session.first_error().unwrap().to_string();
        let both = "rank 0 sends message #5 with tag 0, and rank 1 receives it with tag 2";
        assert_eq!(text.contains(both), is_named, "{text}");
    }
}
