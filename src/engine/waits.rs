//! Records which calls block threads of this process, so that it can answer peers, and warns about
//! calls that wait for a long time.
//!
//! *May import* the same modules as its parent.

use super::group::{Group, Order};
use super::{Engine, Ticket};
use crate::protocol::message::Wait;
use std::time::Duration;

/// Number of blocked threads for which memory is reserved.
const BLOCKED_AT_ONCE: usize = 8;

/// The blocked threads of this process, and its warnings about calls.
#[derive(Default)]
pub(super) struct Waits {
    /// Blocked threads, each with the operation that it is waiting for.
    blocked: Vec<(u64, Ticket)>,
    /// Number of calls that had been made when the last warning was given.
    warned_at: Option<u64>,
    warning: Option<String>,
    /// The setting that applies to groups that are added later.
    warns_after: Option<Duration>,
}

impl Waits {
    pub(super) fn prepare(&mut self, number: u32, group: &mut Group) {
        // Reserve memory now, so that a call that waits for a long time allocates nothing.
        self.blocked.reserve(BLOCKED_AT_ONCE);
        group.session.set_group(number);
        if let Some(after) = self.warns_after {
            group.stall_warning.after = after;
        }
    }
}

impl Engine {
    /// Sets the time after which the process warns about a waiting call. Zero disables warnings.
    pub fn set_stall_warning(&mut self, time: Duration) {
        self.waits.warns_after = Some(time);
        self.groups()
            .for_each(|group| group.stall_warning.after = time);
    }

    /// Records whether thread number `thread` is waiting for an operation.
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

    /// Takes the warning that must be shown to the user, if any.
    pub fn take_warning(&mut self) -> Option<String> {
        self.waits.warning.take()
    }

    /// Collects the warnings of the groups. Passes on at most one warning until the program makes
    /// another call.
    pub(super) fn collect_warnings(&mut self) {
        let made = |(_, group): &(u32, Group)| {
            let (collectives, messages) = group.session.calls_made();
            collectives.wrapping_add(messages)
        };
        let epoch = self.groups.iter().map(made).fold(0, u64::wrapping_add);
        for (_, group) in &mut self.groups {
            if let Some(line) = group.stall_warning.line.take()
                && self.waits.warned_at != Some(epoch)
            {
                self.waits.warned_at = Some(epoch);
                self.waits.warning = Some(line);
            }
        }
    }

    /// Returns the wait of the thread that makes calls in group `number`, followed by the waits
    /// that it depends on. The result is empty if the thread is not blocked in any group.
    ///
    /// Before the group's first call, this is the only thread that has made calls. If several
    /// threads have made calls, any of them may make the first call, so the result is empty.
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

    /// Returns the thread that has made calls, if exactly one thread has.
    fn only_caller(&self) -> Option<u64> {
        let callers = self.groups.iter().map(|(_, group)| group.caller);
        let blocked = self.waits.blocked.iter().map(|(thread, _)| *thread);
        let mut known = callers.filter(|caller| *caller > 0).chain(blocked);
        let one = known.next()?;
        known.all(|other| other == one).then_some(one)
    }
}

impl Group {
    /// Records that thread number `thread` makes a call.
    #[inline]
    pub fn called_by(&mut self, thread: u64) {
        self.caller = thread;
    }

    /// Sets the name that messages use for the communicator.
    pub fn rename(&mut self, name: String) {
        self.session.rename(name);
    }

    /// Returns the name that the program has given the communicator.
    #[must_use]
    pub fn title(&self) -> Option<&str> {
        self.session.title()
    }

    /// Returns the wait of an operation in flight, followed by the waits that it depends on.
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
