//! Records which calls block threads of this process, so that the process can answer peers.
//! Collects the events about calls that have been waiting for a long time.
//!
//! *May import* the same modules as its parent.

use super::group::{Group, Order};
use super::{Engine, Ticket};
use crate::event::Event;
use crate::protocol::message::Wait;
use std::time::Duration;

/// Number of blocked threads for which memory is reserved.
const BLOCKED_AT_ONCE: usize = 8;

/// The blocked threads of this process, and the events about its waits.
#[derive(Default)]
pub(super) struct Waits {
    /// Blocked threads, each with the operation that it is waiting for.
    blocked: Vec<(u64, Ticket)>,
    /// Number of calls that the program had made when the last warning was given.
    warned_at: Option<u64>,
    stall: Option<Event>,
    /// The threshold for stall warnings in groups that are added later; `None` for the default.
    warns_after: Option<Duration>,
}

impl Waits {
    pub(super) fn prepare(&mut self, number: u32, group: &mut Group) {
        // Reserve memory now, so that nothing is allocated when a thread blocks.
        self.blocked.reserve(BLOCKED_AT_ONCE);
        group.session.set_group(number);
        if let Some(after) = self.warns_after {
            group.wait_events.warns_after = after;
        }
    }
}

impl Engine {
    /// Sets how long a call must wait before the process warns about it. Zero disables warnings.
    pub fn set_stall_warning(&mut self, time: Duration) {
        self.waits.warns_after = Some(time);
        self.groups()
            .for_each(|group| group.wait_events.warns_after = time);
    }

    /// Records whether the thread with the ID `thread` is waiting for an operation.
    #[inline]
    pub fn waits_in(&mut self, thread: u64, ticket: Ticket, waits: bool) {
        let blocked = &mut self.waits.blocked;
        let known = blocked.iter().position(|one| *one == (thread, ticket));
        match known {
            None if waits => blocked.push((thread, ticket)),
            Some(at) if !waits => drop(blocked.swap_remove(at)),
            _ => {}
        }
    }

    /// Removes and returns the next event about a wait.
    pub(crate) fn take_event(&mut self) -> Option<Event> {
        let mut groups = self.groups.iter_mut();
        let slow = || groups.find_map(|(_, group)| group.wait_events.slow.take());
        self.waits.stall.take().or_else(slow)
    }

    /// Collects the groups' stall warnings. Keeps at most one until the program makes another call.
    pub(super) fn collect_stalls(&mut self) {
        let made = |(_, group): &(u32, Group)| {
            let (collectives, messages) = group.session.calls_made();
            collectives.wrapping_add(messages)
        };
        let epoch = self.groups.iter().map(made).fold(0, u64::wrapping_add);
        for (_, group) in &mut self.groups {
            if let Some(stall) = group.wait_events.stall.take()
                && self.waits.warned_at != Some(epoch)
            {
                self.waits.warned_at = Some(epoch);
                self.waits.stall = Some(stall);
            }
        }
    }

    /// Returns what the thread that makes calls in group `number` is waiting for, followed by the
    /// waits that this wait depends on. The result is empty if the thread is not blocked in any
    /// group.
    ///
    /// Before the group's first call, this method assumes that the only thread that has made calls
    /// in any group will also make the first call. If several threads have made calls, any of them
    /// may make the first call, so the result is empty.
    pub(super) fn waits(&self, number: u32) -> Vec<Wait> {
        let find = |number| {
            let mut groups = self.groups.iter();
            groups.find_map(|(each, group)| (*each == number).then_some(group))
        };
        let caller = match find(number).map_or(0, |group| group.caller) {
            0 => self.only_caller(),
            caller => Some(caller),
        };
        let blocked = self.waits.blocked.iter();
        let mut blocked = blocked.filter(|(thread, _)| Some(*thread) == caller);
        let waits = blocked.find_map(|(_, ticket)| find(ticket.group)?.waits(*ticket));
        waits.unwrap_or_default()
    }

    /// Returns the ID of the thread that has made calls, if there is exactly one such thread.
    fn only_caller(&self) -> Option<u64> {
        let callers = self.groups.iter().map(|(_, group)| group.caller);
        let blocked = self.waits.blocked.iter().map(|(thread, _)| *thread);
        let mut known = callers.filter(|caller| *caller > 0).chain(blocked);
        let one = known.next()?;
        known.all(|other| other == one).then_some(one)
    }
}

impl Group {
    /// Records that the thread with the ID `thread` makes a call.
    #[inline]
    pub fn called_by(&mut self, thread: u64) {
        self.caller = thread;
    }

    /// Sets the name that messages use for the communicator.
    pub fn rename(&mut self, name: String) {
        self.session.set_title(name);
    }

    /// Returns the name that the program has given the communicator.
    #[must_use]
    pub fn title(&self) -> Option<&str> {
        self.session.title()
    }

    /// Returns what an operation in flight is waiting for, followed by the waits that this wait
    /// depends on.
    fn waits(&self, ticket: Ticket) -> Option<Vec<Wait>> {
        let queue = match ticket.order {
            Order::Collectives => &self.collectives,
            Order::Pairs => &self.pairs,
        };
        let slot = queue.slots.get(ticket.slot)?;
        let call = slot.call().filter(|_| slot.result.is_none())?;
        Some(self.session.waits(&call, &slot.awaited(&self.session)))
    }
}
