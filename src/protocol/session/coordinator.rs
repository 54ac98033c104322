//! Elects the coordinator of a group, which decides the first error.

use super::{GONE, Session, To};
use crate::error::Error;
use crate::protocol::founding::RELAY;
use crate::protocol::message::Message;

impl Session {
    /// Records that the control connection of `peer` was closed. Every rank of the group sees this
    /// or learns of it from the relay. Unless its goodbye arrived earlier, `peer` has died. The
    /// coordinator broadcasts the death, and the other ranks wait for this broadcast. If the relay
    /// or the coordinator itself died, each rank decides on its own which rank died first.
    pub fn control_lost(&mut self, peer: usize, why: &str) {
        let decides = [self.rank, self.coordinator].contains(&peer)
            || self.rank == self.coordinator
            || self.members.world_rank(peer) == RELAY;
        if !decides {
            self.note_ended(peer, why);
            return;
        }
        let mut before = self.ended.iter().filter(|one| one.was_before);
        let first = before.find(|one| peer != self.rank && !self.departed.contains_key(&one.peer));
        let first = first.filter(|_| self.rank != self.coordinator);
        match first.map(|one| (one.peer, one.why.clone())) {
            Some((first, why)) => {
                self.lost.insert(peer);
                self.declare_lost(first, &why, true);
            }
            None => self.declare_lost(peer, why, true),
        }
    }

    /// Fails because `peer` has died, unless it had said goodbye. `is_public` must be `true` if the
    /// other ranks see the death themselves.
    pub(super) fn declare_lost(&mut self, peer: usize, why: &str, is_public: bool) {
        self.lost.insert(peer);
        self.expect_no_goodbye(peer);
        if self.departed.contains_key(&peer) {
            return;
        }
        let call = self.calls.last().filter(|_| self.inside);
        let mut error = self.lost(peer, GONE, call.as_ref(), why);
        if !is_public && let Some(pending) = self.pending.take() {
            // The pending error is older, and may be the reason why that rank ended.
            error = pending.error;
        }
        match is_public && self.rank != self.coordinator {
            true => self.conclude(error),
            false => self.broadcast(error),
        }
        self.elect();
        self.agree_if_all_told();
    }

    /// Elects the lowest rank that has neither left nor died as the coordinator. Repeats to a new
    /// coordinator everything that its predecessor has not answered.
    pub(super) fn elect(&mut self) {
        let is_absent = |rank: &usize| self.departed.contains_key(rank) || self.lost.contains(rank);
        let mut others = self.coordinator..self.rank;
        let next = others.find(|rank| !is_absent(rank)).unwrap_or(self.rank);
        if next == self.coordinator {
            return;
        }
        self.coordinator = next;
        self.repeat_clocks();
        self.repeat_entered();
        for at in 0..self.ended.len() {
            self.tell_ended(self.ended[at].peer);
        }
        if self.first_error.is_some() {
            self.tell_mark();
        } else if let Some(pending) = &mut self.pending
            && std::mem::take(&mut pending.reported)
        {
            self.report();
        }
    }

    /// Reports this rank's pending error to the coordinator, once.
    pub(super) fn report(&mut self) {
        let Some(pending) = self.pending.as_mut().filter(|one| !one.reported) else {
            return;
        };
        pending.reported = true;
        let error = pending.error.clone();
        if self.rank == self.coordinator {
            self.broadcast(error);
        } else {
            self.outbox
                .push_back((To::Rank(self.coordinator), Message::Report(error)));
        }
    }

    /// Sends the first error to `from` if the message from that rank shows that it does not know
    /// the error. The rank that decided the error may have ended before all ranks received it.
    pub(super) fn answer_with_first_error(&mut self, from: usize, message: &Message) {
        let does_not_know = matches!(
            message,
            Message::Waiting(_) | Message::Report(_) | Message::Ended(_) | Message::Patient(_)
        );
        if let Some(error) = self.first_error.as_ref().filter(|_| does_not_know) {
            let told = Message::FirstError(error.clone());
            self.outbox.push_back((To::Rank(from), told));
        }
    }

    /// Processes an error that another rank reports to this rank. If this rank does not consider
    /// itself the coordinator, it does not know yet that all lower ranks have left.
    pub(super) fn reported(&mut self, error: Error) {
        if self.rank == self.coordinator {
            self.broadcast(error);
        } else {
            self.set_pending(error, None);
            self.report();
        }
    }

    /// Makes `error` the first error, unless this rank already knows a first error, and broadcasts
    /// it. A rank does this if it is the coordinator, or if the coordinator has not answered in
    /// time.
    pub(super) fn broadcast(&mut self, error: Error) {
        if self.first_error.is_none() {
            self.outbox
                .push_back((To::All, Message::FirstError(error.clone())));
            self.conclude(error);
        }
    }

    /// Stores the first error, unless it is already known. From then on, this rank has failed, and
    /// its mark is frozen.
    pub(super) fn conclude(&mut self, error: Error) {
        if self.first_error.is_none() {
            self.first_error = Some(error);
            if self.rank != self.coordinator {
                // Only deaths of ranks that may become the coordinator still matter here.
                let own = self.rank;
                self.ended.retain(|one| one.peer < own);
            }
            self.tell_mark();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::call::Call;
    use crate::protocol::message::Clock;
    use crate::protocol::session::Agreement;
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
    fn a_report_is_repeated_to_the_next_coordinator_and_waits_there_until_that_knows() {
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
    fn a_cause_reaches_all_before_the_goodbye_of_a_rank_that_does_not_wait_for_an_answer() {
        let mut session = Session::new(2, 4);
        let error = Error::system("the disk is full");
        session.failed(error.clone());
        session.leave(None);
        let said: Vec<_> = messages(&mut session);
        let to_all: Vec<_> = said.into_iter().filter(|(to, _)| *to == To::All).collect();
        let expected = [Message::FirstError(error), goodbye()].map(|one| (To::All, one));
        assert_eq!(to_all, expected);
    }

    #[test]
    fn the_next_coordinator_agrees_on_a_mark_unless_the_one_before_died() {
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
    fn a_rank_that_failed_tells_one_that_does_not_know_why() {
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
            let told = (To::Rank(3), Message::FirstError(error.clone()));
            assert!(messages(&mut session).contains(&told));
        }
        // When the coordinator ends, the rank that follows it receives the error.
        let mut session = Session::new(3, 4);
        session.receive(1, Message::FirstError(error.clone()));
        session.process_ended(0, "its process ended");
        let told = (To::Rank(1), Message::Report(error));
        assert!(messages(&mut session).contains(&told));
    }

    #[test]
    fn a_clock_is_offered_to_the_coordinator_that_follows() {
        let mut session = Session::new(3, 4);
        // The next coordinator asks before this rank knows that its predecessor has left.
        session.receive(1, Message::Patient(1));
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
}
