//! Defines the handle to the control thread and the trait whose methods the thread calls.

use super::message::TO_ALL;
use crate::error::Error;
use crate::limits::CONTROL_QUEUE_BYTES_MAX;
use crate::link::tcp::DataStream;
use crate::lock::lock;
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
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Callbacks of the control thread. All methods are called on that thread, one at a time. They must
/// not block for long, because no control messages move while they run.
pub(crate) trait Handler: Send + Sync {
    /// Receives a control message from rank `from`, which may be this rank.
    fn control(&self, from: usize, group: u32, payload: &[u8]);
    /// Reports that the connection to `rank` was closed or broke, or that no process listens at its
    /// address. `why` continues a text such as "rank 3: ". On rank 0, `rank` can be any rank. On
    /// the other ranks, it is rank 0 while that rank relays control messages, and afterwards any
    /// rank that they connect to.
    fn control_lost(&self, rank: usize, why: String);
    /// Reports that the process of `rank`, which ran on this host, has ended. Its last control
    /// messages may not have arrived yet.
    fn process_ended(&self, rank: usize);
    /// Receives a data connection that is authenticated and non-blocking, has Nagle's algorithm
    /// disabled, and is not registered with a poll. Each of the two ranks receives its own end, no
    /// matter which rank dialed.
    fn stream(&self, group: u32, stream: DataStream);
    /// Reports that no data connection to `peer` could be established within the join's timeout, or
    /// that the peer refused the connection.
    fn stream_failed(&self, group: u32, peer: usize, why: String);
    /// Reports that this process lacks resources that it needs as a rank. The handler notifies the
    /// other ranks of `cause`.
    fn fatal_error(&self, cause: Error);
    /// Returns how long the control thread may sleep if operations that no thread polls are in
    /// flight, or `None` if there are no such operations. During such a sleep, the thread is also
    /// woken by data sockets that become ready. The thread calls this method before each sleep.
    /// Call [`ControlHandle::poke`] when the value changes.
    fn wake_after(&self) -> Option<Duration>;
    /// Advances asynchronous operations. The thread calls this after each wake-up.
    fn awake(&self);
}

/// A request to the control thread from another thread of this process.
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

/// State that the handles share with the control thread.
pub(super) struct Shared {
    commands: (Sender<Command>, Receiver<Command>),
    /// Number of payload bytes in queued commands.
    queued_bytes: AtomicUsize,
    /// `true` if a command was dropped because too many bytes were queued.
    has_overflowed: AtomicBool,
    waker: Waker,
    /// Timer for [`ControlHandle::poke_later`], which becomes readable when it expires.
    timer: OwnedFd,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// `true` if data sockets that become ready wake the control thread.
    pub(super) watches_data: AtomicBool,
}

/// Creates a timer that is not set.
pub(super) fn timer() -> io::Result<OwnedFd> {
    let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
    Ok(timerfd_create(TimerfdClockId::Monotonic, flags)?)
}

impl Shared {
    pub(super) fn runs_on(&self, thread: JoinHandle<()>) {
        *lock(&self.thread) = Some(thread);
    }

    /// Returns the oldest command, if there is one, and whether commands have been dropped
    /// because the thread did not keep up.
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
        // This cannot fail, because `self` holds the receiver.
        let _ = self.commands.0.send(command);
        self.wake();
    }

    fn wake(&self) {
        // This fails only if the waker's counter is full, and then the thread wakes anyway.
        let _ = self.waker.wake();
    }
}

/// A handle to the control thread. Clones refer to the same thread.
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
    /// Creates a handle that wakes the control thread with `waker`, or later with `timer`.
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

    /// Returns the number of payload bytes that are queued for the control thread.
    #[cfg(test)]
    pub(crate) fn queued_bytes(&self) -> usize {
        self.shared.queued_bytes.load(Ordering::Relaxed)
    }

    /// Sends a control message of at most `CONTROL_MESSAGE_BYTES_MAX` bytes to rank `to`, which may
    /// be this rank. Rank 0 relays the message as long as rank 0 runs. Messages from one rank to
    /// another stay in order. Messages to a lost rank, which [`Handler::control_lost`] has
    /// reported, are dropped.
    pub(crate) fn send(&self, to: usize, group: u32, payload: &[u8]) {
        if let Ok(to) = u32::try_from(to) {
            self.push_send(to, group, payload);
        }
    }

    /// Sends a control message to every other rank.
    pub(crate) fn send_all(&self, group: u32, payload: &[u8]) {
        self.push_send(TO_ALL, group, payload);
    }

    fn push_send(&self, to: u32, group: u32, payload: &[u8]) {
        let payload = payload.to_vec();
        self.shared.push(Command::Send { to, group, payload });
    }

    /// Requests a data connection to `peer`. The lower rank dials, and the higher rank asks it to
    /// dial. Either rank may call this method, and may call it again while the connection is being
    /// dialed.
    pub(crate) fn dial(&self, group: u32, peer: usize) {
        self.shared.push(Command::Dial { group, peer });
    }

    /// Drops the pending connections of a group that no longer exists.
    pub(crate) fn forget(&self, group: u32) {
        self.shared.push(Command::Forget { group });
    }

    /// Returns `true` if data sockets that become ready wake the control thread. The load is
    /// sequentially consistent with the stores by the thread, which clears the flag before it calls
    /// [`Handler::wake_after`].
    #[must_use]
    pub(crate) fn is_watching(&self) -> bool {
        self.shared.watches_data.load(Ordering::SeqCst)
    }

    /// Wakes the control thread, which then calls [`Handler::awake`].
    pub(crate) fn poke(&self) {
        self.shared.wake();
    }

    /// Like [`ControlHandle::poke`], but waits for the time `after`, which must not be zero.
    /// Replaces any earlier request.
    pub(crate) fn poke_later(&self, after: Duration) {
        let time = Itimerspec {
            it_interval: Timespec::default(),
            it_value: Timespec::try_from(after).unwrap_or_default(),
        };
        let flags = TimerfdTimerFlags::empty();
        // This fails only for an invalid time.
        let _ = timerfd_settime(&self.shared.timer, flags, &time);
    }

    /// Sends the queued messages, closes all connections of the control thread, and ends the thread
    /// within about a second. The handler is not called after this method has returned. If called
    /// on the control thread itself, the method only requests the shutdown.
    pub(crate) fn shutdown(&self) {
        self.shared.push(Command::Stop);
        let thread = lock(&self.shared.thread).take();
        if let Some(thread) = thread {
            if thread.thread().id() == thread::current().id() {
                return;
            }
            // A panic in that thread has already been printed, and nothing is left to clean up.
            let _ = thread.join();
        }
    }
}
