//! Provides TCP streams, and the reactor in which a process sleeps until a stream is ready.
//!
//! The control thread connects, accepts and authenticates data connections and puts them into an
//! [`Inbox`]. The link to a peer takes its stream from the inbox and registers it with the
//! [`Reactor`]. A polling call tries the sockets directly, and uses the reactor only to sleep.
//!
//! # An unreachable peer
//!
//! If a network drops all packets, connections are not closed. On an idle connection, the kernel's
//! keepalive detects the failure. But keepalive does not run while bytes are waiting for an
//! acknowledgment, and the kernel would retransmit them for a quarter of an hour. So a thread that
//! waits in a call runs [`Reactor::close_unreachable`] from time to time. This method searches for
//! connections on which an acknowledgment is due but none has been received for [`CUT_OFF_AFTER`].
//! `TCP_USER_TIMEOUT` is not used, because Linux would also count the time during which a healthy
//! receiver does not read because its program is computing. The host of such a receiver answers the
//! kernel's probes.

use super::window::widen;
use crate::limits::{CUT_OFF_AFTER, DISCONNECT_CHECK_INTERVAL};
use crate::lock::lock;
use crate::sys::fork::close_in_children;
use crate::sys::tcp::{Acknowledged, acknowledged, try_again_within};
use mio::net::TcpStream;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token, Waker};
use socket2::{SockRef, TcpKeepalive};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// Token of the reactor's waker. All streams share the token [`STREAM`], because callers try every
/// socket.
const WAKER: Token = Token(0);
const STREAM: Token = Token(1);
/// Maximum number of readiness events that are read at the end of a sleep. Other events stay in the
/// kernel.
const EVENTS_PER_SLEEP: usize = 256;
/// Idle time after which a connection is probed. With these probes, a host that has vanished is
/// detected within 5 s.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(2);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(1);
const KEEPALIVE_PROBES: u32 = 3;
/// Maximum interval between the kernel's probes of a receiver that does not read. Older kernels do
/// not support this limit.
const TRY_AGAIN_WITHIN: Duration = Duration::from_secs(2);

/// Sets the options that every connection of the library needs. Small segments are sent
/// immediately, idle connections are probed, and forked children do not keep the connection open.
/// Buffer sizes are left to the kernel's tuning, except on connections with long round trips
/// (`link/window.rs`).
///
/// # Errors
/// Returns the operating system's error.
pub fn set_options(stream: &impl AsFd) -> io::Result<()> {
    let socket = SockRef::from(stream);
    keep_from_children(stream);
    // Ignore a failure. The probes of an older kernel become less frequent, so some unreachable
    // peers are detected later.
    let _ = try_again_within(stream, TRY_AGAIN_WITHIN);
    socket.set_tcp_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_AFTER)
        .with_interval(KEEPALIVE_EVERY)
        .with_retries(KEEPALIVE_PROBES);
    socket.set_tcp_keepalive(&keepalive)
}

/// Closes `socket` in forked children, where it would hide this process's death from its peers.
pub(crate) fn keep_from_children(socket: &impl AsFd) {
    // If this fails, peers may take longer to detect this process's death while a forked child is
    // still running.
    let _ = close_in_children(socket);
}

/// The readiness of all data sockets of a process.
pub struct Reactor {
    poll: Mutex<(Poll, Events)>,
    registry: Registry,
    waker: Waker,
    descriptor: RawFd,
    lines: Mutex<Connections>,
}

impl Reactor {
    /// Creates a reactor without sockets.
    ///
    /// # Errors
    /// Returns the operating system's error.
    pub fn new() -> io::Result<Self> {
        let poll = Poll::new()?;
        let registry = poll.registry().try_clone()?;
        let waker = Waker::new(&registry, WAKER)?;
        let descriptor = poll.as_raw_fd();
        let events = Events::with_capacity(EVENTS_PER_SLEEP);
        Ok(Self {
            poll: Mutex::new((poll, events)),
            registry,
            waker,
            descriptor,
            lines: Mutex::new(Connections {
                all: Vec::new(),
                seen: Instant::now(),
            }),
        })
    }

    /// Shuts down connections to unreachable peers, so that the links report an error. Call this
    /// method from a thread that has nothing else to do. It returns immediately if the last check
    /// was recent.
    pub fn close_unreachable(&self) {
        let now = Instant::now();
        // If the lock is held, another thread is checking the connections or adding one. In the
        // latter case, a later call checks them.
        let Ok(mut lines) = self.lines.try_lock() else {
            return;
        };
        if now - lines.seen < DISCONNECT_CHECK_INTERVAL {
            return;
        }
        lines.seen = now;
        lines.all.retain_mut(|(line, silence)| {
            let Some(line) = line.upgrade() else {
                return false;
            };
            let is_cut = acknowledged(&line.stream)
                .is_ok_and(|acknowledged| silence.lasts(acknowledged, now) >= CUT_OFF_AFTER);
            if is_cut {
                line.is_cut.store(true, Ordering::Relaxed);
                // The shutdown wakes the link's reader, which then gets the reason from `explain`.
                let _ = line.stream.shutdown(Shutdown::Both);
            }
            !is_cut
        });
    }

    /// Sleeps until a data socket becomes ready, [`Reactor::wake`] is called, or `at_most` has
    /// elapsed. Events that occurred after the last sleep also end the sleep. If another thread is
    /// sleeping, the caller first waits for that thread. Each change of readiness is reported only
    /// once, so try every socket of interest until it would block before you sleep.
    pub fn sleep(&self, at_most: Duration) {
        let mut guard = lock(&self.poll);
        let (poll, events) = &mut *guard;
        // A failure, such as an interruption by a signal, only shortens the sleep. The caller polls
        // again.
        let _ = poll.poll(events, Some(at_most));
    }

    /// Makes a sleep end also when `descriptor` becomes readable.
    ///
    /// # Errors
    /// Returns the operating system's error.
    pub fn watch(&self, descriptor: &impl AsRawFd) -> io::Result<()> {
        let descriptor = descriptor.as_raw_fd();
        let mut source = SourceFd(&descriptor);
        self.registry
            .register(&mut source, STREAM, Interest::READABLE)
    }

    /// Undoes [`Reactor::watch`]. Call this method before closing the descriptor.
    pub fn unwatch(&self, descriptor: &impl AsRawFd) {
        // This fails only for a descriptor that was not watched.
        let _ = self
            .registry
            .deregister(&mut SourceFd(&descriptor.as_raw_fd()));
    }

    /// Ends the current sleep, or makes the next one return immediately.
    pub fn wake(&self) {
        // This fails only if the waker's counter is full. The sleep then ends anyway.
        let _ = self.waker.wake();
    }
}

impl AsRawFd for Reactor {
    /// Returns the epoll descriptor, which is readable when a data socket is ready. The descriptor
    /// is valid as long as the reactor exists.
    fn as_raw_fd(&self) -> RawFd {
        self.descriptor
    }
}

/// The connections of a process, and the time of their last check.
struct Connections {
    all: Vec<(Weak<Connection>, Silence)>,
    seen: Instant,
}

/// The start of the period in which an acknowledgment from a peer's host has been due and none has
/// arrived.
#[derive(Default)]
struct Silence {
    since: Option<Instant>,
}

impl Silence {
    /// Records the state that was found at `now`, and returns the duration of the silence. After an
    /// idle phase, the silence begins when this method first finds that an acknowledgment is due.
    fn lasts(&mut self, found: Acknowledged, now: Instant) -> Duration {
        if !found.is_awaited {
            self.since = None;
            return Duration::ZERO;
        }
        let last = now.checked_sub(found.last).unwrap_or(now);
        let since = self.since.unwrap_or(now).max(last);
        self.since = Some(since);
        now - since
    }
}

/// An authenticated connection that its link has not taken yet.
pub struct DataStream {
    /// The rank at the other end.
    pub peer: usize,
    /// The stream, which is authenticated, non-blocking, and not registered with any reactor.
    pub stream: TcpStream,
    /// Names of this host and of the peer's host, for messages.
    pub hosts: (String, String),
}

/// Authenticated streams that the control thread passes to the links of a channel.
#[derive(Default)]
pub struct Inbox {
    arrived: Mutex<Vec<DataStream>>,
    waiting: AtomicUsize,
}

impl Inbox {
    /// Adds `stream`, which replaces any earlier stream to the same peer that a link has not taken.
    /// Wake the reactor after this call.
    pub fn push(&self, stream: DataStream) {
        let mut arrived = lock(&self.arrived);
        arrived.retain(|each| each.peer != stream.peer);
        arrived.push(stream);
        self.waiting.store(arrived.len(), Ordering::Release);
    }

    /// Removes the stream to `peer` from the inbox and registers it with `reactor`. Returns `None`
    /// if the stream has not arrived.
    pub fn take(&self, peer: usize, reactor: &Arc<Reactor>) -> Option<TcpLink> {
        if self.waiting.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut arrived = lock(&self.arrived);
        let at = arrived.iter().position(|each| each.peer == peer)?;
        let stream = arrived.remove(at);
        self.waiting.store(arrived.len(), Ordering::Release);
        Some(TcpLink::new(stream, Arc::clone(reactor)))
    }
}

/// A connection that its link shares with the check for unreachable peers.
struct Connection {
    stream: TcpStream,
    hosts: (String, String),
    is_cut: AtomicBool,
}

impl Connection {
    /// Returns the result of a read or write. If the peer is unreachable, an error or end of file
    /// is replaced by an error that states the cause.
    fn explain(&self, moved: io::Result<usize>) -> io::Result<usize> {
        let is_end = match &moved {
            Ok(bytes) => *bytes == 0,
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        };
        let is_cut = || {
            let timed_out = moved
                .as_ref()
                .is_err_and(|one| one.kind() == ErrorKind::TimedOut);
            timed_out || self.is_cut.load(Ordering::Relaxed)
        };
        if !is_end || !is_cut() {
            return moved;
        }
        let (here, there) = &self.hosts;
        Err(io::Error::new(
            ErrorKind::TimedOut,
            format!(
                "host {there} has acknowledged nothing from host {here} for {} s: it is down, or \
                 the network between them is interrupted",
                CUT_OFF_AFTER.as_secs()
            ),
        ))
    }
}

/// A non-blocking TCP connection that wakes its [`Reactor`] when it becomes ready.
pub struct TcpLink {
    line: Arc<Connection>,
    reactor: Arc<Reactor>,
}

impl TcpLink {
    fn new(connection: DataStream, reactor: Arc<Reactor>) -> Self {
        let DataStream {
            mut stream, hosts, ..
        } = connection;
        widen(&stream);
        let interest = Interest::READABLE | Interest::WRITABLE;
        if reactor
            .registry
            .register(&mut stream, STREAM, interest)
            .is_err()
        {
            // A link that can never wake its reader must not look as if it works. After the
            // shutdown, the next read reports that the link is closed.
            let _ = stream.shutdown(Shutdown::Both);
        }
        let line = Arc::new(Connection {
            stream,
            hosts,
            is_cut: AtomicBool::new(false),
        });
        let mut lines = lock(&reactor.lines);
        lines.all.push((Arc::downgrade(&line), Silence::default()));
        drop(lines);
        Self { line, reactor }
    }
}

impl Drop for TcpLink {
    fn drop(&mut self) {
        // Closing the socket would also deregister it, unless another process has inherited the
        // descriptor.
        let descriptor = self.line.stream.as_raw_fd();
        let _ = self.reactor.registry.deregister(&mut SourceFd(&descriptor));
    }
}

/// Repeats `call` until no signal interrupts it.
fn uninterrupted(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

impl Read for TcpLink {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = uninterrupted(|| (&self.line.stream).read(into));
        self.line.explain(read)
    }

    fn read_vectored(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let read = uninterrupted(|| (&self.line.stream).read_vectored(into));
        self.line.explain(read)
    }
}

impl Write for TcpLink {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let written = uninterrupted(|| (&self.line.stream).write(from));
        self.line.explain(written)
    }

    fn write_vectored(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        let written = uninterrupted(|| (&self.line.stream).write_vectored(from));
        self.line.explain(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
