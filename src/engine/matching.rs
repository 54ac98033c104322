//! Assigns sequence numbers to messages, and matches receives from any rank with messages.
//!
//! The messages of a directed pair of ranks are numbered in the order in which the sender issued
//! them, and are received in the order in which the receiver issued its receives. A receive from
//! any rank gets its number when a message arrives that belongs to no earlier receive. Until then,
//! later receives do not get a number either, so no later receive overtakes it.

use super::cache::MessageEnd;
use super::group::Group;
use super::medium::Broken;
use super::queue::Slot;

impl Slot {
    /// Returns the number of ranks in the group if the operation is a receive from any rank that
    /// has no sender yet.
    pub(super) fn unmatched(&self) -> Option<usize> {
        match self.message_end() {
            Some(MessageEnd::FromAny(world_size)) => Some(world_size),
            _ => None,
        }
    }
}

impl Group {
    /// If calls are checked, notifies senders whether a receive from any rank is waiting. While
    /// such a receive is waiting, sends may begin.
    fn report_receives_from_any(&mut self) {
        if self.session.checks_calls() {
            let waits = self
                .pairs
                .operations()
                .any(|slot| slot.unmatched().is_some());
            self.session.waits_for_any(waits);
        }
    }

    /// Assigns a number to the message of an operation that was just issued, or lets it wait for
    /// one.
    pub(super) fn number(&mut self, index: usize) {
        self.report_receives_from_any();
        match self.pairs.slots[index].message_end() {
            Some(MessageEnd::To(peer)) => self.take_number(index, true, peer),
            Some(MessageEnd::From(peer)) if self.numbers.waiting == 0 => {
                self.take_number(index, false, peer);
            }
            Some(_) => self.numbers.waiting += 1,
            None => {}
        }
    }

    fn take_number(&mut self, index: usize, sends: bool, peer: usize) {
        let numbers = match sends {
            true => &mut self.numbers.sent,
            false => &mut self.numbers.received,
        };
        let number = numbers.entry(peer).or_insert(0);
        *number += 1;
        let slot = &mut self.pairs.slots[index];
        slot.sequence = *number;
        if let Some(call) = slot.call() {
            self.session.enter_pair(peer, &call);
        }
    }

    /// Assigns numbers to the waiting receives, in order, until a receive from any rank has no
    /// message yet.
    ///
    /// # Errors
    /// Returns the slot of a receive from any rank, and a broken link, if no rank can send a
    /// message for this receive any longer.
    pub(super) fn number_waiting(&mut self) -> Result<(), (usize, Broken)> {
        let mut at = 0;
        // The ranks whose next message belongs to an earlier receive.
        let mut taken = Vec::new();
        while let Some(index) = self
            .pairs
            .order
            .get(at)
            .copied()
            .filter(|_| self.is_waited_for())
        {
            at += 1;
            let slot = &self.pairs.slots[index];
            let peer = match slot.message_end() {
                Some(MessageEnd::From(peer)) => peer,
                Some(MessageEnd::FromAny(world_size)) => {
                    let found = self.first_sender(world_size, &taken);
                    match found.map_err(|broken| (index, broken))? {
                        Some(peer) => peer,
                        None => break,
                    }
                }
                _ => continue,
            };
            taken.push(peer);
            let slot = &mut self.pairs.slots[index];
            if slot.sequence == 0 {
                slot.receive_from(peer);
                self.numbers.waiting -= 1;
                self.take_number(index, false, peer);
                self.report_receives_from_any();
            }
        }
        Ok(())
    }

    fn is_waited_for(&self) -> bool {
        self.numbers.waiting > 0
    }

    /// Returns a rank that is not in `taken` and from which a message has arrived. Each search
    /// starts with the rank after the previous result, so that all ranks are treated equally.
    ///
    /// # Errors
    /// Returns a broken link if no rank can send a message any longer.
    fn first_sender(
        &mut self,
        world_size: usize,
        taken: &[usize],
    ) -> Result<Option<usize>, Broken> {
        let first = self.numbers.first;
        let in_turn = (first..world_size).chain(0..first);
        let (mut can_come, mut last) = (false, None);
        for peer in in_turn.filter(|peer| *peer != self.rank) {
            if taken.contains(&peer) {
                can_come = true;
                continue;
            }
            let link = self.pairs.links.link(peer);
            match link.map_or(Ok(false), |link| link.has_arrived()) {
                Ok(true) => {
                    self.numbers.first = (peer + 1) % world_size;
                    return Ok(Some(peer));
                }
                Ok(false) => can_come = true,
                Err(error) => last = Some(Broken { peer, error }),
            }
        }
        match last.filter(|_| !can_come) {
            Some(broken) => Err(broken),
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests;
