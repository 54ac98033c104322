//! The handle on the control thread, and what the thread calls back.

use super::message::TO_ALL;
use crate::error::Error;
use crate::limits::CONTROL_QUEUE_BYTES_MAX;
use crate::link::tcp::DataStream;
use crossbeam_channel::{self as channel, Receiver, Sender};
use mio::Waker;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// What the control thread calls. All methods are called on that thread, one at a time, and must
/// not block for long: no control message moves meanwhile.
pub(crate) trait Handler: Send + Sync {
    /// A control message from rank `from`, perhaps this one.
    fn control(&self, from: usize, group: u32, payload: &[u8]);
    /// The connection to `rank` closed or broke, or none can be made because no process listens
    /// there; `why` reads on after "rank 3: ". Rank 0 loses any rank this way; the others only rank
    /// 0, which relays their control messages, and after that those that they connect to.
    fn control_lost(&self, rank: usize, why: String);
    /// The process of `rank`, which runs on this host, has ended. Its last control messages may
    /// still be on their way.
    fn process_ended(&self, rank: usize);
    /// A data connection is ready: authenticated, non-blocking, without Nagle's delay, and
    /// registered in no poll. Both ends get theirs, whichever dialed.
    fn stream(&self, group: u32, stream: DataStream);
    /// No data connection to `peer` came about within the join's timeout, or it was refused.
    fn stream_failed(&self, group: u32, peer: usize, why: String);
    /// This process lacks what it needs to go on as a rank, and the others are to be told why.
    fn cannot_go_on(&self, cause: Error);
    /// How long the control thread may sleep at most, if operations are under way that no thread
    /// polls: then data sockets that become ready wake it, too. Asked before each sleep;
    /// [`ControlHandle::poke`] after it changes.
    fn wake_after(&self) -> Option<Duration>;
    /// Called after each wake-up: make progress with asynchronous operations here.
    fn awake(&self);
}

/// What a thread of this process asks the control thread to do.
pub(super) enum Command {
    Send {
        to: u32,
        group: u32,
        payload: Vec<u8>,
    },
    Dial {
        group: u32,
        peer: usize,
    },
    Forget {
        group: u32,
    },
    Stop,
}

/// What the handles and the control thread share.
pub(super) struct Shared {
    commands: (Sender<Command>, Receiver<Command>),
    /// Payload bytes of the commands that wait.
    queued_bytes: AtomicUsize,
    /// Whether a command was dropped because too many bytes waited.
    has_overflowed: AtomicBool,
    waker: Waker,
    /// It becomes readable when the thread is to be woken later.
    timer: OwnedFd,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Whether data sockets that become ready wake the thread.
    pub(super) watches_data: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Whole between any two statements: a panic of another holder leaves nothing half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A timer that is not set.
pub(super) fn timer() -> io::Result<OwnedFd> {
    let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
    Ok(timerfd_create(TimerfdClockId::Monotonic, flags)?)
}

impl Shared {
    pub(super) fn runs_on(&self, thread: JoinHandle<()>) {
        *lock(&self.thread) = Some(thread);
    }

    /// Returns the oldest command, and whether commands were lost because the thread did not keep
    /// up.
    pub(super) fn take(&self) -> (Option<Command>, bool) {
        let command = self.commands.1.try_recv().ok();
        if let Some(Command::Send { payload, .. }) = &command {
            self.queued_bytes
                .fetch_sub(payload.len(), Ordering::Relaxed);
        }
        (command, self.has_overflowed.load(Ordering::Relaxed))
    }

    fn push(&self, command: Command) {
        if let Command::Send { payload, .. } = &command {
            let before = self
                .queued_bytes
                .fetch_add(payload.len(), Ordering::Relaxed);
            if before + payload.len() > CONTROL_QUEUE_BYTES_MAX {
                self.queued_bytes
                    .fetch_sub(payload.len(), Ordering::Relaxed);
                self.has_overflowed.store(true, Ordering::Relaxed);
                return;
            }
        }
        // It fails only once the receiver is gone, which is here.
        let _ = self.commands.0.send(command);
        self.wake();
    }

    fn wake(&self) {
        // It fails only when the counter behind it is full, and then the thread wakes anyway.
        let _ = self.waker.wake();
    }
}

/// Speaks to the control thread; clones speak to the same.
#[derive(Clone)]
pub(crate) struct ControlHandle {
    pub(super) shared: Arc<Shared>,
}

impl fmt::Debug for ControlHandle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ControlHandle")
    }
}

impl ControlHandle {
    /// A handle that wakes the control thread by `waker`, or later by `timer`.
    pub(super) fn new(waker: Waker, timer: OwnedFd) -> Self {
        let shared = Arc::new(Shared {
            commands: channel::unbounded(),
            queued_bytes: AtomicUsize::new(0),
            has_overflowed: AtomicBool::new(false),
            waker,
            timer,
            thread: Mutex::new(None),
            watches_data: AtomicBool::new(false),
        });
        Self { shared }
    }

    /// Payload bytes that wait for the control thread.
    #[cfg(test)]
    pub(crate) fn queued_bytes(&self) -> usize {
        self.shared.queued_bytes.load(Ordering::Relaxed)
    }

    /// Sends a control message of at most `CONTROL_MESSAGE_BYTES_MAX` bytes to rank `to`, by way
    /// of rank 0 while that is there; to this rank itself it is delivered too. Messages between two
    /// ranks stay in order. What cannot be sent any more is dropped: [`Handler::control_lost`] has
    /// said so.
    pub(crate) fn send(&self, to: usize, group: u32, payload: &[u8]) {
        if let Ok(to) = u32::try_from(to) {
            self.push_send(to, group, payload);
        }
    }

    /// Sends a control message to every rank but this one.
    pub(crate) fn send_all(&self, group: u32, payload: &[u8]) {
        self.push_send(TO_ALL, group, payload);
    }

    fn push_send(&self, to: u32, group: u32, payload: &[u8]) {
        let payload = payload.to_vec();
        self.shared.push(Command::Send { to, group, payload });
    }

    /// Asks for a data connection to `peer`. The lower rank dials, and the higher one asks it to;
    /// the call is fine on either side, and again while one is being dialed.
    pub(crate) fn dial(&self, group: u32, peer: usize) {
        self.shared.push(Command::Dial { group, peer });
    }

    /// There is no such group any more: its connections that are not established are given up.
    pub(crate) fn forget(&self, group: u32) {
        self.shared.push(Command::Forget { group });
    }

    /// Whether data sockets that become ready wake the control thread. In one order with what the
    /// thread does before it sleeps: it says that it no longer watches, and then asks
    /// [`Handler::wake_after`].
    #[must_use]
    pub(crate) fn is_watching(&self) -> bool {
        self.shared.watches_data.load(Ordering::SeqCst)
    }

    /// Wakes the control thread, which then calls [`Handler::awake`].
    pub(crate) fn poke(&self) {
        self.shared.wake();
    }

    /// Like [`ControlHandle::poke`], but `after` a time above zero. It replaces an earlier request.
    pub(crate) fn poke_later(&self, after: Duration) {
        let time = Itimerspec {
            it_interval: Timespec::default(),
            it_value: Timespec::try_from(after).unwrap_or_default(),
        };
        let flags = TimerfdTimerFlags::empty();
        // It fails only for a time that is not normal.
        let _ = timerfd_settime(&self.shared.timer, flags, &time);
    }

    /// Sends what was queued before, closes every connection of the control thread, and ends it;
    /// within about a second. The handler is not called any more once this returns. On the
    /// control thread itself it only asks for that.
    pub(crate) fn shutdown(&self) {
        self.shared.push(Command::Stop);
        let thread = lock(&self.shared.thread).take();
        if let Some(thread) = thread {
            if thread.thread().id() == thread::current().id() {
                return;
            }
            // A panic on that thread was already printed; there is nothing left to clean up.
            let _ = thread.join();
        }
    }
}
