//! Who polls the engine.
//!
//! Polling is a token. A blocked caller takes it and advances every operation of the process until
//! its own is done; callers that find it taken sleep until something has finished or the token is
//! free. The control thread takes it when operations are under way and nobody is blocked.

use super::host::{Host, Waited};
use crate::engine::group::{ChannelKind, Group, Posting};
use crate::engine::{Engine, Ticket};
use crate::error::{Error, Result};
use crate::limits::POLLER_NAP;
use crate::sys::memory::Region;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Idle passes between two looks at the clock, while a poller spins.
const PASSES_PER_TICK: u32 = 64;

/// One per process, or one per simulated rank.
pub(crate) struct Runtime {
    engine: Mutex<Engine>,
    /// Signalled when operations finish and when the token is free.
    changed: Condvar,
    token: AtomicBool,
    /// Threads that want the engine or the token while another polls.
    others: AtomicUsize,
    host: Box<dyn Host>,
}

/// Holding the token.
struct Polling<'a>(&'a Runtime);

impl Drop for Polling<'_> {
    fn drop(&mut self) {
        // In one order with what `wait` does: it counts itself first and looks at the token after.
        self.0.token.store(false, Ordering::SeqCst);
        if self.0.others.load(Ordering::SeqCst) > 0 {
            // Who saw the token taken holds the engine until it sleeps, and then hears this.
            drop(self.0.lock());
            self.0.changed.notify_all();
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
            host,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The engine, for a thread that may have to compete with a poller.
    fn lock_beside_poller(&self) -> MutexGuard<'_, Engine> {
        if let Ok(engine) = self.engine.try_lock() {
            return engine;
        }
        self.others.fetch_add(1, Ordering::AcqRel);
        let engine = self.lock();
        self.others.fetch_sub(1, Ordering::AcqRel);
        engine
    }

    fn take_token(&self) -> Option<Polling<'_>> {
        let is_free = !self.token.load(Ordering::Relaxed);
        (is_free && !self.token.swap(true, Ordering::Acquire)).then_some(Polling(self))
    }

    pub(crate) fn add_group(&self, number: u32, group: Group) {
        self.lock_beside_poller().add_group(number, group);
    }

    /// Starts an operation and leaves it to whoever polls.
    pub(crate) fn post(
        &self,
        group: u32,
        channel: ChannelKind,
        posting: Posting,
    ) -> std::result::Result<Ticket, (Error, Region)> {
        let mut engine = self.lock_beside_poller();
        let ticket = engine.post(group, channel, posting)?;
        engine.poll();
        self.send_controls(&mut engine);
        drop(engine);
        self.let_others_look();
        self.host.background_work();
        Ok(ticket)
    }

    /// Runs an operation to its end.
    pub(crate) fn run(
        &self,
        group: u32,
        channel: ChannelKind,
        posting: Posting,
    ) -> (Region, Result<()>) {
        let ticket = match self.lock_beside_poller().post(group, channel, posting) {
            Ok(ticket) => ticket,
            Err((error, region)) => return (region, Err(error)),
        };
        self.wait(ticket)
    }

    /// Waits for an operation; returns by its deadline.
    pub(crate) fn wait(&self, ticket: Ticket) -> (Region, Result<()>) {
        loop {
            if let Some(token) = self.take_token() {
                let outcome = self.poll_until(ticket);
                drop(token);
                if self.lock_beside_poller().is_busy() {
                    self.host.background_work();
                }
                return outcome;
            }
            self.others.fetch_add(1, Ordering::SeqCst);
            let mut engine = self.lock();
            let mut outcome = engine.take(ticket);
            if outcome.is_none() && self.token.load(Ordering::SeqCst) {
                let woken = self.changed.wait_timeout(engine, POLLER_NAP);
                (engine, _) = woken.unwrap_or_else(PoisonError::into_inner);
                outcome = engine.take(ticket);
            }
            drop(engine);
            self.others.fetch_sub(1, Ordering::SeqCst);
            if let Some(outcome) = outcome {
                return outcome;
            }
        }
    }

    fn poll_until(&self, ticket: Ticket) -> (Region, Result<()>) {
        let mut idle_passes = 0;
        let mut waited = Waited::Briefly;
        loop {
            let mut engine = self.lock();
            self.hear(&mut engine);
            let advanced = engine.poll();
            if !advanced && (idle_passes % PASSES_PER_TICK == 1 || waited == Waited::Asleep) {
                engine.tick(self.host.now());
            }
            self.send_controls(&mut engine);
            if let Some(outcome) = engine.take(ticket) {
                return outcome;
            }
            drop(engine);
            self.let_others_look();
            if advanced {
                idle_passes = 0;
                waited = Waited::Briefly;
            } else {
                idle_passes = idle_passes.saturating_add(1);
                waited = self.host.give_way(idle_passes);
            }
        }
    }

    /// A poller, between two passes: lets in who waits for the engine or for an end.
    fn let_others_look(&self) {
        if self.others.load(Ordering::Relaxed) > 0 {
            self.changed.notify_all();
            std::thread::yield_now();
        }
    }

    /// For the control thread: advances what is under way while nobody else does.
    pub(crate) fn poll_in_background(&self) {
        let Some(token) = self.take_token() else {
            return;
        };
        let mut engine = self.lock();
        while engine.poll() {
            self.send_controls(&mut engine);
            drop(engine);
            self.let_others_look();
            engine = self.lock();
        }
        engine.tick(self.host.now());
        self.send_controls(&mut engine);
        drop(engine);
        drop(token);
    }

    /// Lets time pass without a call; what is under way goes on, peers are answered.
    pub(crate) fn pass_time(&self, time: Duration) {
        let end = self.host.now().saturating_add(time);
        while self.host.now() < end {
            self.hear(&mut self.lock_beside_poller());
            self.poll_in_background();
            self.host.give_way(u32::MAX);
        }
    }

    /// Whether operations are under way that nobody polls.
    pub(crate) fn wants_poller(&self) -> bool {
        !self.token.load(Ordering::Acquire) && self.lock_beside_poller().is_busy()
    }

    /// A control message came.
    pub(crate) fn control(&self, group: u32, from: usize, payload: &[u8]) {
        self.tell(|engine| engine.control(group, from, payload));
    }

    /// The control connection of `rank` is gone.
    pub(crate) fn control_lost(&self, rank: usize, why: &str) {
        self.tell(|engine| engine.control_lost(rank, why));
    }

    /// No data connection to `rank` could be made.
    pub(crate) fn link_failed(&self, rank: usize, why: &str) {
        self.tell(|engine| engine.link_failed(rank, why));
    }

    /// Lets the engine know something, and those who wait on it.
    fn tell(&self, what: impl FnOnce(&mut Engine)) {
        let mut engine = self.lock_beside_poller();
        what(&mut engine);
        self.send_controls(&mut engine);
        drop(engine);
        self.changed.notify_all();
        self.host.wake();
    }

    /// Lets an operation end by itself.
    pub(crate) fn abandon(&self, ticket: Ticket) {
        self.lock_beside_poller().abandon(ticket);
    }

    /// Ends the group: what is under way is finished (or fails by its deadline), then goodbye.
    /// The last one ends the host's part too, here and now: the control thread may be holding this
    /// runtime for a moment, so its drop could come after the caller has left the process.
    pub(crate) fn leave(&self, number: u32, at_most: Duration) {
        let end = self.host.now().saturating_add(at_most);
        let is_busy = |engine: &mut Engine| engine.group(number).is_some_and(|one| one.is_busy());
        while is_busy(&mut self.lock_beside_poller()) && self.host.now() < end {
            let Some(_token) = self.take_token() else {
                std::thread::sleep(POLLER_NAP);
                continue;
            };
            let mut engine = self.lock();
            self.hear(&mut engine);
            if !engine.poll() {
                engine.tick(self.host.now());
                self.send_controls(&mut engine);
                drop(engine);
                self.host.give_way(u32::MAX);
            }
        }
        let mut engine = self.lock_beside_poller();
        if let Some(group) = engine.group(number) {
            group.leave();
        }
        self.send_controls(&mut engine);
        let group = engine.remove_group(number);
        let was_last = engine.is_empty();
        drop(engine);
        if was_last {
            self.host.close();
        }
        // Its links close after the goodbye has gone.
        drop(group);
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

    fn send_controls(&self, engine: &mut Engine) {
        while let Some((group, to, payload)) = engine.next_control() {
            self.host.send_control(to, group, &payload);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::session::To;
    use crate::transport::Transport;
    use crate::transport::stream::StreamTransport;
    use crate::transport::tcp::{Inbox, Reactor, TcpConnector};
    use std::sync::Arc;

    /// Says whether it was closed, and what had been sent by then.
    #[derive(Default)]
    struct Recorder {
        sent: AtomicUsize,
        sent_before_close: Arc<Mutex<Option<usize>>>,
    }

    impl Host for Recorder {
        fn now(&self) -> Duration {
            Duration::ZERO
        }
        fn give_way(&self, _: u32) -> Waited {
            Waited::Briefly
        }
        fn wake(&self) {}
        fn background_work(&self) {}
        fn send_control(&self, _: To, _: u32, _: &[u8]) {
            self.sent.fetch_add(1, Ordering::Relaxed);
        }
        fn close(&self) {
            let sent = self.sent.load(Ordering::Relaxed);
            *self.sent_before_close.lock().unwrap() = Some(sent);
        }
    }

    #[test]
    fn the_last_goodbye_closes_the_host_though_another_thread_holds_the_runtime() {
        let host = Recorder::default();
        let closed = Arc::clone(&host.sent_before_close);
        let runtime = Arc::new(Runtime::new(Box::new(host)));
        let reactor = Arc::new(Reactor::new().unwrap());
        let unused = || -> Box<dyn Transport> {
            let inbox = Arc::new(Inbox::default());
            let connector = TcpConnector::new(Arc::clone(&reactor), inbox, Box::new(|_| {}));
            Box::new(StreamTransport::new(connector, 0, 0, 2))
        };
        for number in [0, 1] {
            runtime.add_group(number, Group::new(0, 2, unused(), unused()));
        }
        let held_elsewhere = Arc::clone(&runtime);
        runtime.leave(0, Duration::ZERO);
        assert_eq!(*closed.lock().unwrap(), None, "one group is still there");
        runtime.leave(1, Duration::MAX);
        assert_eq!(
            *closed.lock().unwrap(),
            Some(2),
            "both goodbyes went before"
        );
        drop(held_elsewhere);
    }
}
