//! In which calls the threads of this process are blocked, as its peers are told, and the warning
//! of a call that waits for long.
//!
//! *May import* what the room may.

use super::group::{Group, Order};
use super::{Engine, Ticket};
use crate::protocol::message::Wait;
use std::time::Duration;

/// For so many blocked threads there is room beforehand.
const BLOCKED_AT_ONCE: usize = 8;

/// The blocked threads of this process, and its warnings.
#[derive(Default)]
pub(super) struct Waits {
    /// Each with what it waits for.
    blocked: Vec<(u64, Ticket)>,
    /// After how many calls the last warning was given.
    warned_at: Option<u64>,
    warning: Option<String>,
    /// What groups that come are told.
    warns_after: Option<Duration>,
}

impl Waits {
    pub(super) fn prepare(&mut self, number: u32, group: &mut Group) {
        // So that a call which waits for long allocates nothing.
        self.blocked.reserve(BLOCKED_AT_ONCE);
        group.session.set_group(number);
        if let Some(after) = self.warns_after {
            group.alarm.after = after;
        }
    }
}

impl Engine {
    /// From now on the process warns of calls that have waited so long; never, if that is zero.
    pub fn warn_after(&mut self, time: Duration) {
        self.waits.warns_after = Some(time);
        self.groups().for_each(|group| group.alarm.after = time);
    }

    /// Thread number `thread` waits for an operation, or no longer does.
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

    /// A warning that the program's user is to be shown.
    pub fn take_warning(&mut self) -> Option<String> {
        self.waits.warning.take()
    }

    /// Time has passed over the groups: of their warnings one is given until the next call.
    pub(super) fn look_at_alarms(&mut self) {
        let made = |(_, group): &(u32, Group)| {
            let (collectives, messages) = group.session.calls_made();
            collectives.wrapping_add(messages)
        };
        let epoch = self.groups.iter().map(made).fold(0, u64::wrapping_add);
        for (_, group) in &mut self.groups {
            if let Some(line) = group.alarm.line.take()
                && self.waits.warned_at != Some(epoch)
            {
                self.waits.warned_at = Some(epoch);
                self.waits.warning = Some(line);
            }
        }
    }

    /// The wait of the thread that calls group `number`, if it is blocked in any group, and those
    /// that it hangs on. The first call is expected from the only thread that has made calls; of
    /// several, any one may be about to make it.
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

    /// The thread that has made calls, if there is one and no other.
    fn only_caller(&self) -> Option<u64> {
        let callers = self.groups.iter().map(|(_, group)| group.caller);
        let blocked = self.waits.blocked.iter().map(|(thread, _)| *thread);
        let mut known = callers.filter(|caller| *caller > 0).chain(blocked);
        let one = known.next()?;
        known.all(|other| other == one).then_some(one)
    }
}

impl Group {
    /// A thread of this process makes a call.
    #[inline]
    pub fn called_by(&mut self, thread: u64) {
        self.caller = thread;
    }

    /// From now on messages call the communicator so.
    pub fn rename(&mut self, name: String) {
        self.session.rename(name);
    }

    /// What the program calls the communicator.
    #[must_use]
    pub fn title(&self) -> Option<&str> {
        self.session.title()
    }

    /// The wait of an operation that is under way, and those that it hangs on.
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
