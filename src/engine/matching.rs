//! Assigns numbers to messages, and matches receives from any rank with messages.
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
    /// Notifies senders whether a receive from any rank is waiting, if calls are checked. While
    /// such a receive is waiting, sends may begin.
    fn tell_of_receives_from_any(&mut self) {
        if self.session.checks_calls() {
            let waits = self
                .pairs
                .operations()
                .any(|slot| slot.unmatched().is_some());
            self.session.waits_for_any(waits);
        }
    }

    /// Assigns a number to the message of an operation that was just issued, or lets it wait for a
    /// number.
    pub(super) fn number(&mut self, index: usize) {
        self.tell_of_receives_from_any();
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

    /// Assigns numbers to the waiting receives, up to the first receive from any rank whose message
    /// has not arrived.
    ///
    /// # Errors
    /// Returns the slot of a receive from any rank, and a broken link, if no rank is able to send
    /// to it any longer.
    pub(super) fn number_waiting(&mut self) -> Result<(), (usize, Broken)> {
        let mut at = 0;
        // Ranks whose next message belongs to an earlier receive.
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
                self.tell_of_receives_from_any();
            }
        }
        Ok(())
    }

    fn is_waited_for(&self) -> bool {
        self.numbers.waiting > 0
    }

    /// Returns a rank that is not in `taken` and from which a message has arrived. Each search
    /// starts after the previous result.
    ///
    /// # Errors
    /// Returns a broken link if no rank is able to send any longer.
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
mod tests {
    use super::*;
    use crate::engine::cache::Prepared;
    use crate::engine::group::{Memory, Order, Start};
    use crate::engine::medium::host::Links;
    use crate::link::Link;
    use crate::link::stream::StreamLink;
    use crate::sys::memory::Region;
    use std::collections::VecDeque;
    use std::io::{Error, ErrorKind, Read, Result, Write};
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    const RANKS: usize = 3;

    type Bytes = Arc<Mutex<VecDeque<u8>>>;

    /// One end of two pipes.
    struct Pipes {
        from: Bytes,
        to: Bytes,
    }

    impl Read for Pipes {
        fn read(&mut self, into: &mut [u8]) -> Result<usize> {
            match self.from.lock().unwrap().read(into) {
                Ok(0) => Err(Error::from(ErrorKind::WouldBlock)),
                read => read,
            }
        }
    }

    impl Write for Pipes {
        fn write(&mut self, bytes: &[u8]) -> Result<usize> {
            self.to.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> Result<()> {
            Ok(())
        }
    }

    fn world() -> Vec<Group> {
        let pipes: Vec<Bytes> = (0..RANKS * RANKS).map(|_| Bytes::default()).collect();
        let group = |rank: usize| {
            let links = || {
                let pipes = pipes.clone();
                let connect = move |peer: usize| -> Box<dyn Link> {
                    let mut ends = Some(Pipes {
                        from: Arc::clone(&pipes[peer * RANKS + rank]),
                        to: Arc::clone(&pipes[rank * RANKS + peer]),
                    });
                    Box::new(StreamLink::new((0, 0), Box::new(move || ends.take())))
                };
                Links::new(RANKS, Box::new(connect))
            };
            Group::new(rank, RANKS, links(), links())
        };
        (0..RANKS).map(group).collect()
    }

    fn post(group: &mut Group, end: MessageEnd, content: u64) -> usize {
        let region = Region::own(vec![content]);
        let mut memory = match end {
            MessageEnd::To(_) => Memory {
                input: Some(region),
                output: None,
            },
            _ => Memory::in_place(region),
        };
        let dtype = crate::dtype::Dtype::U64;
        let prepared = Prepared::message(group.rank, end, (1, dtype), 0).unwrap();
        let mut start = Start {
            prepared: &Arc::new(prepared),
            sequence: 0,
            memory: &mut memory,
            timeout: Duration::MAX,
            gate: None,
        };
        let slot = group.post(Order::Pairs, &mut start).unwrap();
        group.poll();
        slot
    }

    /// Returns the sender and the content if the receive has completed.
    fn taken(group: &mut Group, slot: usize) -> Option<(usize, u64)> {
        group.poll();
        let sender = group.sender(slot);
        let (memory, end) = group.take(Order::Pairs, slot)?;
        end.unwrap();
        let content: Vec<u64> = memory.output.unwrap().into_vector().unwrap();
        Some((sender.unwrap(), content[0]))
    }

    #[test]
    fn the_earliest_receive_gets_the_message_and_none_overtakes_one_from_any_rank() {
        let mut groups = world();
        let [receiver, one, two] = &mut groups[..] else {
            unreachable!("there are three")
        };
        let first = post(receiver, MessageEnd::From(1), 0);
        let any = post(receiver, MessageEnd::FromAny(RANKS), 0);
        let later = post(receiver, MessageEnd::From(1), 0);
        let other = post(receiver, MessageEnd::FromAny(RANKS), 0);
        let last = post(receiver, MessageEnd::From(2), 0);
        // The first message of rank 1 belongs to `first`, not to `any`.
        post(one, MessageEnd::To(0), 10);
        assert_eq!(taken(receiver, first), Some((1, 10)));
        assert_eq!(taken(receiver, any), None);
        // The next one belongs to `any`, which was issued before `later`.
        post(one, MessageEnd::To(0), 11);
        assert_eq!(taken(receiver, later), None);
        assert_eq!(taken(receiver, any), Some((1, 11)));
        // The next message of rank 1 belongs to `later`, so only rank 2 can match `other`.
        post(two, MessageEnd::To(0), 20);
        post(two, MessageEnd::To(0), 21);
        assert_eq!(taken(receiver, other), Some((2, 20)));
        assert_eq!(taken(receiver, last), Some((2, 21)));
        post(one, MessageEnd::To(0), 12);
        assert_eq!(taken(receiver, later), Some((1, 12)));
    }
}
