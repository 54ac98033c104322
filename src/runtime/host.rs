//! What a rank lives on: a process among others, or the simulator.

use super::foreign::Foreign;
use crate::engine::log::Clock;
use crate::engine::medium::host::Links;
use crate::error::{Error, Result};
use crate::limits::{DEVICE_LOOKS, DEVICE_SLEEP, IDLE_SLEEP};
use crate::protocol::members::Members;
use crate::protocol::session::To;
use std::os::fd::OwnedFd;
use std::task::Waker;
use std::time::Duration;

/// How the host spent the time it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// Spun, or let other threads run.
    Briefly,
    /// Slept; time has passed.
    Asleep,
}

/// The world around a runtime.
pub(crate) trait Host: Send + Sync {
    /// Time since some fixed moment; never goes back.
    fn now(&self) -> Duration;

    /// The clock of [`Host::now`], to be kept.
    fn clock(&self) -> Clock;

    /// Nothing moved in the last `idle_passes` passes: spin, yield or sleep until something may, or
    /// for `at_most`.
    fn give_way(&self, idle_passes: u32, at_most: Duration) -> Waited;

    /// A call that runs step by step, with the engine locked, found nothing `fruitless` times in a
    /// row: spins or yields, or returns false once the spin budget is used up and the call is to
    /// unlock the engine.
    fn spin(&self, _fruitless: u32) -> bool {
        false
    }

    /// As [`Host::give_way`] while an operation waits for a device, which wakes no thread.
    fn give_way_to_device(&self, idle_passes: u32) -> Waited {
        if idle_passes <= DEVICE_LOOKS {
            return self.give_way(idle_passes, IDLE_SLEEP);
        }
        std::thread::sleep(DEVICE_SLEEP);
        Waited::Asleep
    }

    /// Between two looks of a thread, without the token, at what a device does.
    fn await_device(&self, looks: u32) {
        match looks <= DEVICE_LOOKS {
            true => std::thread::yield_now(),
            false => std::thread::sleep(DEVICE_SLEEP),
        }
    }

    /// Shows the program's user one line, without waiting for a reader. In virtual time no user
    /// waits.
    fn warn(&self, _line: String) {}

    /// Whether the program's user can interrupt a call.
    fn has_interrupt(&self) -> bool {
        false
    }

    /// Runs code of the program. Why this thread, which waits in a call, should not wait any
    /// longer: the program's user has interrupted it.
    fn interrupted(&self) -> Option<Error> {
        None
    }

    /// Ends a sleep in `give_way` early.
    fn wake(&self);

    /// Disarms the doorbell: a thread of this process polls, so peers need not wake it.
    fn disarm(&self) {}

    /// Arms the doorbell: the polling thread is about to sleep with operations in flight, so peers
    /// must wake it. Returns true if it was not armed before; the caller must then poll once more
    /// to catch anything sent in between.
    fn arm(&self) -> bool {
        false
    }

    /// Operations are under way, and the caller goes on without polling them. The background thread
    /// is woken if it does not wait for what they need, or is to look `at_once`.
    fn background_work(&self, at_once: bool);

    /// Runs `code` on a thread that is neither in a call nor the control thread. A host without
    /// such a thread runs it here.
    fn run_apart(&self, _code: Foreign) {}

    /// A polling thread has found nothing to do for some time: looks for peers that are cut off.
    fn find_cuts(&self) {}

    /// A task waits for an operation, without a thread that polls. A host without a background
    /// thread lets something happen now, and rings `waker` for the next look.
    fn await_in_task(&self, _waker: &Waker) {
        self.background_work(false);
    }

    /// A group's links, for collectives and for pairs, as its rank `rank` has them. In the groups
    /// that the join makes, ranks that share memory wait for each other, at most `at_most`; the
    /// links of other groups are opened where a program first needs them.
    ///
    /// # Errors
    /// Memory that was to be shared was not.
    fn links(
        &self,
        group: u32,
        rank: usize,
        members: &Members,
        at_most: Duration,
    ) -> Result<[Links; 2]>;

    /// This rank waits for a group of which it does not know the number, or no longer does: others
    /// may know it already, and open links.
    fn awaits_group(&self, _awaits: bool) {}

    /// There is no such group any more.
    fn forget(&self, _group: u32) {}

    /// The ranks of the world that share memory with this one, itself included, ascending.
    fn local_ranks(&self) -> Vec<usize> {
        Vec::new()
    }

    /// Hands a file to `others`, ranks of the world that share memory with this one, and returns
    /// what they hand, by rank, ascending. With a length, each is sealed memory of that length. All
    /// of them take part and wait for each other, at most `at_most`, and as long as it `goes_on`; a
    /// barrier stands between two exchanges of a group that have the same number, 0 to 2.
    ///
    /// # Errors
    /// A rank handed nothing, or something else.
    fn exchange(
        &self,
        _group_and_number: (u32, u32),
        _others: &[usize],
        _file: (&OwnedFd, Option<usize>),
        _at_most: Duration,
        _goes_on: &dyn Fn() -> bool,
    ) -> Result<Vec<(usize, OwnedFd)>> {
        Ok(Vec::new())
    }

    /// A group of `members` has failed with `error`, or could not be made: leaves a record of that
    /// for the launcher. The engine may be locked, and the program does not have the error yet.
    fn report(&self, _error: &Error, _members: &Members) {}

    /// Sends a control message to ranks of the world.
    fn send_control(&self, to: To, group: u32, payload: &[u8]);

    /// A control message that came: group, sender, bytes. Hosts with a control thread deliver
    /// theirs through `Runtime::control` instead.
    fn receive_control(&self) -> Option<(u32, usize, Vec<u8>)> {
        None
    }

    /// A rank whose control connection has broken, and why; with a control thread, likewise
    /// through `Runtime::control_lost`.
    fn next_lost(&self) -> Option<(usize, String)> {
        None
    }

    /// The last group has said its goodbye: sees that it is sent, and ends.
    fn close(&self) {}
}
