//! Runs programs over links.
//!
//! *Purpose.* A single interpreter runs every algorithm on every transport.
//!
//! - [`cache`] chooses, builds and caches programs. [`bind`] creates a program from a plan.
//! - [`run`](self) is the interpreter. It moves bytes through a [`medium`].
//! - `queue` holds operations in the order of their calls. [`group`] holds a group's two queues,
//!   one for collectives and one for messages. [`Engine`] holds all groups of a process. Its
//!   methods accept world ranks.
//! - `group_creation` creates groups.
//! - `watch` handles deadlines and failures. `waits` records which calls are blocking threads.
//! - [`log`] records when the steps of collectives run. [`stats`] counts calls.
//!
//! *Invariants.* The engine does not know any algorithm, does not use clocks or threads, and never
//! blocks. The steps of a program are ordered only by data dependencies, which are counted in
//! bytes. So a segment is reduced and forwarded while later segments are in flight. A rank's sends
//! leave in plan order, and the operations of a queue use a link in the order of their calls.
//! `progress.md` explains why no operation waits forever. In the steady state, nothing is
//! allocated.
//!
//! *May import* `link`, `reduce`, `sys`, `plan`, `protocol` and the base files.

#![forbid(unsafe_code)]

pub(crate) mod bind;
pub(crate) mod cache;
mod expose;
pub(crate) mod gate;
pub(crate) mod group;
mod group_creation;
pub(crate) mod log;
mod matching;
pub(crate) mod medium;
pub(crate) mod program;
mod queue;
mod reservations;
mod run;
pub(crate) mod stats;
mod waits;
mod watch;

use crate::error::{Error, Result};
use crate::limits::{IDLE_SLEEP, NOTIFIED_SLEEP};
use crate::protocol::group_creation::{PROCESSES, RELAY};
use crate::protocol::members::Members;
use crate::protocol::message::{decode, encode};
use crate::protocol::session::To;
use group::{Group, Memory, Order};
use group_creation::GroupCreation;
use std::collections::BTreeMap;
use std::time::Duration;
use waits::Waits;

/// All groups of a process, which are polled together.
#[derive(Default)]
pub struct Engine {
    groups: Vec<(u32, Group)>,
    group_creation: GroupCreation,
    /// The first group failure, if a group has failed and the program has not survived the failure
    /// yet.
    failure: Option<Failure>,
    /// Lost world ranks, with the cause of each loss. Groups that are added later learn of these
    /// losses.
    lost: BTreeMap<usize, String>,
    waits: Waits,
}

/// The failure of a group. Goodbyes in other groups quote the failure until the program makes a
/// call in a working group. Such a call shows that the program has survived the failure.
struct Failure {
    group: u32,
    error: Error,
    /// Number of collectives and number of messages that each group had issued when the failure was
    /// recorded.
    made: Vec<(u32, (u64, u64))>,
}

/// Identifies an operation that was started and whose result has not been taken yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// ID of the group.
    pub group: u32,
    /// The order of the group that contains the operation.
    pub order: Order,
    /// Index of the operation's slot.
    pub slot: usize,
}

impl Engine {
    /// Adds a group under the ID that all its ranks use for it.
    pub fn add_group(&mut self, number: u32, mut group: Group) {
        self.waits.prepare(number, &mut group);
        self.groups.push((number, group));
        // Process early messages before losses, because a goodbye among the messages means that the
        // rank left cleanly.
        for (_, from, payload) in self.group_creation.take_early(number) {
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

    /// Requests a group of `members` from group `parent`. Returns the ID of the request, for
    /// [`Engine::group_result`].
    pub fn request_group(&mut self, parent: u32, members: &Members) -> u32 {
        self.group_creation.request(parent, members)
    }

    /// Returns the ID of the requested group, or the error that prevented its creation. Returns
    /// `None` while the outcome is not known.
    #[must_use]
    pub fn group_result(&self, request: u32) -> Option<Result<u32>> {
        self.group_creation.answer(request)
    }

    /// Returns the error with which this process aborted the request, or `None` if the request was
    /// not aborted.
    #[must_use]
    pub fn request_cause(&self, request: u32) -> Option<Error> {
        self.group_creation.cause(request)
    }

    /// Fails every group and aborts every request for a group, because this process cannot
    /// continue.
    pub fn give_up(&mut self, cause: &Error) {
        let groups = self.groups();
        groups.for_each(|group| group.give_up(cause.clone()));
        self.group_creation.give_up(cause);
    }

    /// Records that this rank has stopped waiting for a group, after the time `waited`.
    /// [`Engine::group_result`] still returns the outcome.
    pub fn withdraw_request(&mut self, request: u32, waited: Duration) {
        self.group_creation.withdraw(request, waited);
    }

    /// Removes a request.
    pub fn close_request(&mut self, request: u32) {
        self.group_creation.close(request);
    }

    /// Announces that this process is leaving. `is_relay` must be `true` on rank 0 of the world.
    pub fn leave(&mut self, is_relay: bool) {
        self.group_creation.leave(is_relay);
    }

    /// Sends a goodbye to the ranks of group `number`. If the group has failed and rank 0 of the
    /// world has left, sends nothing, because this rank would have to open connections just for the
    /// goodbye.
    pub fn leave_group(&mut self, number: u32) {
        self.forget_survived();
        let failure = self.failure.as_ref().filter(|one| one.group != number);
        let failed_beside = failure.map(|one| one.error.clone());
        let has_relay = self.group_creation.has_relay();
        let group = self.group(number);
        if let Some(group) = group.filter(|one| has_relay || one.first_error().is_none()) {
            group.leave(failed_beside);
        }
    }

    /// Removes a group and returns it with its links. The results of its operations must have been
    /// taken.
    pub fn remove_group(&mut self, number: u32) -> Option<Group> {
        let at = self.groups.iter().position(|(each, _)| *each == number)?;
        let (_, group) = self.groups.swap_remove(at);
        Some(group)
    }

    /// Forgets the failure if the program has since made calls in a working group.
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

    /// Returns the group with this ID, if it exists.
    #[inline]
    pub fn group(&mut self, number: u32) -> Option<&mut Group> {
        self.groups
            .iter_mut()
            .find(|(each, _)| *each == number)
            .map(|(_, group)| group)
    }

    /// Returns `true` if an operation has completed, together with the time at which it completed,
    /// if that was recorded.
    pub fn ended(&mut self, ticket: Ticket) -> (bool, Option<Duration>) {
        let group = self.group(ticket.group);
        group.map_or((true, None), |group| group.ended(ticket.order, ticket.slot))
    }

    /// Removes and returns the memory of abandoned operations that have completed. Dropping this
    /// memory may run user code.
    pub fn released_memory(&mut self) -> Vec<Memory> {
        self.groups().flat_map(Group::released_memory).collect()
    }

    /// Returns `true` if [`Engine::released_memory`] would return memory.
    #[must_use]
    pub fn has_released_memory(&self) -> bool {
        self.groups
            .iter()
            .any(|(_, group)| group.has_released_memory())
    }

    /// Returns `true` if an abandoned operation is in flight.
    #[must_use]
    pub fn has_abandoned(&self) -> bool {
        self.groups.iter().any(|(_, group)| group.has_abandoned())
    }

    /// Returns `true` if an operation has completed since the last [`Engine::stamp`].
    #[must_use]
    pub fn has_unstamped(&self) -> bool {
        self.groups.iter().any(|(_, group)| group.has_unstamped())
    }

    /// Returns all groups.
    pub fn groups(&mut self) -> impl Iterator<Item = &mut Group> {
        self.groups.iter_mut().map(|(_, group)| group)
    }

    /// Advances every operation until it must wait. Returns `true` if anything moved.
    pub fn poll(&mut self) -> bool {
        let mut advanced = false;
        for group in self.groups() {
            advanced |= group.poll();
        }
        advanced
    }

    /// Returns `true` if the process has no group.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Returns `true` if any group has work.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.groups.iter().any(|(_, group)| group.is_busy())
    }

    /// Returns how long a thread may sleep before it must call [`Engine::tick`]. `now` returns the
    /// current time.
    #[must_use]
    pub fn sleep_max(&self, now: impl Fn() -> Duration) -> Duration {
        if self.group_creation.is_awaited() {
            return IDLE_SLEEP;
        }
        let groups = self.groups.iter();
        groups
            .map(|(_, group)| group.sleep_max(&now))
            .fold(NOTIFIED_SLEEP, Duration::min)
    }

    /// Returns `true` if an operation is waiting for a device. A device does not wake any thread.
    #[must_use]
    pub fn waits_for_device(&self) -> bool {
        self.groups
            .iter()
            .any(|(_, group)| group.waits_for_device())
    }

    /// Records the current time as the end of every operation that has completed since the last
    /// call.
    pub fn stamp(&mut self, now: impl Fn() -> Duration) {
        if self.has_unstamped() {
            let now = now();
            self.groups().for_each(|group| group.stamp(now));
        }
    }

    /// Handles everything that is due at `now`: notices, deadlines and pending errors. `now` must
    /// never decrease.
    pub fn tick(&mut self, now: Duration) {
        self.groups().for_each(|group| group.tick(now));
        self.collect_stalls();
    }

    /// Processes a control message for group `number` from world rank `from`.
    pub fn control(&mut self, number: u32, from: usize, payload: &[u8]) {
        if number == PROCESSES {
            let Some(notice) = decode(payload) else {
                return;
            };
            let lost = self.group_creation.receive(from, notice);
            if let Some((rank, why)) = lost {
                let why = format!("rank {RELAY} of the world reported: {why}");
                self.lost(rank, &why);
            }
            return;
        }
        let waits = self.waits(number);
        let Some(group) = self.group(number) else {
            return self.group_creation.keep(number, from, payload);
        };
        let from = group.members().rank_of(from);
        if let (Some(from), Some(message)) = (from, decode(payload)) {
            group.control(from, message, waits);
        }
    }

    /// Processes the loss of the control connection to world rank `rank`. While rank 0 relays
    /// messages, it reports the loss to all ranks. Once rank 0 has left, only this process knows of
    /// the loss.
    pub fn control_lost(&mut self, rank: usize, why: &str) {
        if rank == RELAY {
            self.group_creation.relay_gone(why.to_owned());
        } else if self.group_creation.has_relay() {
            self.group_creation.announce(rank, why);
        } else {
            return self.process_ended(rank, why);
        }
        self.lost(rank, why);
    }

    fn lost(&mut self, rank: usize, why: &str) {
        self.lost.insert(rank, why.to_owned());
        self.with_member(rank, |group, peer| group.control_lost(peer, why));
    }

    /// Calls `act` on every group that contains world rank `rank`.
    fn with_member(&mut self, rank: usize, act: impl Fn(&mut Group, usize)) {
        for group in self.groups() {
            if let Some(peer) = group.members().rank_of(rank) {
                act(group, peer);
            }
        }
    }

    /// Records that the process of world rank `rank` has exited. Its goodbye may still arrive.
    pub fn process_ended(&mut self, rank: usize, why: &str) {
        self.with_member(rank, |group, peer| group.process_ended(peer, why));
    }

    /// Records that the link to world rank `rank` in group `number` could not be created.
    pub fn link_failed(&mut self, number: u32, rank: usize, why: &str) {
        if let Some(group) = self.group(number)
            && let Some(peer) = group.members().rank_of(rank)
        {
            group.link_failed(peer, why);
        }
    }

    /// Returns the first error of a failed group, with the group's members. Returns each error only
    /// once.
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

    /// Returns the next control message to send: the ID of its group, its receivers as world ranks,
    /// and its bytes.
    pub fn next_control(&mut self) -> Option<(u32, To, Vec<u8>)> {
        if let Some(next) = self.group_creation.outbox.pop_front() {
            return Some(next);
        }
        let groups = &mut self.groups;
        let (number, to, message, members) = groups.iter_mut().find_map(|(number, group)| {
            let (to, message) = group.next_control()?;
            Some((*number, to, encode(&message), group.members().clone()))
        })?;
        Some(match to {
            To::Rank(rank) => (number, To::Rank(members.world_rank(rank)), message),
            To::All if members.are_everyone() && self.group_creation.has_relay() => {
                (number, to, message)
            }
            To::All => {
                let group = self.group(number)?;
                let is_meant =
                    |rank: &usize| *rank != group.rank() && !group.session.has_left(*rank);
                let others: Vec<_> = (0..members.count()).filter(is_meant).collect();
                let others = others.into_iter();
                let each = |rank| (number, To::Rank(members.world_rank(rank)), message.clone());
                let outbox = &mut self.group_creation.outbox;
                outbox.extend(others.map(each));
                return self.next_control();
            }
        })
    }
}

#[cfg(test)]
mod tests;
