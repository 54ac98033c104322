//! Single operations: how they are started, waited for and let go of.

use super::{Runtime, own_thread};
use crate::engine::group::{End, Memory, Order, Start};
use crate::engine::log::{Log, Recording};
use crate::engine::{Engine, Ticket};
use crate::error::{Error, Result};
use crate::limits::TRACE_SPANS_MAX;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;
use std::time::Duration;

impl Runtime {
    /// Starts an operation, which keeps the memory, and leaves it to the polling threads.
    ///
    /// # Errors
    /// The group's first error; then the memory stays in `start`.
    pub(crate) fn post(&self, group: u32, order: Order, start: &mut Start<'_>) -> Result<Ticket> {
        let has_gate = start.gate.is_some();
        let mut engine = self.lock_beside_poller();
        let found = engine.group(group).ok_or_else(closed)?;
        found.called_by(own_thread());
        let slot = found.post(order, start)?;
        engine.poll();
        let has_ended = engine.has_unstamped();
        engine.stamp(|| self.host.now());
        self.send_controls(&mut engine);
        drop(engine);
        self.let_others_look(has_ended);
        if !self.token.load(Ordering::SeqCst) {
            self.host.background_work(has_gate);
        } else if has_gate {
            // The polling thread may sleep, and a device wakes no thread.
            self.host.wake();
        }
        Ok(Ticket { group, order, slot })
    }

    /// Begins a collective whose caller waits for it: step by step with the engine locked, while
    /// that goes. `None` when it has ended, the memory being in `start` still; else what to wait
    /// for, which has the memory.
    ///
    /// # Errors
    /// The group's first error, if it has failed already; then the memory stays in `start`.
    #[inline]
    pub(crate) fn begin(&self, group: u32, start: &mut Start<'_>) -> Result<Option<Ticket>> {
        let mut keeps_spinning = |fruitless| self.may_keep_engine() && self.host.spin(fruitless);
        let mut engine = self.lock_beside_poller();
        let found = engine.group(group).ok_or_else(closed)?;
        found.called_by(own_thread());
        let order = Order::Collectives;
        let slot = found.run(start, &mut keeps_spinning)?;
        if slot.is_none() && found.has_control() {
            self.send_controls(&mut engine);
        }
        Ok(slot.map(|slot| Ticket { group, order, slot }))
    }

    /// Begins a send or a receive whose caller waits for it.
    ///
    /// # Errors
    /// The group's first error, if it has failed already; then the memory stays in `start`.
    pub(crate) fn begin_message(&self, group: u32, start: &mut Start<'_>) -> Result<Ticket> {
        let mut engine = self.lock_beside_poller();
        let found = engine.group(group).ok_or_else(closed)?;
        found.called_by(own_thread());
        let order = Order::Pairs;
        let slot = found.post(order, start)?;
        Ok(Ticket { group, order, slot })
    }

    /// Whether no other thread wants the engine, or something of it.
    #[inline]
    fn may_keep_engine(&self) -> bool {
        self.others.load(Ordering::Relaxed) + self.sleepers.load(Ordering::Relaxed) == 0
    }

    /// Something that makes a call which runs step by step let the other threads in, as long as it
    /// is there.
    pub(crate) fn ask_for_room(&self) -> impl Drop {
        struct Room<'a>(&'a AtomicUsize);
        impl Drop for Room<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::SeqCst);
            }
        }
        self.others.fetch_add(1, Ordering::SeqCst);
        Room(&self.others)
    }

    /// From now on it is written down what the group's collectives do when; false if that is done
    /// already.
    pub(crate) fn start_log(&self, group: u32) -> bool {
        let log = Log::new(self.host.clock(), TRACE_SPANS_MAX);
        self.with_group(group, |group| group.start_log(log)) == Some(true)
    }

    /// Writes down no more; what was written.
    pub(crate) fn take_log(&self, group: u32) -> Recording {
        let log = self.with_group(group, |group| group.take_log());
        log.flatten().map(Log::finish).unwrap_or_default()
    }

    /// Waits for an operation; returns by its deadline.
    pub(crate) fn wait(&self, ticket: Ticket) -> End {
        let thread = own_thread();
        self.wait_for(|engine| {
            let end = take(engine, ticket);
            engine.waits_in(thread, ticket, end.is_none());
            end
        })
    }

    /// Waits for a receive; also says from which rank the message came.
    pub(crate) fn wait_for_sender(&self, ticket: Ticket) -> (End, Option<usize>) {
        let thread = own_thread();
        self.wait_for(|engine| {
            let group = engine.group(ticket.group);
            let sender = group.and_then(|group| group.sender(ticket.slot));
            let end = take(engine, ticket);
            engine.waits_in(thread, ticket, end.is_none());
            end.map(|end| (end, sender))
        })
    }

    /// Takes an operation that has ended. `None` while it is under way; then the thread that ends
    /// it rings `waker`, but for the last call's.
    pub(crate) fn poll_for(&self, ticket: Ticket, waker: &Waker) -> Option<End> {
        // The task's own poll needs no waker.
        self.forget_waker(ticket);
        self.advance();
        let waker_kept = waker.clone();
        let mut engine = self.lock_beside_poller();
        let end = take(&mut engine, ticket);
        let of_no_use = match &end {
            None => engine.watch(ticket, Some(waker_kept)),
            Some(_) => Some(waker_kept),
        };
        drop(engine);
        drop(of_no_use);
        if end.is_none() {
            self.host.await_in_task(waker);
        }
        end
    }

    /// No task waits for the operation any more.
    pub(crate) fn forget_waker(&self, ticket: Ticket) {
        let of_no_use = self.lock_beside_poller().watch(ticket, None);
        drop(of_no_use);
    }

    /// Lets an operation end by itself.
    pub(crate) fn abandon(&self, ticket: Ticket) {
        let mut engine = self.lock_beside_poller();
        let of_no_use = engine.watch(ticket, None);
        let group = engine.group(ticket.group);
        let end = group.and_then(|group| group.abandon(ticket.order, ticket.slot));
        if end.is_none() {
            engine.abandoned();
        }
        drop(engine);
        // Foreign code, so without the lock.
        drop((of_no_use, end));
    }

    /// Whether an operation has ended; advances what is under way if no other thread does.
    pub(crate) fn has_ended(&self, ticket: Ticket) -> bool {
        self.advance();
        self.ended(ticket).0
    }

    /// Whether an operation has ended, and when, if that was noted.
    pub(crate) fn ended(&self, ticket: Ticket) -> (bool, Option<Duration>) {
        self.lock_beside_poller().ended(ticket)
    }
}

/// An operation that has ended; `None` while it is under way.
fn take(engine: &mut Engine, ticket: Ticket) -> Option<End> {
    match engine.group(ticket.group) {
        Some(group) => group.take(ticket.order, ticket.slot),
        None => Some((Memory::default(), Err(closed()))),
    }
}

pub(super) fn closed() -> Error {
    Error::usage("the communicator is closed")
}
