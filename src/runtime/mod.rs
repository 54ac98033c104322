//! Which thread polls the engine, and what the others wait for.
//!
//! *Purpose.* Polling is a token. A blocked caller takes it and advances every operation of the
//! process until its own is done; callers that find it taken sleep until something has finished or
//! the token is free. The [`background`] thread takes it when operations are under way and no
//! caller is blocked. [`operations`] starts operations and waits for them; [`locked`] is the locked
//! engine; [`foreign`] calls code of the program. [`host`] is what a runtime lives on: a
//! [`process`] among others, or the simulator. [`groups`] makes groups and their memory. [`local`]
//! are the ranks that share this one's memory, and the doorbells by which ranks wake each other.
//! [`own`] is the door to a runtime, which is shut to forked children.
//!
//! *Invariants.* One thread polls at a time. No call waits for ever: the polling thread looks at
//! the clock, and the engine ends what is overdue. No code of the program runs on a thread that
//! holds the token or has the engine locked. Neither a call nor the control thread waits for code
//! of the program, except that a call asks whether its user has interrupted it.
//!
//! *May import* `engine`, `control`, `link`, `sys`, `protocol` and the base files.

#![forbid(unsafe_code)]

mod background;
mod channels;
mod foreign;
mod groups;
pub(crate) mod host;
pub(crate) mod local;
mod locked;
mod operations;
pub(crate) mod own;
pub(crate) mod process;

use crate::engine::Engine;
use crate::engine::group::Group;
use crate::error::Error;
use crate::limits::{BACKGROUND_PASSES, INTERRUPT_EVERY, POLLER_SLEEP};
use crate::protocol::founding::RELAY;
use crate::protocol::session::{Agreement, ITS_PROCESS_ENDED};
use foreign::Quiet;
use host::{Host, Waited};
use locked::{Due, Locked, Watched};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Idle passes between two looks at the clock, while a poller spins.
const PASSES_PER_TICK: u32 = 64;

thread_local! {
    /// Whether this thread is in the callback that says if its user has interrupted it.
    static IS_ASKING: Cell<bool> = const { Cell::new(false) };
}

/// One per process, or one per simulated rank.
pub(crate) struct Runtime {
    engine: Mutex<Watched>,
    /// Signalled when operations finish and when the token is free.
    changed: Condvar,
    token: AtomicBool,
    /// Threads that want the engine while another polls.
    others: AtomicUsize,
    /// Threads that sleep until `changed` is signalled.
    sleepers: AtomicUsize,
    unfinished: AtomicBool,
    host: Box<dyn Host>,
}

/// The number of this thread, from 1.
#[inline]
fn own_thread() -> u64 {
    static NUMBERS: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static NUMBER: Cell<u64> = const { Cell::new(0) };
    }
    if NUMBER.get() == 0 {
        NUMBER.set(NUMBERS.fetch_add(1, Ordering::Relaxed) + 1);
    }
    NUMBER.get()
}

/// Holding the token.
struct Polling<'a>(&'a Runtime);

impl Drop for Polling<'_> {
    fn drop(&mut self) {
        // In one order with what a sleeper does: it counts itself first and looks at the token
        // after.
        self.0.token.store(false, Ordering::SeqCst);
        foreign::release();
        if self.0.sleepers.load(Ordering::SeqCst) > 0 {
            // A thread that saw the token taken has the engine locked until it sleeps on `changed`.
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

    /// The engine, for a thread that may have to compete with a poller.
    fn lock_beside_poller(&self) -> Locked<'_> {
        if let Ok(engine) = self.engine.try_lock() {
            return Locked::new(engine, &*self.host);
        }
        self.others.fetch_add(1, Ordering::AcqRel);
        let engine = self.lock();
        self.others.fetch_sub(1, Ordering::AcqRel);
        engine
    }

    fn take_token(&self) -> Option<Polling<'_>> {
        let is_free = !self.token.load(Ordering::Relaxed);
        let taken = (is_free && !self.token.swap(true, Ordering::Acquire)).then(|| Polling(self));
        if taken.is_some() {
            foreign::hold();
            self.host.disarm();
        }
        taken
    }

    /// Does something to a group; nothing if it is gone.
    pub(crate) fn with_group<R>(&self, group: u32, act: impl FnOnce(&mut Group) -> R) -> Option<R> {
        self.lock_beside_poller().group(group).map(act)
    }

    /// Waits for the agreed mark of a group that has failed; `None` if there is to be none, or it
    /// does not come in time.
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

    /// From now on calls that have waited so long are warned of; never, if that is zero.
    pub(crate) fn warn_after(&self, time: Duration) {
        self.lock_beside_poller().warn_after(time);
    }

    /// This rank has completed everything up to `number`.
    pub(crate) fn mark(&self, group: u32, number: u64) {
        if let Some(group) = self.lock_beside_poller().group(group) {
            group.mark(number);
        }
    }

    /// This rank gives up, for a reason of its own.
    pub(crate) fn fail(&self, group: u32, cause: &Error) {
        self.tell(|engine| {
            if let Some(group) = engine.group(group) {
                group.give_up(cause.clone());
            }
        });
    }

    /// Polls, or lets poll, until `look` sees what it looks for.
    fn wait_for<R>(&self, mut look: impl FnMut(&mut Engine) -> Option<R>) -> R {
        let mut has_waited = false;
        // From when on this thread is to ask whether the user has interrupted it.
        let mut heeds_from = Duration::ZERO;
        loop {
            let outcome = match self.take_token() {
                Some(token) => self.poll_until(token, heeds_from, &mut look),
                None => self.sleep_until(&mut look, &mut has_waited),
            };
            if let Some(outcome) = outcome {
                return outcome;
            }
            if self.is_to_heed(heeds_from) {
                self.heed_interrupt();
                // Counted from its end: what it called may have taken long.
                heeds_from = self.host.now() + INTERRUPT_EVERY;
            }
        }
    }

    /// Sleeps beside the polling thread until `look` sees what it looks for, or `None` once there
    /// was something to look at.
    fn sleep_until<R>(
        &self,
        look: &mut impl FnMut(&mut Engine) -> Option<R>,
        has_waited: &mut bool,
    ) -> Option<R> {
        let mut engine = self.lock_beside_poller();
        let mut outcome = look(&mut engine);
        if outcome.is_none() {
            if !std::mem::replace(has_waited, true) {
                // The polling thread may sleep, and has not seen what this one waits for.
                self.host.wake();
            }
            self.sleepers.fetch_add(1, Ordering::SeqCst);
            if self.token.load(Ordering::SeqCst) {
                engine.wait(&self.changed, POLLER_SLEEP);
                outcome = look(&mut engine);
            }
            self.sleepers.fetch_sub(1, Ordering::SeqCst);
        }
        outcome
    }

    /// Polls until `look` sees what it looks for, or returns `None` when code of the program is to
    /// be run, which the thread may not do while it has the token.
    fn poll_until<R>(
        &self,
        token: Polling<'_>,
        heeds_from: Duration,
        look: &mut impl FnMut(&mut Engine) -> Option<R>,
    ) -> Option<R> {
        let mut idle_passes = 0;
        let mut waited = Waited::Briefly;
        loop {
            let mut engine = self.lock_beside_poller();
            self.hear(&mut engine);
            let advanced = engine.poll();
            if !advanced && (idle_passes % PASSES_PER_TICK == 1 || waited == Waited::Asleep) {
                engine.tick(self.host.now());
            }
            self.send_controls(&mut engine);
            let outcome = look(&mut engine);
            let has_ended = engine.has_unstamped();
            engine.stamp(|| self.host.now());
            if outcome.is_some() || engine.is_due() {
                self.hand_over(engine, token);
                return outcome;
            }
            let awaits_gate = !advanced && engine.awaits_gate();
            let at_most = engine.may_sleep(|| self.host.now());
            let warning = engine.take_warning();
            drop(engine);
            self.warn(warning);
            self.let_others_look(has_ended);
            if advanced {
                self.host.disarm();
                idle_passes = 0;
                waited = Waited::Briefly;
            } else {
                idle_passes = idle_passes.saturating_add(1);
                waited = match awaits_gate {
                    true => self.host.give_way_to_device(idle_passes),
                    false => self.host.give_way(idle_passes, at_most),
                };
                if waited == Waited::Asleep && self.is_to_heed(heeds_from) {
                    self.hand_over(self.lock_beside_poller(), token);
                    return None;
                }
            }
        }
    }

    /// Gives the token back. What is left under way is the background thread's: its peers wake it,
    /// or this thread does if it may have to do something first.
    fn hand_over(&self, mut engine: Locked<'_>, token: Polling<'_>) {
        let mut is_unfinished = engine.awaits_gate();
        if !engine.is_busy() {
            self.host.disarm();
        } else if !is_unfinished && self.host.arm() {
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

    /// This thread goes on to something else: the background thread, which may have found the token
    /// taken meanwhile, looks after what is under way.
    fn leave_to_background(&self) {
        if !self.token.load(Ordering::SeqCst) && self.lock_beside_poller().is_busy() {
            self.host.background_work(self.is_unfinished());
        }
    }

    /// Whether a thread that is to ask from `heeds_from` on if its user has interrupted it asks
    /// now. A call that the callback itself makes does not ask.
    fn is_to_heed(&self, heeds_from: Duration) -> bool {
        self.host.has_interrupt() && !IS_ASKING.get() && self.host.now() >= heeds_from
    }

    /// A caller whose user has interrupted it gives up: the call's memory is the caller's again
    /// only when the call has ended, and it ends when all of them do.
    fn heed_interrupt(&self) {
        IS_ASKING.set(true);
        let cause = foreign::call(|| self.host.interrupted()).flatten();
        IS_ASKING.set(false);
        if let Some(cause) = cause {
            self.give_up(&cause);
        }
    }

    /// The polling thread calls this between two passes: it lets the threads run that wait for the
    /// engine, and those that wait for the end of an operation if one `has_ended`.
    fn let_others_look(&self, has_ended: bool) {
        if has_ended && self.sleepers.load(Ordering::Relaxed) > 0 {
            self.changed.notify_all();
        }
        if self.others.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now();
        }
    }

    /// For a thread in the background: advances the operations under way while no other thread
    /// polls. It returns after [`BACKGROUND_PASSES`] because the thread has other duties; then
    /// [`Runtime::is_unfinished`] says whether work is left.
    pub(crate) fn poll_in_background(&self) {
        if self.wants_poller() {
            self.host.find_cuts();
        }
        drop(self.poll_for_now());
    }

    /// As [`Runtime::poll_in_background`]; returns what is to be run.
    fn poll_for_now(&self) -> Option<Due<'_>> {
        let token = self.take_token()?;
        let mut engine = self.lock_beside_poller();
        let mut passes = 0;
        let mut is_unfinished = engine.poll();
        while is_unfinished && passes < BACKGROUND_PASSES {
            passes += 1;
            let has_ended = engine.has_unstamped();
            engine.stamp(|| self.host.now());
            self.send_controls(&mut engine);
            drop(engine);
            self.let_others_look(has_ended);
            engine = self.lock_beside_poller();
            is_unfinished = engine.poll();
        }
        if engine.awaits_gate() {
            // A device wakes no thread: this one sleeps briefly and looks again.
            if !is_unfinished {
                // Callers have the engine meanwhile.
                drop(engine);
                self.host.give_way_to_device(u32::MAX);
                engine = self.lock_beside_poller();
                is_unfinished = true;
            }
        } else if !is_unfinished && engine.is_busy() && self.host.arm() {
            is_unfinished = engine.poll();
        }
        engine.stamp(|| self.host.now());
        self.unfinished.store(is_unfinished, Ordering::Relaxed);
        engine.tick(self.host.now());
        self.send_controls(&mut engine);
        let warning = engine.take_warning();
        let due = engine.unlock();
        drop(token);
        self.warn(warning);
        due
    }

    /// As [`Runtime::poll_in_background`], on a thread that goes on to something else.
    fn advance(&self) {
        self.hear(&mut self.lock_beside_poller());
        let due = self.poll_for_now();
        self.leave_to_background();
        drop(due);
    }

    /// While what is returned is there, this thread runs no code of the program: it has locks of
    /// its own.
    #[inline]
    pub(crate) fn keep_quiet(&self) -> Quiet<'_> {
        foreign::hold();
        Quiet(self)
    }

    /// Shows a warning; nothing waits until it is read.
    fn warn(&self, warning: Option<String>) {
        if let Some(line) = warning {
            self.host.warn(line);
        }
    }

    /// Waits until `is_so`, which a device's stream brings about, for `at_most`; says whether it
    /// is. What is under way goes on meanwhile in the background thread.
    pub(crate) fn wait_for_stream(&self, is_so: impl Fn() -> bool, at_most: Duration) -> bool {
        let end = self.host.now().saturating_add(at_most);
        let mut looks = 0u32;
        while !is_so() {
            if self.host.now() >= end {
                return is_so();
            }
            looks = looks.saturating_add(1);
            self.host.await_device(looks);
        }
        true
    }

    /// Lets time pass without a call; what is under way goes on, peers are answered.
    pub(crate) fn pass_time(&self, time: Duration) {
        let end = self.host.now().saturating_add(time);
        while self.host.now() < end {
            self.hear(&mut self.lock_beside_poller());
            self.poll_in_background();
            if !self.is_unfinished() {
                let left = end.saturating_sub(self.host.now());
                let at_most = self.lock_beside_poller().may_sleep(|| self.host.now());
                self.host.give_way(u32::MAX, at_most.min(left));
            }
        }
    }

    /// Whether operations are under way and no thread polls.
    pub(crate) fn wants_poller(&self) -> bool {
        self.wants_poller_within().is_some()
    }

    /// If operations are under way and no thread polls, in which time one should.
    pub(crate) fn wants_poller_within(&self) -> Option<Duration> {
        if self.token.load(Ordering::SeqCst) {
            return None;
        }
        let engine = self.lock_beside_poller();
        engine.is_busy().then(|| match self.is_unfinished() {
            true => Duration::ZERO,
            false => engine.may_sleep(|| self.host.now()),
        })
    }

    /// Whether the last turn in the background ended before its work did.
    fn is_unfinished(&self) -> bool {
        self.unfinished.load(Ordering::Relaxed)
    }

    /// A control message came.
    pub(crate) fn control(&self, group: u32, from: usize, payload: &[u8]) {
        self.tell(|engine| engine.control(group, from, payload));
    }

    /// The control connection of `rank` is gone.
    pub(crate) fn control_lost(&self, rank: usize, why: &str) {
        self.tell(|engine| engine.control_lost(rank, why));
    }

    /// The process of `rank` has ended.
    pub(crate) fn process_ended(&self, rank: usize) {
        self.tell(|engine| engine.process_ended(rank, ITS_PROCESS_ENDED));
    }

    /// No data connection of a group to `rank` could be made.
    pub(crate) fn link_failed(&self, group: u32, rank: usize, why: &str) {
        self.tell(|engine| engine.link_failed(group, rank, why));
    }

    /// This process cannot go on, for a reason of its own: see [`Engine::give_up`].
    pub(crate) fn give_up(&self, cause: &Error) {
        self.tell(|engine| engine.give_up(cause));
    }

    /// Tells the engine something, and wakes the threads that wait for it.
    fn tell(&self, what: impl FnOnce(&mut Engine)) {
        let mut engine = self.lock_beside_poller();
        what(&mut engine);
        self.send_controls(&mut engine);
        let due = engine.unlock();
        self.changed.notify_all();
        self.host.wake();
        drop(due);
    }

    /// The time on this host's clock.
    pub(crate) fn now(&self) -> Duration {
        self.host.now()
    }

    /// Ends the group: what is under way is finished (or fails by its deadline), and rank 0 tells
    /// the others the agreed mark after a failure; then goodbye.
    ///
    /// The last one ends the host's part too, here and now: the control thread may be holding this
    /// runtime for a moment, so its drop could come after the caller has left the process.
    pub(crate) fn leave(&self, number: u32, at_most: Duration) {
        self.finish(number, at_most);
        let mut engine = self.lock_beside_poller();
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
        // Its links close after the goodbye has gone.
        drop(group);
    }

    /// Finishes what is under way in a group: its calls by their deadlines, so that none is cut
    /// short, or by `at_most` if they have none; all else within `at_most`.
    fn finish(&self, number: u32, at_most: Duration) {
        self.with_group(number, |group| group.end_patience(at_most));
        let end = self.host.now().saturating_add(at_most);
        self.wait_for(|engine| {
            let is_busy = engine.group(number).is_some_and(|group| {
                group.is_calling() || (group.is_busy() && self.host.now() < end)
            });
            (!is_busy).then_some(())
        });
    }

    /// Takes in what a host without a control thread has for the engine.
    fn hear(&self, engine: &mut Engine) {
        while let Some((group, from, payload)) = self.host.receive_control() {
            engine.control(group, from, &payload);
        }
        if let Some((rank, why)) = self.host.next_lost() {
            engine.control_lost(rank, &why);
        }
    }

    /// Sends what the engine has to say. Every step that may end operations calls it before it
    /// unlocks the engine, so the record of an error is there before the program has the error.
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
