//! Decides which thread polls the engine and what the other threads wait for.
//!
//! *Purpose.* The engine's lock protects all operations, and a caller may advance its own call
//! while it holds the lock. Only the thread that holds the *token* polls repeatedly and sleeps
//! until a link is ready. A blocked caller takes the token and advances every operation of the
//! process until its own operation completes. Callers that find the token taken sleep until an
//! operation completes or the token is free. The [`background`] thread takes the token while
//! operations are in flight and no caller is blocked.
//!
//! - [`operations`] starts operations and waits for their completion.
//! - [`channels`] assigns numbers to the channels of groups.
//! - [`groups`] creates groups and the memory that their ranks share.
//! - [`locked`] defines the locked engine. [`user_code`] calls *user code*, which is code of the
//!   program that uses this library.
//! - [`host`] defines the environment of a rank, which is a [`process`] or the simulator.
//! - [`crowding`] decides whether a waiting rank may yield its core.
//! - [`local`] connects the ranks that share memory. These ranks wake each other through doorbells.
//! - [`fork_guard`] guards the runtime and rejects calls from forked children.
//!
//! *Invariants.* At most one thread holds the token. No call with a timeout waits forever, because
//! the polling thread checks the clock whenever it finds nothing to do, and the engine ends overdue
//! operations. User code never runs on a thread that holds the token or the engine's lock. Neither
//! a call nor the control thread waits for user code. The only exception is the interrupt callback,
//! which a waiting call runs itself.
//!
//! *May import* `engine`, `control`, `link`, `sys`, `protocol` and the base files.

#![forbid(unsafe_code)]

mod background;
mod channels;
pub(crate) mod crowding;
pub(crate) mod fork_guard;
mod groups;
pub(crate) mod host;
pub(crate) mod local;
mod locked;
mod operations;
pub(crate) mod process;
mod user_code;

use crate::engine::Engine;
use crate::engine::group::Group;
use crate::error::Error;
use crate::event::{Event, EventQueue};
use crate::limits::{BACKGROUND_PASSES, INTERRUPT_EVERY, WAITER_SLEEP_MAX};
use crate::protocol::group_creation::RELAY;
use crate::protocol::session::{Agreement, ITS_PROCESS_ENDED};
use host::{Host, Waited};
use locked::{Due, Locked, Watched};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;
use user_code::UserCodeGuard;

/// Number of idle passes between two checks of the clock while a polling thread spins.
const PASSES_PER_TICK: u32 = 64;

thread_local! {
    /// `true` while this thread is running the interrupt callback.
    static IN_INTERRUPT_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// The runtime of a process, or of a simulated rank.
pub(crate) struct Runtime {
    engine: Mutex<Watched>,
    /// Signaled when an operation ends and when the token becomes free.
    changed: Condvar,
    token: AtomicBool,
    /// Number of threads that are waiting for the engine's lock, or that have asked callers to
    /// yield the engine.
    others: AtomicUsize,
    /// Number of threads that are sleeping until `changed` is signaled.
    sleepers: AtomicUsize,
    unfinished: AtomicBool,
    host: Box<dyn Host>,
}

/// Returns the ID of this thread. IDs start at 1.
#[inline]
fn thread_number() -> u64 {
    static NUMBERS: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static NUMBER: Cell<u64> = const { Cell::new(0) };
    }
    if NUMBER.get() == 0 {
        NUMBER.set(NUMBERS.fetch_add(1, Ordering::Relaxed) + 1);
    }
    NUMBER.get()
}

/// Represents possession of the token, and frees the token when it is dropped.
struct TokenGuard<'a>(&'a Runtime);

impl Drop for TokenGuard<'_> {
    fn drop(&mut self) {
        // A sleeper increments `sleepers` and then reads the token. This thread clears the token
        // and then reads `sleepers`. With sequential consistency, at least one of the two threads
        // sees the other's write.
        self.0.token.store(false, Ordering::SeqCst);
        user_code::release();
        if self.0.sleepers.load(Ordering::SeqCst) > 0 {
            // A thread that saw the token taken holds the engine's lock until it sleeps on
            // `changed`. So acquire the lock before notifying, so that the thread does not miss the
            // notification.
            let due = self.0.lock().unlock();
            self.0.changed.notify_all();
            drop(due);
        }
    }
}

impl Runtime {
    pub(crate) fn new(host: Box<dyn Host>) -> Self {
        Self {
            engine: Mutex::default(),
            changed: Condvar::new(),
            token: AtomicBool::new(false),
            others: AtomicUsize::new(0),
            sleepers: AtomicUsize::new(0),
            unfinished: AtomicBool::new(false),
            host,
        }
    }

    fn lock(&self) -> Locked<'_> {
        let engine = self.engine.lock();
        Locked::new(engine.unwrap_or_else(PoisonError::into_inner), &*self.host)
    }

    /// Locks the engine. If another thread holds the lock, asks that thread to yield between
    /// passes.
    fn lock_while_polled(&self) -> Locked<'_> {
        if let Ok(engine) = self.engine.try_lock() {
            return Locked::new(engine, &*self.host);
        }
        self.others.fetch_add(1, Ordering::AcqRel);
        let engine = self.lock();
        self.others.fetch_sub(1, Ordering::AcqRel);
        engine
    }

    fn take_token(&self) -> Option<TokenGuard<'_>> {
        let is_free = !self.token.load(Ordering::Relaxed);
        let taken =
            (is_free && !self.token.swap(true, Ordering::Acquire)).then(|| TokenGuard(self));
        if taken.is_some() {
            user_code::hold();
            self.host.disarm();
        }
        taken
    }

    /// Calls `act` on a group. Returns `None` if the group no longer exists.
    pub(crate) fn with_group<R>(&self, group: u32, act: impl FnOnce(&mut Group) -> R) -> Option<R> {
        self.lock_while_polled().group(group).map(act)
    }

    /// Waits for the agreed mark of a group that has failed. Returns `None` if no mark can be
    /// agreed on, or if the mark does not arrive within `at_most`.
    pub(crate) fn agreed_mark(&self, group: u32, at_most: Duration) -> Option<u64> {
        let end = self.host.now().saturating_add(at_most);
        self.wait_for(|engine| {
            let agreement = engine.group(group).map(|group| group.agreement());
            match agreement {
                Some(Agreement::Reached(number)) => Some(Some(number)),
                Some(Agreement::Pending) if self.host.now() < end => None,
                Some(Agreement::Pending | Agreement::Unreachable) | None => Some(None),
            }
        })
    }

    /// Sets how long a call must wait before a warning about it is shown. Zero disables warnings.
    pub(crate) fn set_stall_warning(&self, time: Duration) {
        self.lock_while_polled().set_stall_warning(time);
    }

    /// Records `number` as this rank's mark in a group.
    pub(crate) fn mark(&self, group: u32, number: u64) {
        if let Some(group) = self.lock_while_polled().group(group) {
            group.mark(number);
        }
    }

    /// Fails the group with `cause`, an error from outside the group.
    pub(crate) fn fail(&self, group: u32, cause: &Error) {
        self.notify_engine(|engine| {
            if let Some(group) = engine.group(group) {
                group.give_up(cause.clone());
            }
        });
    }

    /// Waits until `look` returns a value. Polls the engine meanwhile, unless another thread is
    /// polling.
    fn wait_for<R>(&self, mut look: impl FnMut(&mut Engine) -> Option<R>) -> R {
        let mut has_waited = false;
        // The time before which this thread does not run the interrupt callback again.
        let mut next_interrupt_check = Duration::ZERO;
        loop {
            let outcome = match self.take_token() {
                Some(token) => self.poll_until(token, next_interrupt_check, &mut look),
                None => self.sleep_until(&mut look, &mut has_waited),
            };
            if let Some(outcome) = outcome {
                return outcome;
            }
            if self.should_check_interrupt(next_interrupt_check) {
                self.handle_interrupt();
                // Count from the end of the callback, because the callback may take a long time.
                next_interrupt_check = self.host.now() + INTERRUPT_EVERY;
            }
        }
    }

    /// Sleeps while another thread polls. Returns the value from `look`, or `None` if `look`
    /// returns no value after a wake-up.
    fn sleep_until<R>(
        &self,
        look: &mut impl FnMut(&mut Engine) -> Option<R>,
        has_waited: &mut bool,
    ) -> Option<R> {
        let mut engine = self.lock_while_polled();
        let mut outcome = look(&mut engine);
        if outcome.is_none() {
            if !std::mem::replace(has_waited, true) {
                // The polling thread may have gone to sleep before this thread's operation was
                // started. One wake-up is sufficient, because later sleeps take the operation into
                // account.
                self.host.wake();
            }
            self.sleepers.fetch_add(1, Ordering::SeqCst);
            if self.token.load(Ordering::SeqCst) {
                engine.wait(&self.changed, WAITER_SLEEP_MAX);
                outcome = look(&mut engine);
            }
            self.sleepers.fetch_sub(1, Ordering::SeqCst);
        }
        outcome
    }

    /// Polls until `look` returns a value. Returns `None` if user code or an interrupt check is
    /// due, because this thread must not run user code while it holds the token.
    fn poll_until<R>(
        &self,
        token: TokenGuard<'_>,
        next_interrupt_check: Duration,
        look: &mut impl FnMut(&mut Engine) -> Option<R>,
    ) -> Option<R> {
        let mut idle_passes = 0;
        let mut waited = Waited::Briefly;
        loop {
            let mut engine = self.lock_while_polled();
            self.receive_controls(&mut engine);
            let advanced = engine.poll();
            if !advanced && (idle_passes % PASSES_PER_TICK == 1 || waited == Waited::Asleep) {
                engine.tick(self.host.now());
            }
            self.send_controls(&mut engine);
            let outcome = look(&mut engine);
            let has_ended = engine.has_unstamped();
            engine.stamp(|| self.host.now());
            if outcome.is_some() || engine.is_due() {
                self.release_token(engine, token);
                return outcome;
            }
            let waits_for_device = !advanced && engine.waits_for_device();
            let at_most = engine.sleep_max(|| self.host.now());
            let event = engine.take_event();
            drop(engine);
            self.push_event(event);
            self.yield_engine(has_ended);
            if advanced {
                self.host.disarm();
                idle_passes = 0;
                waited = Waited::Briefly;
            } else {
                idle_passes = idle_passes.saturating_add(1);
                waited = match waits_for_device {
                    true => self.host.pause_for_device(idle_passes),
                    false => self.host.pause_polling(idle_passes, at_most),
                };
                if waited == Waited::Asleep && self.should_check_interrupt(next_interrupt_check) {
                    self.release_token(self.lock_while_polled(), token);
                    return None;
                }
            }
        }
    }

    /// Frees the token. From then on, the background thread advances the operations in flight. If
    /// nothing can be done now, this method arms the doorbell, so that a peer wakes the background
    /// thread. Otherwise, this method wakes it.
    fn release_token(&self, mut engine: Locked<'_>, token: TokenGuard<'_>) {
        let mut is_unfinished = engine.waits_for_device();
        if !engine.is_busy() {
            self.host.disarm();
        } else if !is_unfinished && self.host.arm() {
            // Poll again, because data may have arrived before the doorbell was armed.
            is_unfinished = engine.poll();
            engine.stamp(|| self.host.now());
            self.send_controls(&mut engine);
        }
        self.unfinished.store(is_unfinished, Ordering::Relaxed);
        let due = engine.unlock();
        drop(token);
        self.leave_to_background();
        drop(due);
    }

    /// Leaves operations in flight to the background thread, because this thread stops polling. The
    /// background thread may have found the token taken in the meantime, so it must be notified.
    fn leave_to_background(&self) {
        if !self.token.load(Ordering::SeqCst) && self.lock_while_polled().is_busy() {
            self.host.background_work(self.is_unfinished());
        }
    }

    /// Returns `true` if this thread must now run the interrupt callback. It does not run the
    /// callback before `next_interrupt_check`, or in calls that the callback itself makes.
    fn should_check_interrupt(&self, next_interrupt_check: Duration) -> bool {
        self.host.has_interrupt()
            && !IN_INTERRUPT_CALLBACK.get()
            && self.host.now() >= next_interrupt_check
    }

    /// Runs the interrupt callback. If the user has interrupted this thread, fails all groups and
    /// thus ends all calls. This is necessary because the caller gets its memory back only when its
    /// call has ended.
    fn handle_interrupt(&self) {
        IN_INTERRUPT_CALLBACK.set(true);
        let cause = user_code::call(|| self.host.interrupted()).flatten();
        IN_INTERRUPT_CALLBACK.set(false);
        if let Some(cause) = cause {
            self.give_up(&cause);
        }
    }

    /// Lets other threads run between two passes of the polling thread: threads that need the
    /// engine and, if an operation `has_ended`, threads that are waiting for an operation.
    fn yield_engine(&self, has_ended: bool) {
        if has_ended && self.sleepers.load(Ordering::Relaxed) > 0 {
            self.changed.notify_all();
        }
        if self.others.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now();
        }
    }

    /// Advances the operations in flight while no other thread polls. The calling thread has other
    /// duties, so this method returns after at most [`BACKGROUND_PASSES`] passes. Afterwards,
    /// [`Runtime::is_unfinished`] returns `true` if work is left.
    pub(crate) fn poll_in_background(&self) {
        if self.wants_poller() {
            self.host.close_unreachable();
        }
        drop(self.poll_passes());
    }

    /// Like [`Runtime::poll_in_background`], but returns the user code that is due.
    fn poll_passes(&self) -> Option<Due<'_>> {
        let token = self.take_token()?;
        let mut engine = self.lock_while_polled();
        let mut passes = 0;
        let mut is_unfinished = engine.poll();
        while is_unfinished && passes < BACKGROUND_PASSES {
            passes += 1;
            let has_ended = engine.has_unstamped();
            engine.stamp(|| self.host.now());
            self.send_controls(&mut engine);
            drop(engine);
            self.yield_engine(has_ended);
            engine = self.lock_while_polled();
            is_unfinished = engine.poll();
        }
        if engine.waits_for_device() {
            // A device does not wake any thread, so this thread sleeps briefly and checks again.
            if !is_unfinished {
                // Unlock the engine, so that callers can use it during the sleep.
                drop(engine);
                self.host.pause_for_device(u32::MAX);
                engine = self.lock_while_polled();
                is_unfinished = true;
            }
        } else if !is_unfinished && engine.is_busy() && self.host.arm() {
            is_unfinished = engine.poll();
        }
        engine.stamp(|| self.host.now());
        self.unfinished.store(is_unfinished, Ordering::Relaxed);
        engine.tick(self.host.now());
        self.send_controls(&mut engine);
        let event = engine.take_event();
        let due = engine.unlock();
        drop(token);
        self.push_event(event);
        due
    }

    /// Advances the operations in flight for at most [`BACKGROUND_PASSES`] passes, and leaves the
    /// remaining work to the background thread.
    fn advance(&self) {
        self.receive_controls(&mut self.lock_while_polled());
        let due = self.poll_passes();
        self.leave_to_background();
        drop(due);
    }

    /// Returns a guard that keeps this thread from running user code as long as the guard exists.
    /// Callers hold other locks while the guard exists.
    #[inline]
    pub(crate) fn forbid_user_code(&self) -> UserCodeGuard<'_> {
        user_code::hold();
        UserCodeGuard(self)
    }

    /// Returns the queue for the rank's events; `None` in virtual time.
    pub(crate) fn events(&self) -> Option<&EventQueue> {
        self.host.events()
    }

    fn push_event(&self, event: Option<Event>) {
        if let Some((event, events)) = event.zip(self.events()) {
            events.push(event);
        }
    }

    /// Waits until `is_so`, which depends on a device's stream, returns `true`, or until `at_most`
    /// has elapsed. Returns the last value of `is_so`. During the wait, the background thread
    /// advances operations in flight.
    pub(crate) fn wait_for_stream(&self, is_so: impl Fn() -> bool, at_most: Duration) -> bool {
        let end = self.host.now().saturating_add(at_most);
        let mut looks = 0u32;
        while !is_so() {
            if self.host.now() >= end {
                return is_so();
            }
            looks = looks.saturating_add(1);
            self.host.pause_for_device(looks);
        }
        true
    }

    /// Lets `time` pass without a call. During this time, advances operations in flight and answers
    /// peers.
    pub(crate) fn pass_time(&self, time: Duration) {
        let end = self.host.now().saturating_add(time);
        while self.host.now() < end {
            self.receive_controls(&mut self.lock_while_polled());
            self.poll_in_background();
            if !self.is_unfinished() {
                let left = end.saturating_sub(self.host.now());
                let at_most = self.lock_while_polled().sleep_max(|| self.host.now());
                self.host.pause_polling(u32::MAX, at_most.min(left));
            }
        }
    }

    /// Returns `true` if operations are in flight and no thread is polling.
    pub(crate) fn wants_poller(&self) -> bool {
        self.poll_due_in().is_some()
    }

    /// Returns the time within which a thread should poll. Returns `None` if no operation is in
    /// flight or a thread is polling.
    pub(crate) fn poll_due_in(&self) -> Option<Duration> {
        if self.token.load(Ordering::SeqCst) {
            return None;
        }
        let engine = self.lock_while_polled();
        engine.is_busy().then(|| match self.is_unfinished() {
            true => Duration::ZERO,
            false => engine.sleep_max(|| self.host.now()),
        })
    }

    /// Returns `true` if the last thread that polled stopped while work was left to do.
    fn is_unfinished(&self) -> bool {
        self.unfinished.load(Ordering::Relaxed)
    }

    /// Processes a control message.
    pub(crate) fn control(&self, group: u32, from: usize, payload: &[u8]) {
        self.notify_engine(|engine| engine.control(group, from, payload));
    }

    /// Processes the loss of the control connection to `rank`.
    pub(crate) fn control_lost(&self, rank: usize, why: &str) {
        self.notify_engine(|engine| engine.control_lost(rank, why));
    }

    /// Records that the process of `rank` has ended.
    pub(crate) fn process_ended(&self, rank: usize) {
        self.notify_engine(|engine| engine.process_ended(rank, ITS_PROCESS_ENDED));
    }

    /// Records that the data connection of a group to `rank` could not be established.
    pub(crate) fn link_failed(&self, group: u32, rank: usize, why: &str) {
        self.notify_engine(|engine| engine.link_failed(group, rank, why));
    }

    /// Fails all groups because this process cannot continue. See [`Engine::give_up`].
    pub(crate) fn give_up(&self, cause: &Error) {
        self.notify_engine(|engine| engine.give_up(cause));
    }

    /// Calls `what` on the engine and wakes the threads that are waiting for operations.
    fn notify_engine(&self, what: impl FnOnce(&mut Engine)) {
        let mut engine = self.lock_while_polled();
        what(&mut engine);
        self.send_controls(&mut engine);
        let due = engine.unlock();
        self.changed.notify_all();
        self.host.wake();
        drop(due);
    }

    /// Returns the current time on the clock of the [`Host`].
    pub(crate) fn now(&self) -> Duration {
        self.host.now()
    }

    /// Leaves a group. First waits until operations in flight have ended. If this rank is the
    /// coordinator of a failed group, also waits until it has announced the agreed mark. Finally
    /// sends the goodbye.
    ///
    /// Leaving the last group also closes the [`Host`]. Closing it only when the runtime is dropped
    /// would be too late: the control thread may keep the runtime alive for a moment longer, and
    /// the process may exit before then.
    pub(crate) fn leave(&self, number: u32, at_most: Duration) {
        self.finish(number, at_most);
        let mut engine = self.lock_while_polled();
        engine.leave_group(number);
        self.send_controls(&mut engine);
        let group = engine.remove_group(number);
        let was_last = engine.is_empty();
        if was_last && let Some(group) = &group {
            engine.leave(group.members().world_rank(group.rank()) == RELAY);
            self.send_controls(&mut engine);
        }
        drop(engine);
        self.host.forget(number);
        if was_last {
            self.host.close();
        }
        // Close the group's links only after the goodbye has been sent.
        drop(group);
    }

    /// Waits until nothing is in flight in a group. A call that has a deadline may take until its
    /// deadline, and a call without one ends within `at_most`. For everything else, this method
    /// waits only for `at_most`.
    fn finish(&self, number: u32, at_most: Duration) {
        self.with_group(number, |group| group.impose_timeout(at_most));
        let end = self.host.now().saturating_add(at_most);
        self.wait_for(|engine| {
            let is_busy = engine.group(number).is_some_and(|group| {
                group.is_calling() || (group.is_busy() && self.host.now() < end)
            });
            (!is_busy).then_some(())
        });
    }

    /// If the [`Host`] has no control thread, passes its control messages, and its reports of lost
    /// ranks, to the engine.
    fn receive_controls(&self, engine: &mut Engine) {
        while let Some((group, from, payload)) = self.host.receive_control() {
            engine.control(group, from, &payload);
        }
        if let Some((rank, why)) = self.host.next_lost() {
            engine.control_lost(rank, &why);
        }
    }

    /// Sends the engine's control messages and reports its failures. Every piece of code that may
    /// end operations calls this method before it unlocks the engine, so that an error has been
    /// reported before the program receives it.
    fn send_controls(&self, engine: &mut Locked<'_>) {
        while let Some((error, members)) = engine.next_failure() {
            self.host.report(&error, &members);
        }
        while let Some((group, to, payload)) = engine.next_control() {
            self.host.send_control(to, group, &payload);
        }
    }
}

#[cfg(test)]
mod tests;
