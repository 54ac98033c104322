//! Running plans over links.
//!
//! *Purpose.* One polled state machine for every algorithm and every transport. [`program`] binds
//! a plan to byte offsets, [`posting`] is a call as it comes in, `operation` one under way,
//! `in_order` runs one step by step while its caller waits, [`group`] holds the operations of one
//! set of ranks, [`Engine`] all groups of a process.
//!
//! *Invariants.* The engine knows no algorithm, no clock and no thread; it never blocks. Data
//! dependencies, counted in bytes, are all that orders the steps of a plan, so a segment is folded
//! and sent on while later ones are in flight. A rank's sends leave in plan order: bytes of a
//! later round are offered only while the earlier rounds have none ready. Operations of a channel
//! use a link in the order they were issued. In the steady state nothing is allocated.
//!
//! *May import* `transport`, `device`, `reduce`, `sys`, `plan`, `protocol` and the base files.

#![forbid(unsafe_code)]

mod channel;
pub mod device;
mod fold;
pub mod group;
mod in_order;
mod lending;
mod operation;
mod pieces;
pub mod posting;
pub mod program;
mod turns;

use crate::error::{Error, Result};
use crate::protocol::message::Message;
use crate::protocol::session::To;
use crate::sys::memory::Region;
use device::OnDevice;
use group::{ChannelKind, Group};
use posting::{Posting, Prepared, Progress};
use std::time::Duration;

/// Every group of a process, polled together.
#[derive(Default)]
pub struct Engine {
    groups: Vec<(u32, Group)>,
}

/// Names an operation that was posted and not yet taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    group: u32,
    channel: ChannelKind,
    slot: usize,
}

impl Engine {
    /// Adds a group under the number that all its ranks use for it.
    pub fn add_group(&mut self, number: u32, group: Group) {
        self.groups.push((number, group));
    }

    /// Removes a group, giving back its links; its operations must have been taken.
    pub fn remove_group(&mut self, number: u32) -> Option<Group> {
        let at = self.groups.iter().position(|(each, _)| *each == number)?;
        Some(self.groups.swap_remove(at).1)
    }

    /// The group called `number`.
    pub fn group(&mut self, number: u32) -> Option<&mut Group> {
        self.groups
            .iter_mut()
            .find(|(each, _)| *each == number)
            .map(|(_, group)| group)
    }

    /// Starts an operation.
    ///
    /// # Errors
    /// The group's first cause, with the buffer, if it has failed already.
    pub fn post(
        &mut self,
        number: u32,
        channel: ChannelKind,
        posting: Posting,
    ) -> std::result::Result<Ticket, (Error, Region)> {
        let Some(group) = self.group(number) else {
            return Err((
                Error::Usage("the communicator is closed".into()),
                posting.buffer,
            ));
        };
        let slot = group.post(channel, posting)?;
        Ok(Ticket {
            group: number,
            channel,
            slot,
        })
    }

    /// As [`Engine::post`], on a device's memory; the posting's buffer means nothing then.
    ///
    /// # Errors
    /// As there; and [`Error::Usage`] where the group has no device.
    pub fn post_on_device(
        &mut self,
        number: u32,
        posting: Posting,
        on: OnDevice,
    ) -> Result<Ticket> {
        let closed = || Error::Usage("the communicator is closed".into());
        let group = self.group(number).ok_or_else(closed)?;
        let slot = group.post_on_device(posting, on)?;
        Ok(Ticket {
            group: number,
            channel: ChannelKind::Collectives,
            slot,
        })
    }

    /// Whether something is under way on a device, which wakes nobody when it is done.
    #[must_use]
    pub fn awaits_device(&self) -> bool {
        self.groups.iter().any(|(_, group)| group.awaits_device())
    }

    /// Runs a collective on `buffer` step by step while the caller waits, where nothing of the
    /// group is under way and every link takes whole messages. `patience` says, after so many
    /// fruitless looks, whether to look once more. False when the call has not ended: then post
    /// it, with the `progress` it has made, before the group's next call.
    pub fn run(
        &mut self,
        number: u32,
        prepared: &Prepared,
        sequence: u64,
        buffer: &mut [u8],
        progress: &mut Progress,
        patience: &mut dyn FnMut(u32) -> bool,
    ) -> bool {
        self.group(number)
            .is_some_and(|group| group.run(prepared, sequence, buffer, progress, patience))
    }

    /// Advances every operation as far as it goes now; says whether anything moved.
    pub fn poll(&mut self) -> bool {
        let mut advanced = false;
        for (_, group) in &mut self.groups {
            advanced |= group.poll();
        }
        advanced
    }

    /// Lets time pass: notices, deadlines, suspicions that stand. `now` never goes back.
    pub fn tick(&mut self, now: Duration) {
        for (_, group) in &mut self.groups {
            group.tick(now);
        }
    }

    /// Whether there is no group.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Whether any group has something to do.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.groups.iter().any(|(_, group)| group.is_busy())
    }

    /// Takes a finished operation: its buffer, and how it ended. `None` while it is under way.
    pub fn take(&mut self, ticket: Ticket) -> Option<(Region, Result<()>)> {
        self.group(ticket.group)?.take(ticket.channel, ticket.slot)
    }

    /// Whether an operation has ended that bears no time yet.
    #[must_use]
    pub fn has_unstamped(&self) -> bool {
        self.groups.iter().any(|(_, group)| group.has_unstamped())
    }

    /// Notes `now` as the end of every operation that has ended since the last call.
    pub fn stamp(&mut self, now: Duration) {
        for (_, group) in &mut self.groups {
            group.stamp(now);
        }
    }

    /// Whether an operation that was not taken yet has ended, and when, if that was noted.
    pub fn ended(&mut self, ticket: Ticket) -> (bool, Option<Duration>) {
        self.group(ticket.group).map_or((true, None), |group| {
            group.ended(ticket.channel, ticket.slot)
        })
    }

    /// Lets an operation finish by itself; its buffer is dropped then.
    pub fn abandon(&mut self, ticket: Ticket) {
        if let Some(group) = self.group(ticket.group) {
            group.abandon(ticket.channel, ticket.slot);
        }
    }

    /// A control message came for a group.
    pub fn control(&mut self, number: u32, from: usize, payload: &[u8]) {
        if let (Some(group), Some(message)) = (self.group(number), Message::decode(payload)) {
            group.control(from, message);
        }
    }

    /// The control connection of `rank` is gone.
    pub fn control_lost(&mut self, rank: usize, why: &str) {
        for (_, group) in &mut self.groups {
            group.control_lost(rank, why);
        }
    }

    /// No link to `rank` could be made.
    pub fn link_failed(&mut self, rank: usize, why: &str) {
        for (_, group) in &mut self.groups {
            group.link_failed(rank, why);
        }
    }

    /// The next control message to send: group, addressee, bytes.
    pub fn next_control(&mut self) -> Option<(u32, To, Vec<u8>)> {
        self.groups.iter_mut().find_map(|(number, group)| {
            group
                .next_control()
                .map(|(to, message)| (*number, to, message.encode()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;
    use crate::plan::{Algorithm, Collective, Request, plan};
    use crate::protocol::call::Call;
    use crate::transport::{self, LinkError, Transport};
    use posting::Arithmetic;
    use program::Program;
    use std::sync::Arc;

    /// Links that never open.
    struct Unconnected;

    type Moved = std::result::Result<usize, LinkError>;

    impl Transport for Unconnected {
        fn name(&self) -> &'static str {
            "none"
        }
        fn open(&mut self, _: usize) {}
        fn send(&mut self, _: usize, _: &transport::Message, _: usize, _: &[u8]) -> Moved {
            Ok(0)
        }
        fn receive(&mut self, _: usize, _: &transport::Message, _: usize, _: &mut [u8]) -> Moved {
            Ok(0)
        }
        fn fetch(&mut self, _: usize, _: &transport::Message, _: usize) -> Moved {
            Ok(0)
        }
        fn view(&self, _: usize, _: usize) -> &[u8] {
            &[]
        }
        fn consume(&mut self, _: usize, _: usize) {}
    }

    /// Rank 1 of 3 in an all-gather of one byte a rank.
    fn waiting(timeout: Duration) -> (Engine, Ticket) {
        let request = Request {
            collective: Collective::AllGather,
            algorithm: Algorithm::Flat,
            world_size: 3,
            rank: 1,
            root: 0,
            pieces: 1,
            ranks_per_host: 1,
        };
        let call = Call {
            sequence: 1,
            collective: "all-gather".into(),
            algorithm: "flat".into(),
            pieces: 1,
            count: 3,
            dtype: Dtype::U8,
            op: None,
            root: None,
        };
        let prepared = Prepared {
            digest: call.digest(),
            call,
            program: Arc::new(Program::bind(&plan(&request).unwrap(), 3, 1)),
            arithmetic: Arithmetic {
                kernel: None,
                element_bytes: 1,
                divisor: None,
            },
        };
        let posting = Posting {
            prepared: Arc::new(prepared),
            sequence: 1,
            buffer: Region::own(vec![0u8; 3]),
            progress: Progress::default(),
            timeout,
        };
        let mut engine = Engine::default();
        let group = Group::new(1, 3, Box::new(Unconnected), Box::new(Unconnected));
        engine.add_group(0, group);
        let ticket = engine.post(0, ChannelKind::Collectives, posting);
        (engine, ticket.map_err(|(error, _)| error).unwrap())
    }

    #[test]
    fn a_link_that_cannot_be_made_is_reported_and_the_arbiters_cause_counts() {
        let (mut engine, ticket) = waiting(Duration::from_secs(60));
        engine.link_failed(2, "connection refused");
        engine.tick(Duration::ZERO);
        engine.tick(Duration::from_millis(200));
        engine.poll();
        assert!(engine.take(ticket).is_none(), "the arbiter has not spoken");
        let (_, to, report) = engine.next_control().unwrap();
        assert_eq!(to, To::Rank(0));
        let Some(Message::Report(Error::PeerLost { rank: 2, message })) = Message::decode(&report)
        else {
            panic!("{report:?}");
        };
        assert!(message.contains("during all-gather #1"), "{message}");
        assert!(message.contains("connection refused"), "{message}");

        let first = Error::Deadline("what another rank saw before".into());
        engine.control(0, 0, &Message::Verdict(first.clone()).encode());
        let (_, end) = engine.take(ticket).unwrap();
        assert_eq!(end, Err(first));
    }

    #[test]
    fn a_timeout_without_end_overflows_nothing() {
        let (mut engine, ticket) = waiting(Duration::MAX);
        engine.tick(Duration::from_secs(1));
        engine.tick(Duration::from_secs(1 << 40));
        assert!(engine.take(ticket).is_none());
    }
}
