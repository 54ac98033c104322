//! Defines the environment of a rank, which is a process or the simulator.

use super::user_code::Foreign;
use crate::engine::log::Clock;
use crate::engine::medium::host::Links;
use crate::error::{Error, Result};
use crate::event::EventQueue;
use crate::limits::{DEVICE_LOOKS, DEVICE_SLEEP};
use crate::protocol::members::Members;
use crate::protocol::session::To;
use std::os::fd::OwnedFd;
use std::task::Waker;
use std::time::Duration;

/// The way in which [`Host::pause_polling`] waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// The thread spun or yielded.
    Briefly,
    /// The thread slept, so time has passed.
    Asleep,
}

/// The environment of a runtime.
pub(crate) trait Host: Send + Sync {
    /// Returns the time since a fixed instant. The time never decreases.
    fn now(&self) -> Duration;

    /// Returns a function that returns the same time as [`Host::now`].
    fn clock(&self) -> Clock;

    /// Spins, yields or sleeps after `idle_passes` passes in which nothing moved. A sleep lasts
    /// until something may move, but at most `at_most`. If `at_most` is less than
    /// [`REACTOR_SLEEP_MIN`](crate::limits::REACTOR_SLEEP_MIN), a host may sleep for all of it.
    fn pause_polling(&self, idle_passes: u32, at_most: Duration) -> Waited;

    /// Spins or yields after `fruitless` consecutive polls that moved nothing, in a call that runs
    /// step by step with the engine locked. Returns `false`, so that the call unlocks the engine,
    /// once the spin budget is used up or another thread needs the core.
    fn spin(&self, _fruitless: u32) -> bool {
        false
    }

    /// Like [`Host::pause_polling`], but used while an operation or a thread is waiting for a
    /// device, which does not wake any thread.
    fn pause_for_device(&self, idle_passes: u32) -> Waited {
        if idle_passes <= DEVICE_LOOKS {
            return self.pause_polling(idle_passes, DEVICE_SLEEP);
        }
        std::thread::sleep(DEVICE_SLEEP);
        Waited::Asleep
    }

    /// Returns the queue for the rank's events. Returns `None` in virtual time, where no events are
    /// emitted.
    fn events(&self) -> Option<&EventQueue> {
        None
    }

    /// Returns `true` if the program's user can interrupt a call.
    fn has_interrupt(&self) -> bool {
        false
    }

    /// Runs the interrupt callback, which is user code. Returns an error if the user has
    /// interrupted this thread. In that case, the thread must not wait any longer.
    fn interrupted(&self) -> Option<Error> {
        None
    }

    /// Ends a sleep in [`Host::pause_polling`] early, unless it is shorter than
    /// [`REACTOR_SLEEP_MIN`](crate::limits::REACTOR_SLEEP_MIN).
    fn wake(&self);

    /// Disarms the doorbell, because a thread of this process is polling and peers need not wake
    /// the process.
    fn disarm(&self) {}

    /// Arms the doorbell, because the polling thread is about to sleep while operations are in
    /// flight and peers must wake it. Returns `true` if the doorbell was not armed before. In that
    /// case, the caller must poll once more, because bytes may have been sent before the doorbell
    /// was armed.
    fn arm(&self) -> bool {
        false
    }

    /// Leaves operations in flight to the background thread, because the caller stops polling.
    /// Wakes that thread if it is not watching the data sockets, or if it must poll `at_once`.
    fn background_work(&self, at_once: bool);

    /// Runs `code` on a thread that is neither in a call nor the control thread. An implementation
    /// that has no such thread runs the code in place.
    fn run_in_background(&self, _code: Foreign) {}

    /// Shuts down connections to unreachable peers. This method is called when a polling thread has
    /// had nothing to do for some time.
    fn close_unreachable(&self) {}

    /// Ensures that an operation makes progress while a task is waiting for it, even though no
    /// thread polls. An implementation without a background thread lets time pass now and wakes
    /// `waker`, so that the task polls again.
    fn await_in_task(&self, _waker: &Waker) {
        self.background_work(false);
    }

    /// Returns the links of a group's rank `rank`: first the links for collectives, then the links
    /// for pairs. In groups that the join creates, ranks that share memory wait for each other, for
    /// at most `at_most`. The links of other groups open when a program first needs them.
    ///
    /// # Errors
    /// Returns an error if ranks that should share memory cannot do so.
    fn links(
        &self,
        group: u32,
        rank: usize,
        members: &Members,
        at_most: Duration,
    ) -> Result<[Links; 2]>;

    /// Records whether this rank is waiting for a group whose ID it does not know yet. Other ranks
    /// may already know the ID and open links.
    fn awaits_group(&self, _awaits: bool) {}

    /// Drops everything that belongs to a group that no longer exists.
    fn forget(&self, _group: u32) {}

    /// Returns the world ranks that share memory with this rank, including itself, in ascending
    /// order.
    fn local_ranks(&self) -> Vec<usize> {
        Vec::new()
    }

    /// Passes a file to `others`, which are world ranks that share memory with this rank. Returns
    /// the files that these ranks pass, in ascending order of ranks. If a length is given, each
    /// file must be sealed memory of that length.
    ///
    /// All of these ranks take part and wait for each other, for at most `at_most` and only while
    /// `goes_on` returns `true`. The number of an exchange is 0, 1 or 2. If a group has two
    /// exchanges with the same number, a barrier must separate them.
    ///
    /// # Errors
    /// Returns an error if a rank passes no file, or a file that does not meet these conditions.
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

    /// Reports to the launcher that a group of `members` has failed with `error` or could not be
    /// created. The engine may be locked, and the program has not received the error yet.
    fn report(&self, _error: &Error, _members: &Members) {}

    /// Sends a control message to world ranks.
    fn send_control(&self, to: To, group: u32, payload: &[u8]);

    /// Returns the next control message: the ID of its group, its sender and its bytes.
    /// Implementations that have a control thread deliver messages through `Runtime::control`
    /// instead.
    fn receive_control(&self) -> Option<(u32, usize, Vec<u8>)> {
        None
    }

    /// Returns the next rank whose control connection is lost, with the cause. Implementations that
    /// have a control thread call `Runtime::control_lost` instead.
    fn next_lost(&self) -> Option<(usize, String)> {
        None
    }

    /// Stops this rank's environment after it has left its last group. Makes sure that the goodbye
    /// is sent.
    fn close(&self) {}
}
