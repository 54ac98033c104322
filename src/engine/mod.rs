//! Running programs over links.
//!
//! *Purpose.* One interpreter for every algorithm and every transport. [`cache`] chooses, builds
//! and remembers programs; [`bind`] makes one of a plan; [`run`](self) is the interpreter, over a
//! [`medium`]; `queue` holds the operations of one order, [`group`] both orders of one set of
//! ranks, [`Engine`] all groups of a process, by their ranks in the world; `founding` makes groups;
//! [`log`] writes down what collectives do when;
//! `watch` keeps deadlines and tells of failures, `waits` where threads are blocked.
//!
//! *Invariants.* The engine knows no algorithm, no clock and no thread; it never blocks. Data
//! dependencies, counted in bytes, are all that orders the steps of a program, so a segment is
//! reduced and sent on while later ones are in flight. A rank's sends leave in plan order;
//! `progress.md` says why no operation waits for ever. Operations of a queue use a link in the
//! order of their calls. In the steady state nothing is allocated.
//!
//! *May import* `link`, `reduce`, `sys`, `plan`, `protocol` and the base files.

#![forbid(unsafe_code)]

pub(crate) mod bind;
pub(crate) mod cache;
mod expose;
mod founding;
pub(crate) mod gate;
pub(crate) mod group;
pub(crate) mod log;
mod matching;
pub(crate) mod medium;
pub(crate) mod program;
mod queue;
mod reservations;
mod run;
mod waits;
mod watch;

use crate::error::{Error, Result};
use crate::limits::{IDLE_SLEEP, PATIENT_SLEEP};
use crate::protocol::founding::{Notice, PROCESSES, RELAY};
use crate::protocol::members::Members;
use crate::protocol::message::Message;
use crate::protocol::session::To;
use founding::Founding;
use group::{Group, Memory, Order};
use std::collections::BTreeMap;
use std::time::Duration;
use waits::Waits;

/// Every group of a process, polled together.
#[derive(Default)]
pub struct Engine {
    groups: Vec<(u32, Group)>,
    founding: Founding,
    /// The failure of a group that the program has not survived, as far as is known.
    failure: Option<Failure>,
    /// Ranks of the world that are gone, and why: groups that come later are told.
    lost: BTreeMap<usize, String>,
    waits: Waits,
}

/// The failure of a group. It explains why another group is left only until the program makes a
/// call in any: then it has survived the failure.
struct Failure {
    group: u32,
    error: Error,
    /// Collectives and messages that each group had made by then.
    made: Vec<(u32, (u64, u64))>,
}

/// Names an operation that was started and not yet taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The group's number.
    pub group: u32,
    /// Which of its orders.
    pub order: Order,
    /// The operation's place.
    pub slot: usize,
}

impl Engine {
    /// Adds a group under the number that all its ranks use for it.
    pub fn add_group(&mut self, number: u32, mut group: Group) {
        self.waits.prepare(number, &mut group);
        self.groups.push((number, group));
        // What a rank said before it was gone comes first: it may have left in peace.
        for (_, from, payload) in self.founding.take_early(number) {
            self.control(number, from, &payload);
        }
        let Some((_, group)) = self.groups.last_mut() else {
            return;
        };
        for (rank, why) in &self.lost {
            if let Some(peer) = group.members().rank_of(*rank) {
                group.control_lost(peer, why);
            }
        }
    }

    /// Asks the other `members` to make a group from the group `parent` with this process; returns
    /// the number of the request, by which [`Engine::founded`] tells what became of it.
    pub fn found(&mut self, parent: u32, members: &Members) -> u32 {
        self.founding.ask(parent, members)
    }

    /// The number of the group that was asked for, or why there is none, once that is known.
    #[must_use]
    pub fn founded(&self, request: u32) -> Option<Result<u32>> {
        self.founding.answer(request)
    }

    /// Why this process, which waits for a group, has given up meanwhile, if it has.
    #[must_use]
    pub fn founding_cause(&self, request: u32) -> Option<Error> {
        self.founding.cause(request)
    }

    /// This process cannot go on, for a reason of its own: every group gives up, and it waits for
    /// none that there is not yet.
    pub fn give_up(&mut self, cause: &Error) {
        let groups = self.groups();
        groups.for_each(|group| group.give_up(cause.clone()));
        self.founding.give_up(cause);
    }

    /// Waits no longer for a group; what became of it is told all the same.
    pub fn give_up_founding(&mut self, request: u32, waited: Duration) {
        self.founding.withdraw(request, waited);
    }

    /// A request is done with.
    pub fn close_founding(&mut self, request: u32) {
        self.founding.close(request);
    }

    /// This process, rank 0 of the world or another, leaves in peace.
    pub fn leave(&mut self, is_relay: bool) {
        self.founding.leave(is_relay);
    }

    /// Says goodbye to the ranks of the group `number`. A group that failed needs none after rank 0
    /// has left: its ranks would connect only for that.
    pub fn leave_group(&mut self, number: u32) {
        self.forget_survived();
        let failure = self.failure.as_ref().filter(|one| one.group != number);
        let failed_beside = failure.map(|one| one.error.clone());
        let has_relay = self.founding.has_relay();
        let group = self.group(number);
        if let Some(group) = group.filter(|one| has_relay || one.first_error().is_none()) {
            group.leave(failed_beside);
        }
    }

    /// Removes a group, giving back its links; its operations must have been taken.
    pub fn remove_group(&mut self, number: u32) -> Option<Group> {
        let at = self.groups.iter().position(|(each, _)| *each == number)?;
        let (_, group) = self.groups.swap_remove(at);
        Some(group)
    }

    /// Forgets a failure that the program has survived: a group has made calls since.
    fn forget_survived(&mut self) {
        let has_called = |failure: &mut Failure| {
            let mut working = self.groups.iter().filter(|one| !one.1.has_failed());
            working.any(|(number, group)| {
                let made = group.session.calls_made();
                made != (0, 0) && !failure.made.contains(&(*number, made))
            })
        };
        self.failure.take_if(has_called);
    }

    /// The group called `number`.
    #[inline]
    pub fn group(&mut self, number: u32) -> Option<&mut Group> {
        self.groups
            .iter_mut()
            .find(|(each, _)| *each == number)
            .map(|(_, group)| group)
    }

    /// Whether an operation has ended, and when, if that was noted.
    pub fn ended(&mut self, ticket: Ticket) -> (bool, Option<Duration>) {
        let group = self.group(ticket.group);
        group.map_or((true, None), |group| group.ended(ticket.order, ticket.slot))
    }

    /// The memory of abandoned operations that have ended, to be dropped by the caller.
    pub fn let_go(&mut self) -> Vec<Memory> {
        self.groups().flat_map(Group::let_go).collect()
    }

    /// Whether there is some.
    #[must_use]
    pub fn has_let_go(&self) -> bool {
        self.groups.iter().any(|(_, group)| group.has_let_go())
    }

    /// Whether an operation that was abandoned is under way.
    #[must_use]
    pub fn has_abandoned(&self) -> bool {
        self.groups.iter().any(|(_, group)| group.has_abandoned())
    }

    /// Whether an operation has ended since the last stamp.
    #[must_use]
    pub fn has_unstamped(&self) -> bool {
        self.groups.iter().any(|(_, group)| group.has_unstamped())
    }

    /// Every group.
    pub fn groups(&mut self) -> impl Iterator<Item = &mut Group> {
        self.groups.iter_mut().map(|(_, group)| group)
    }

    /// Advances every operation as far as it goes now; says whether anything moved.
    pub fn poll(&mut self) -> bool {
        let mut advanced = false;
        for group in self.groups() {
            advanced |= group.poll();
        }
        advanced
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

    /// How long a thread may sleep before it looks at the clock, which says `now`, and ticks.
    #[must_use]
    pub fn may_sleep(&self, now: impl Fn() -> Duration) -> Duration {
        if self.founding.is_awaited() {
            return IDLE_SLEEP;
        }
        let groups = self.groups.iter();
        groups
            .map(|(_, group)| group.may_sleep(&now))
            .fold(PATIENT_SLEEP, Duration::min)
    }

    /// Whether an operation waits for a device, which wakes no thread.
    #[must_use]
    pub fn awaits_gate(&self) -> bool {
        self.groups.iter().any(|(_, group)| group.awaits_gate())
    }

    /// Notes `now` as the end of every operation that has ended since the last call.
    pub fn stamp(&mut self, now: impl Fn() -> Duration) {
        if self.has_unstamped() {
            let now = now();
            self.groups().for_each(|group| group.stamp(now));
        }
    }

    /// Lets time pass: notices, deadlines, pending errors that stand. `now` never goes back.
    pub fn tick(&mut self, now: Duration) {
        self.groups().for_each(|group| group.tick(now));
        self.look_at_alarms();
    }

    /// A control message came for a group from a rank of the world.
    pub fn control(&mut self, number: u32, from: usize, payload: &[u8]) {
        if number == PROCESSES {
            let Some(notice) = Notice::decode(payload) else {
                return;
            };
            let lost = self.founding.receive(from, notice);
            if let Some((rank, why)) = lost {
                let why = format!("rank {RELAY} of the world says: {why}");
                self.lost(rank, &why);
            }
            return;
        }
        let waits = self.waits(number);
        let Some(group) = self.group(number) else {
            return self.founding.keep(number, from, payload);
        };
        let from = group.members().rank_of(from);
        if let (Some(from), Some(message)) = (from, Message::decode(payload)) {
            group.control(from, message, waits);
        }
    }

    /// The control connection of the world's rank `rank` to this one closed. Rank 0 tells all ranks
    /// as long as it relays messages, and after that it is seen by this process alone.
    pub fn control_lost(&mut self, rank: usize, why: &str) {
        if rank == RELAY {
            self.founding.relay_gone(why.to_owned());
        } else if self.founding.has_relay() {
            self.founding.announce(rank, why);
        } else {
            return self.process_ended(rank, why);
        }
        self.lost(rank, why);
    }

    fn lost(&mut self, rank: usize, why: &str) {
        self.lost.insert(rank, why.to_owned());
        self.with_member(rank, |group, peer| group.control_lost(peer, why));
    }

    /// Does something to every group that the world's rank `rank` is in.
    fn with_member(&mut self, rank: usize, act: impl Fn(&mut Group, usize)) {
        for group in self.groups() {
            if let Some(peer) = group.members().rank_of(rank) {
                act(group, peer);
            }
        }
    }

    /// The process of the world's rank `rank` has ended; a goodbye of it may still be on its way.
    pub fn process_ended(&mut self, rank: usize, why: &str) {
        self.with_member(rank, |group, peer| group.process_ended(peer, why));
    }

    /// No link of a group to the world's rank `rank` could be made.
    pub fn link_failed(&mut self, number: u32, rank: usize, why: &str) {
        if let Some(group) = self.group(number)
            && let Some(peer) = group.members().rank_of(rank)
        {
            group.link_failed(peer, why);
        }
    }

    /// The first error of a group, with the group's members; returns each once.
    pub fn next_failure(&mut self) -> Option<(Error, Members)> {
        let mut groups = self.groups.iter_mut();
        let (group, (error, members)) =
            groups.find_map(|(number, group)| Some((*number, group.take_failure()?)))?;
        self.forget_survived();
        if self.failure.is_none() {
            let groups = self.groups.iter();
            let made = groups.map(|(number, group)| (*number, group.session.calls_made()));
            self.failure = Some(Failure {
                group,
                error: error.clone(),
                made: made.collect(),
            });
        }
        Some((error, members))
    }

    /// The next control message to send: group, addressee in the world, bytes.
    pub fn next_control(&mut self) -> Option<(u32, To, Vec<u8>)> {
        if let Some(next) = self.founding.outbox.pop_front() {
            return Some(next);
        }
        let groups = &mut self.groups;
        let (number, to, message, members) = groups.iter_mut().find_map(|(number, group)| {
            let (to, message) = group.next_control()?;
            Some((*number, to, message.encode(), group.members().clone()))
        })?;
        Some(match to {
            To::Rank(rank) => (number, To::Rank(members.world_rank(rank)), message),
            To::All if members.are_everyone() && self.founding.has_relay() => (number, to, message),
            To::All => {
                let group = self.group(number)?;
                let is_meant =
                    |rank: &usize| *rank != group.rank() && !group.session.has_left(*rank);
                let others: Vec<_> = (0..members.count()).filter(is_meant).collect();
                let others = others.into_iter();
                let each = |rank| (number, To::Rank(members.world_rank(rank)), message.clone());
                let outbox = &mut self.founding.outbox;
                outbox.extend(others.map(each));
                return self.next_control();
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;
    use crate::error::Error;
    use crate::link::{Link, LinkError, Payload};
    use crate::plan::select::TuningTable;
    use crate::plan::{Algorithm, Collective, Topology};
    use crate::protocol::call::Call;
    use crate::sys::memory::Region;
    use bind::Placement;
    use cache::{Cache, Key};
    use group::Start;
    use medium::host::Links;

    /// A link that never opens.
    struct Unconnected;

    type Moved = std::result::Result<usize, LinkError>;

    impl Link for Unconnected {
        fn send(&mut self, _: &crate::link::Message, _: usize, _: Payload<'_>) -> Moved {
            Ok(0)
        }
        fn receive(&mut self, _: &crate::link::Message, _: usize, _: &mut [u8]) -> Moved {
            Ok(0)
        }
        fn fetch(&mut self, _: &crate::link::Message, _: usize) -> Moved {
            Ok(0)
        }
        fn view(&self, _: usize) -> &[u8] {
            &[]
        }
        fn consume(&mut self, _: usize) -> std::result::Result<(), LinkError> {
            Ok(())
        }
    }

    fn unconnected(rank: usize, world_size: usize) -> Group {
        let links = || Links::new(world_size, Box::new(|_| Box::new(Unconnected)));
        Group::new(rank, world_size, links(), links())
    }

    /// Rank 1 of 3 in an all-gather of one byte a rank.
    fn waiting(timeout: Duration) -> (Engine, Ticket) {
        let topology = Topology::apart(3);
        let mut cache = Cache::new(1, topology, TuningTable::default(), Vec::new());
        let key = Key {
            call: Call::new(Collective::AllGather, 3)
                .dtype(Dtype::U8)
                .by(Algorithm::Flat),
            placement: Placement::InPlace,
            is_exposed: false,
        };
        let mut memory = Memory::in_place(Region::own(vec![0u8; 3]));
        let mut start = Start {
            prepared: cache.get(key).unwrap(),
            sequence: 1,
            memory: &mut memory,
            timeout,
            gate: None,
        };
        let mut group = unconnected(1, 3);
        let order = Order::Collectives;
        let ticket = Ticket {
            group: 0,
            order,
            slot: group.post(order, &mut start).unwrap(),
        };
        let mut engine = Engine::default();
        engine.add_group(0, group);
        (engine, ticket)
    }

    fn take(engine: &mut Engine, ticket: Ticket) -> Option<group::End> {
        engine.group(0).unwrap().take(ticket.order, ticket.slot)
    }

    #[test]
    fn a_link_that_cannot_be_made_is_reported_and_the_coordinators_error_counts() {
        let (mut engine, ticket) = waiting(Duration::from_secs(60));
        engine.link_failed(0, 2, "connection refused");
        engine.tick(Duration::ZERO);
        engine.tick(Duration::from_millis(200));
        engine.poll();
        assert!(
            take(&mut engine, ticket).is_none(),
            "the coordinator has not answered"
        );
        let (_, to, report) = engine.next_control().unwrap();
        assert_eq!(to, To::Rank(0));
        let Some(Message::Report(error)) = Message::decode(&report) else {
            panic!("{report:?}");
        };
        assert!(error.is_peer_lost() && error.peer() == Some(2), "{error:?}");
        let message = error.to_string();
        assert!(message.contains("during all-gather #1"), "{message}");
        assert!(message.contains("connection refused"), "{message}");

        let first = Error::deadline("what another rank saw before");
        engine.control(0, 0, &Message::FirstError(first.clone()).encode());
        let (_, end) = take(&mut engine, ticket).unwrap();
        assert_eq!(end, Err(first));
    }

    #[test]
    fn once_its_peers_know_a_waiting_rank_sleeps_until_something_is_due() {
        let at = Duration::from_millis;
        let (mut engine, ticket) = waiting(at(60_000));
        let tick = |engine: &mut Engine, now| {
            engine.tick(at(now));
            engine.may_sleep(|| at(now))
        };
        assert_eq!(tick(&mut engine, 0), IDLE_SLEEP);
        assert_eq!(tick(&mut engine, 900), IDLE_SLEEP);
        assert_eq!(tick(&mut engine, 1000), PATIENT_SLEEP);
        assert_eq!(tick(&mut engine, 1950), at(50));
        for second in 2..60 {
            assert_eq!(tick(&mut engine, second * 1000), PATIENT_SLEEP);
        }
        assert_eq!(tick(&mut engine, 59_990), at(10));
        assert!(take(&mut engine, ticket).is_none());
        // No peer answers the deadline's report: the engine waits for the answers, too.
        assert_eq!(tick(&mut engine, 60_000), IDLE_SLEEP);
    }

    #[test]
    fn a_timeout_without_end_overflows_nothing() {
        let (mut engine, ticket) = waiting(Duration::MAX);
        engine.tick(Duration::from_secs(1));
        engine.tick(Duration::from_secs(1 << 40));
        assert!(take(&mut engine, ticket).is_none());
    }

    /// Rank 1 has made its calls in a group before rank 0 knows that the group is made.
    #[test]
    fn a_rank_that_left_a_group_before_another_had_it_is_not_lost() {
        for says_goodbye in [true, false] {
            let mut engine = Engine::default();
            engine.found(0, &Members::everyone(2));
            if says_goodbye {
                let goodbye = Message::Goodbye {
                    calls: 1,
                    failed_beside: None,
                };
                engine.control(1, 1, &goodbye.encode());
            }
            engine.control_lost(1, "it closed its control connection");
            engine.add_group(1, unconnected(0, 2));
            engine.tick(Duration::ZERO);
            engine.poll();
            assert_eq!(engine.next_failure().is_none(), says_goodbye);
        }
    }
}
