//! Starts individual operations, waits for them, and abandons them.

use super::{Runtime, thread_number};
use crate::engine::group::{End, Memory, Order, Start};
use crate::engine::log::{Log, Recording};
use crate::engine::{Engine, Ticket};
use crate::error::{Error, Result};
use crate::limits::TRACE_SPANS_MAX;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;
use std::time::Duration;

impl Runtime {
    /// Starts an operation, which takes ownership of the memory. From then on, the polling threads
    /// advance it.
    ///
    /// # Errors
    /// Returns the group's first error if the group has failed, or `ErrorKind::Usage` if the group
    /// no longer exists. In both cases, the memory stays in `start`.
    pub(crate) fn post(&self, group: u32, order: Order, start: &mut Start<'_>) -> Result<Ticket> {
        let has_gate = start.gate.is_some();
        let mut engine = self.lock_while_polled();
        let found = engine.group(group).ok_or_else(closed)?;
        found.called_by(thread_number());
        let slot = found.post(order, start)?;
        engine.poll();
        let has_ended = engine.has_unstamped();
        engine.stamp(|| self.host.now());
        self.send_controls(&mut engine);
        drop(engine);
        self.yield_engine(has_ended);
        if !self.token.load(Ordering::SeqCst) {
            self.host.background_work(has_gate);
        } else if has_gate {
            // The polling thread may be asleep, and a device wakes no thread.
            self.host.wake();
        }
        Ok(Ticket { group, order, slot })
    }

    /// Starts a collective for a caller that waits for it. Runs the collective step by step, with
    /// the engine locked, as long as it makes progress.
    ///
    /// Returns `None` if the collective has ended; the memory is still in `start`. Otherwise, the
    /// operation has taken ownership of the memory, and the caller must wait for the returned
    /// ticket.
    ///
    /// # Errors
    /// Returns the group's first error if the group has failed, or `ErrorKind::Usage` if the group
    /// no longer exists. In both cases, the memory stays in `start`.
    #[inline]
    pub(crate) fn begin(&self, group: u32, start: &mut Start<'_>) -> Result<Option<Ticket>> {
        let mut keeps_spinning = |fruitless| self.may_keep_engine() && self.host.spin(fruitless);
        let mut engine = self.lock_while_polled();
        let found = engine.group(group).ok_or_else(closed)?;
        found.called_by(thread_number());
        let order = Order::Collectives;
        let slot = found.run(start, &mut keeps_spinning)?;
        if slot.is_none() && found.has_control() {
            self.send_controls(&mut engine);
        }
        Ok(slot.map(|slot| Ticket { group, order, slot }))
    }

    /// Starts a send or a receive for a caller that waits for it.
    ///
    /// # Errors
    /// Returns the group's first error if the group has failed, or `ErrorKind::Usage` if the group
    /// no longer exists. In both cases, the memory stays in `start`.
    pub(crate) fn begin_message(&self, group: u32, start: &mut Start<'_>) -> Result<Ticket> {
        let mut engine = self.lock_while_polled();
        let found = engine.group(group).ok_or_else(closed)?;
        found.called_by(thread_number());
        let order = Order::Pairs;
        let slot = found.post(order, start)?;
        Ok(Ticket { group, order, slot })
    }

    /// Returns `true` if no other thread needs the engine or is waiting for an operation.
    #[inline]
    fn may_keep_engine(&self) -> bool {
        self.others.load(Ordering::Relaxed) + self.sleepers.load(Ordering::Relaxed) == 0
    }

    /// Returns a guard. As long as the guard exists, calls that run step by step stop doing so and
    /// unlock the engine.
    pub(crate) fn ask_others_to_yield(&self) -> impl Drop {
        struct YieldRequest<'a>(&'a AtomicUsize);
        impl Drop for YieldRequest<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::SeqCst);
            }
        }
        self.others.fetch_add(1, Ordering::SeqCst);
        YieldRequest(&self.others)
    }

    /// Starts recording the group's collectives. Returns `false` if a recording is already in
    /// progress.
    pub(crate) fn start_log(&self, group: u32) -> bool {
        let log = Log::new(self.host.clock(), TRACE_SPANS_MAX);
        self.with_group(group, |group| group.start_log(log)) == Some(true)
    }

    /// Stops recording and returns the recording.
    pub(crate) fn take_log(&self, group: u32) -> Recording {
        let log = self.with_group(group, |group| group.take_log());
        log.flatten().map(Log::finish).unwrap_or_default()
    }

    /// Waits for an operation and returns its result, at the latest when the operation's deadline
    /// has passed.
    pub(crate) fn wait(&self, ticket: Ticket) -> End {
        self.wait_until(ticket, |engine| take(engine, ticket))
    }

    /// Waits for a receive. Also returns the rank that sent the message.
    pub(crate) fn wait_for_sender(&self, ticket: Ticket) -> (End, Option<usize>) {
        self.wait_until(ticket, |engine| {
            let group = engine.group(ticket.group);
            let sender = group.and_then(|group| group.sender(ticket.slot));
            take(engine, ticket).map(|end| (end, sender))
        })
    }

    /// Waits until `take` returns the result of an operation. Counts the time, but reads the clock
    /// only if the operation has not ended yet.
    fn wait_until<R>(&self, ticket: Ticket, mut take: impl FnMut(&mut Engine) -> Option<R>) -> R {
        let thread = thread_number();
        let mut since = None;
        self.wait_for(|engine| {
            let end = take(engine);
            engine.waits_in(thread, ticket, end.is_none());
            if end.is_none() && since.is_none() {
                let group = engine.group(ticket.group);
                let class = group.and_then(|group| group.class_of(ticket.order, ticket.slot));
                since = Some((self.host.now(), class));
            } else if end.is_some()
                && let Some((since, Some(class))) = since
                && let Some(group) = engine.group(ticket.group)
            {
                group.add_wait(class, self.host.now().saturating_sub(since));
            }
            end
        })
    }

    /// Takes the result of an operation that has ended. Returns `None` while the operation is in
    /// flight. In that case, the waker that was passed last is woken when the operation ends.
    pub(crate) fn poll_for(&self, ticket: Ticket, waker: &Waker) -> Option<End> {
        // The waker is not needed while the task polls.
        self.forget_waker(ticket);
        self.advance();
        let waker_kept = waker.clone();
        let mut engine = self.lock_while_polled();
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

    /// Removes the waker for an operation, because no task is waiting for the operation any longer.
    pub(crate) fn forget_waker(&self, ticket: Ticket) {
        let of_no_use = self.lock_while_polled().watch(ticket, None);
        drop(of_no_use);
    }

    /// Lets an operation continue without its caller.
    pub(crate) fn abandon(&self, ticket: Ticket) {
        let mut engine = self.lock_while_polled();
        let of_no_use = engine.watch(ticket, None);
        let group = engine.group(ticket.group);
        let end = group.and_then(|group| group.abandon(ticket.order, ticket.slot));
        if end.is_none() {
            engine.abandoned();
        }
        drop(engine);
        // Dropping these values may run user code, so unlock the engine first.
        drop((of_no_use, end));
    }

    /// Returns `true` if an operation has ended. Advances operations in flight if no other thread
    /// is doing so.
    pub(crate) fn has_ended(&self, ticket: Ticket) -> bool {
        self.advance();
        self.ended(ticket).0
    }

    /// Returns `true` if an operation has ended, together with the time at which it ended, if that
    /// was recorded.
    pub(crate) fn ended(&self, ticket: Ticket) -> (bool, Option<Duration>) {
        self.lock_while_polled().ended(ticket)
    }
}

/// Takes the result of an operation that has ended. Returns `None` while the operation is in
/// flight.
fn take(engine: &mut Engine, ticket: Ticket) -> Option<End> {
    match engine.group(ticket.group) {
        Some(group) => group.take(ticket.order, ticket.slot),
        None => Some((Memory::default(), Err(closed()))),
    }
}

pub(super) fn closed() -> Error {
    Error::usage("the communicator is closed")
}
