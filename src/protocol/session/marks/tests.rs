use super::*;
use crate::protocol::session::To;

/// The sessions of a group in which one rank has died, with their unsent messages.
struct Ranks(Vec<Session>);

impl Ranks {
    /// Creates ranks with these marks. Only the coordinator knows that the last rank died.
    fn with_marks(marks: &[u64]) -> Self {
        let mut sessions: Vec<_> = (0..marks.len())
            .map(|rank| Session::new(rank, marks.len()))
            .collect();
        for (session, mark) in sessions.iter_mut().zip(marks) {
            session.mark(*mark);
        }
        sessions[0].control_lost(marks.len() - 1, "killed");
        Self(sessions)
    }

    /// Delivers all messages except those to and from the `silent` ranks.
    fn deliver_all(&mut self, silent: &[usize]) {
        let mut has_sent = true;
        while has_sent {
            has_sent = false;
            for from in 0..self.0.len() {
                while let Some((to, message)) = self.0[from].next_message() {
                    has_sent = true;
                    for at in (0..self.0.len()).filter(|at| !silent.contains(at)) {
                        let is_receiver = to == To::Rank(at) || to == To::All && at != from;
                        if is_receiver && !silent.contains(&from) {
                            self.0[at].receive(from, message.clone());
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn lowest_mark_of_survivors_is_agreed() {
    let mut ranks = Ranks::with_marks(&[7, 6, 7, 2]);
    assert_eq!(
        ranks.0[1].agreement(),
        Agreement::Unreachable,
        "rank 1 does not know of the failure yet"
    );
    ranks.deliver_all(&[3]);
    for session in &ranks.0[..3] {
        assert_eq!(session.agreement(), Agreement::Reached(6));
    }
}

#[test]
fn mark_after_failure_does_not_count() {
    let mut ranks = Ranks::with_marks(&[7, 6, 7, 2]);
    let Some((To::All, first_error)) = ranks.0[0].next_message() else {
        panic!("expected a broadcast")
    };
    ranks.0[1].receive(0, first_error);
    ranks.0[1].mark(7);
    assert_eq!(ranks.0[1].own_mark(), 6);
    ranks.0[2].control_lost(0, "killed");
    assert_eq!(ranks.0[2].agreement(), Agreement::Unreachable);
}

#[test]
fn silent_rank_is_skipped_and_learns_agreed_mark() {
    let mut ranks = Ranks::with_marks(&[7, 6, 7, 2]);
    ranks.deliver_all(&[1, 3]);
    assert!(ranks.0[0].gathers_marks());
    assert_eq!(ranks.0[2].agreement(), Agreement::Pending);
    ranks.0[0].tick(Duration::from_secs(5));
    ranks.0[0].tick(Duration::from_secs(5) + MARKS_GRACE);
    let Some((To::All, agreed)) = ranks.0[0].next_message() else {
        panic!("expected the agreed mark")
    };
    // Rank 1 resumes now and reports a mark that changes nothing.
    let error = ranks.0[0].first_error().cloned().unwrap();
    ranks.0[1].receive(0, Message::FirstError(error));
    for rank in 1..3 {
        ranks.0[rank].receive(0, agreed.clone());
    }
    ranks.deliver_all(&[3]);
    for session in &ranks.0[..3] {
        assert_eq!(session.agreement(), Agreement::Reached(7));
    }
    assert!(ranks.0[1].own_mark() < 7);
}

#[test]
fn coordinator_stops_waiting_for_lost_or_departed_ranks() {
    let mut ranks = Ranks::with_marks(&[7, 5, 6, 7, 2]);
    ranks.deliver_all(&[1, 2, 4]);
    ranks.0[0].control_lost(1, "killed");
    assert!(ranks.0[0].gathers_marks());
    ranks.0[0].receive(
        2,
        Message::Goodbye {
            calls: 9,
            failed_beside: None,
        },
    );
    assert_eq!(ranks.0[0].agreement(), Agreement::Reached(7));
}

#[test]
fn only_coordinator_decides_mark() {
    let mut ranks = Ranks::with_marks(&[7, 6, 7, 2]);
    ranks.0[1].control_lost(0, "killed");
    ranks.0[1].receive(2, Message::Mark(7));
    ranks.0[1].receive(2, Message::Agreed(7));
    ranks.0[1].tick(Duration::from_secs(9));
    assert_eq!(ranks.0[1].agreement(), Agreement::Unreachable);
}
