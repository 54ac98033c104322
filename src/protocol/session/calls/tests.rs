use super::*;
use crate::limits::CONTROL_MESSAGE_BYTES_MAX;
use crate::plan::Collective;
use crate::protocol::call::Split;
use crate::protocol::message::encode;
use crate::protocol::session::To;

/// Returns the error that rank 1 reports after rank 0 has received data from it. The calls of
/// the two ranks differ in the length of `block`.
fn mismatch_error(block: usize) -> String {
    let ranks = [0, 1].map(|rank| {
        let mut counts = vec![usize::MAX / 8192; 2 * COUNTS_SENT_MAX];
        counts[block] -= rank;
        let call = Call {
            split: Split::by(&counts),
            ..Call::new(Collective::AllGather, 7).numbered(1)
        };
        let mut session = Session::new(rank, counts.len());
        let counts = Arc::from(counts);
        session.enter((&call, Some(&counts)), call.digest(), 1, Duration::MAX);
        (session, call)
    });
    let [(mut one, call), (mut other, _)] = ranks;
    one.mismatched(1, &call, 1, 0);
    let Some((To::Rank(1), message)) = one.next_message() else {
        panic!("expected a message to the peer");
    };
    assert!(encode(&message).len() <= CONTROL_MESSAGE_BYTES_MAX);
    other.receive(0, message);
    match other.next_message() {
        Some((To::Rank(0), Message::Report(error))) => error.to_string(),
        other => panic!("expected a report, got {other:?}"),
    }
}

#[test]
fn count_mismatch_in_many_blocks_fits_message() {
    let text = mismatch_error(COUNTS_SENT_MAX - 1);
    let block = "block 4095 has 2251799813685247 elements on rank 0, and 2251799813685246 on";
    assert!(text.contains(block), "{text}");
    let text = mismatch_error(COUNTS_SENT_MAX);
    assert!(
        text.contains("passed different counts: rank 0 in all-gather #1 of 7 f32"),
        "{text}"
    );
}
