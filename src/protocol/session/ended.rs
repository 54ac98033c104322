//! Decides whether a rank whose process has ended has left or died.

use super::{Agreement, Session, To};
use crate::limits::{FIRST_ERROR_GRACE, GOODBYE_GRACE};
use crate::protocol::message::Message;
use std::time::Duration;

/// A rank whose process has ended, to this rank's knowledge.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) peer: usize,
    pub(super) why: String,
    /// The time of the first tick after the end.
    since: Option<Duration>,
    /// `true` if the process ended at least [`GOODBYE_GRACE`] ago, which is too long ago to be a
    /// consequence of a death that is detected now.
    pub(super) was_before: bool,
}

impl Session {
    /// Records that the process of `peer` has ended, or that it accepts no connections. It may have
    /// left cleanly, with a goodbye that arrives later. So the coordinator waits for the goodbye,
    /// and the other ranks wait for the coordinator.
    pub fn process_ended(&mut self, peer: usize, why: &str) {
        if peer == self.rank {
            self.declare_lost(peer, why, true);
        } else if peer < self.members.count() {
            let is_new = self.note_ended(peer, why);
            let error = self.error().cloned();
            match error.filter(|_| peer == self.coordinator) {
                // The rank that follows the coordinator may not know the error.
                Some(error) => self.tell_deputy(peer, Message::Report(error)),
                None if is_new => self.tell_ended(peer),
                None => {}
            }
        }
    }

    /// Reports to the coordinator that the process of `peer` has ended. If `peer` is the
    /// coordinator, reports this to the rank that would succeed it.
    pub(super) fn tell_ended(&mut self, peer: usize) {
        // A rank fits 32 bits (`limits::WORLD_SIZE_MAX`).
        self.tell_deputy(peer, Message::Ended(peer as u32));
    }

    fn tell_deputy(&mut self, ended: usize, message: Message) {
        let deputy = self.deputy(Some(ended));
        if deputy != self.rank {
            self.outbox.push_back((To::Rank(deputy), message));
        }
    }

    /// Returns the lowest rank other than `ended` that, to this rank's knowledge, has not left and
    /// whose process has not ended.
    fn deputy(&self, ended: Option<usize>) -> usize {
        let mut ranks = self.coordinator..self.rank;
        let is_there = |rank: &usize| {
            let is_ended = self.ended.iter().any(|one| one.peer == *rank);
            !is_ended
                && Some(*rank) != ended
                && !self.departed.contains_key(rank)
                && !self.lost.contains(rank)
        };
        ranks.find(is_there).unwrap_or(self.rank)
    }

    /// Remembers that the process of `peer` has ended. Returns `false` if this was already known or
    /// does not matter, or if `peer` had left cleanly.
    pub(super) fn note_ended(&mut self, peer: usize, why: &str) -> bool {
        let is_known = self.departed.contains_key(&peer) || self.lost.contains(&peer);
        if is_known || self.ended.iter().any(|one| one.peer == peer) {
            return false;
        }
        // Once the first error is known, only the end of the coordinator, or of a rank that may
        // follow it, matters.
        let is_of_no_account = self.agreement() != Agreement::Pending
            || self.rank != self.coordinator && peer > self.rank;
        if self.first_error.is_some() && is_of_no_account {
            return false;
        }
        self.ended.push(Ended {
            peer,
            why: why.to_owned(),
            since: None,
            was_before: false,
        });
        true
    }

    /// Returns `true` if a goodbye that matters may still arrive from a rank whose process has
    /// ended.
    #[must_use]
    pub fn awaits_goodbyes(&self) -> bool {
        let matters = self.first_error.is_none() || self.agreement() == Agreement::Pending;
        matters && !self.ended.is_empty()
    }

    /// Stops waiting for a goodbye from `peer`, which has said goodbye or is known to be lost.
    pub(super) fn expect_no_goodbye(&mut self, peer: usize) {
        self.ended.retain(|one| one.peer != peer);
    }

    /// Declares the rank whose process ended first dead if its goodbye has not arrived in time. A
    /// rank that is not the coordinator waits longer before it does this, and then assumes that the
    /// coordinator is stopped.
    pub(super) fn miss_the_ended(&mut self, now: Duration) {
        let grace = match self.deputy(None) == self.rank {
            true => GOODBYE_GRACE,
            false => FIRST_ERROR_GRACE,
        };
        for one in &mut self.ended {
            let since = *one.since.get_or_insert(now);
            one.was_before = now >= since + GOODBYE_GRACE;
        }
        if let Some(Ended {
            peer, why, since, ..
        }) = self.ended.first()
            && since.is_some_and(|since| now >= since + grace)
        {
            let (peer, why) = (*peer, why.clone());
            self.declare_lost(peer, &why, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::protocol::call::Call;
    use crate::protocol::message::{Place, Wait};
    use crate::protocol::session::ITS_PROCESS_ENDED;

    fn goodbye(calls: u64) -> Message {
        Message::Goodbye {
            calls,
            failed_beside: None,
        }
    }

    fn is_lost(session: &Session, peer: usize) -> bool {
        let error = session.first_error();
        error.is_some_and(|error| error.is_peer_lost() && error.peer() == Some(peer))
    }

    #[test]
    fn the_coordinator_is_told_and_tells_all_unless_a_goodbye_comes() {
        for says_goodbye in [true, false] {
            let (mut coordinator, mut other) = (Session::new(0, 4), Session::new(1, 4));
            other.process_ended(2, ITS_PROCESS_ENDED);
            let (to, told) = other.next_message().unwrap();
            assert_eq!(to, To::Rank(0));
            coordinator.receive(1, told);
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
    fn without_a_coordinator_every_survivor_names_the_first_that_ended() {
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
    fn of_a_coordinator_and_a_rank_that_end_at_once_the_coordinator_is_named() {
        for is_long_ago in [false, true] {
            let mut survivor = Session::new(3, 4);
            // Rank 1 ended because the coordinator was gone, or had ended long before.
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
    fn a_survivor_that_knows_the_first_error_waits_for_no_other_survivors_goodbye() {
        let mut survivor = Session::new(3, 4);
        survivor.control_lost(0, "it closed its connection");
        assert!(is_lost(&survivor, 0));
        // Another survivor has stopped waiting and is gone.
        survivor.process_ended(1, ITS_PROCESS_ENDED);
        assert!(!survivor.awaits_goodbyes());
    }

    #[test]
    fn what_is_said_of_ranks_that_there_are_not_is_not_repeated() {
        let place = |rank| Place {
            rank,
            calls: 0,
            inside: false,
            pair_calls: 0,
            pair: None,
        };
        let told = |rank, held_up_by: Vec<Place>, waits: Vec<Wait>| Message::Position {
            place: place(rank),
            held_up_by,
            waits,
        };
        let position = |rank, held_up_by| told(rank, held_up_by, Vec::new());
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
            told(1, Vec::new(), vec![wait(1, 3)]),
            told(1, Vec::new(), vec![wait(2, 1)]),
            told(1, Vec::new(), vec![wait(1, 2); 100]),
        ];
        for lie in lies {
            let mut coordinator = Session::new(0, 3);
            coordinator.receive(1, lie);
            let error = coordinator.first_error().expect("the lie").to_string();
            assert!(
                error.starts_with("rank 1 sent a message about ranks that"),
                "{error}"
            );
        }
        let truths = [
            position(1, vec![place(2)]),
            told(1, Vec::new(), vec![wait(1, 2), wait(2, 0)]),
            Message::Ended(0),
            goodbye(1 << 60),
        ];
        for truth in truths {
            let mut coordinator = Session::new(0, 3);
            coordinator.receive(1, truth);
            assert_eq!(coordinator.first_error(), None);
        }
    }
}
