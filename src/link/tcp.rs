//! TCP streams, and the one place a process sleeps for all of them.
//!
//! The control thread dials, accepts and authenticates data connections and drops them into an
//! [`Inbox`]; the link to the peer takes its stream out, which registers it with the [`Reactor`].
//! While a call polls, it tries the sockets directly; only before it sleeps does it ask the
//! reactor.
//!
//! # A peer that is cut off
//!
//! A network that drops everything closes no connection. What an idle connection tells, the
//! kernel's keepalive finds out. While bytes wait for an acknowledgement it does not run, and the
//! kernel would try for a quarter of an hour. So a thread that waits in a call looks now and then,
//! by [`Reactor::find_cuts`], for connections on which an acknowledgement is due and none has come
//! for [`CUT_OFF_AFTER`]. No `TCP_USER_TIMEOUT`: Linux would count the time in which a healthy
//! receiver merely does not read, which is as long as its program computes. Such a receiver's host
//! answers the kernel's probes.

use super::window::widen;
use crate::limits::{CUT_OFF_AFTER, CUTS_FOUND_EVERY};
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
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Token of the reactor's waker. All streams use [`STREAM`]: it does not matter which is ready.
const WAKER: Token = Token(0);
const STREAM: Token = Token(1);
/// Readiness notices taken from the system at once; more stay there.
const EVENTS_PER_SLEEP: usize = 256;
/// An idle connection is probed after this long; with the probes, a host that vanished is noticed
/// within 5 s.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(2);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(1);
const KEEPALIVE_PROBES: u32 = 3;
/// The kernel probes a receiver that reads nothing this often, where it can be told so.
const TRY_AGAIN_WITHIN: Duration = Duration::from_secs(2);

/// Sets what every connection of the library wants: small segments leave at once, idle
/// connections are probed, and forked children do not hold it. Buffer sizes are left to the
/// kernel's auto-tuning, but on long ways (`link/window.rs`).
///
/// # Errors
/// The system's.
pub fn set_options(stream: &impl AsFd) -> io::Result<()> {
    let socket = SockRef::from(stream);
    keep_from_children(stream);
    // An older kernel probes less and less often, and notices some cuts later.
    let _ = try_again_within(stream, TRY_AGAIN_WITHIN);
    socket.set_tcp_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_AFTER)
        .with_interval(KEEPALIVE_EVERY)
        .with_retries(KEEPALIVE_PROBES);
    socket.set_tcp_keepalive(&keepalive)
}

/// From now on no forked child of this process holds `socket`, which would hide this process's
/// death from its peers.
pub(crate) fn keep_from_children(socket: &impl AsFd) {
    // If the system refuses, only such a death is noticed later.
    let _ = close_in_children(socket);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What these mutexes guard is whole between any two statements, so a panic elsewhere while
    // holding one leaves nothing half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Readiness of all data sockets of a process.
pub struct Reactor {
    poll: Mutex<(Poll, Events)>,
    registry: Registry,
    waker: Waker,
    descriptor: RawFd,
    lines: Mutex<Lines>,
}

impl Reactor {
    /// A reactor with no sockets.
    ///
    /// # Errors
    /// The system's.
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
            lines: Mutex::new(Lines {
                all: Vec::new(),
                seen: Instant::now(),
            }),
        })
    }

    /// Ends the connections whose peer is cut off: their links fail, and say so. Looks at them only
    /// if that is due. For a thread that has found nothing to do.
    pub fn find_cuts(&self) {
        let now = Instant::now();
        // Another thread that has the lock does the same.
        let Ok(mut lines) = self.lines.try_lock() else {
            return;
        };
        if now - lines.seen < CUTS_FOUND_EVERY {
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
                // It ends the sleep of the link's reader, which then asks why.
                let _ = line.stream.shutdown(Shutdown::Both);
            }
            !is_cut
        });
    }

    /// Sleeps until something happened on any data socket since the last sleep, until
    /// [`Reactor::wake`], or for `at_most`. One thread sleeps at a time; a second one first waits
    /// for it. Readiness is told once: before sleeping, try every socket of interest until it
    /// would block.
    pub fn sleep(&self, at_most: Duration) {
        let mut guard = lock(&self.poll);
        let (poll, events) = &mut *guard;
        // An interruption, or any other failure, is only a short sleep: the caller polls again.
        let _ = poll.poll(events, Some(at_most));
    }

    /// From now on a sleep also ends when `descriptor` becomes readable.
    ///
    /// # Errors
    /// The system's.
    pub fn watch(&self, descriptor: &impl AsRawFd) -> io::Result<()> {
        let descriptor = descriptor.as_raw_fd();
        let mut source = SourceFd(&descriptor);
        self.registry
            .register(&mut source, STREAM, Interest::READABLE)
    }

    /// Takes [`Reactor::watch`] back; before the descriptor is closed.
    pub fn unwatch(&self, descriptor: &impl AsRawFd) {
        // It fails only for one that was not watched.
        let _ = self
            .registry
            .deregister(&mut SourceFd(&descriptor.as_raw_fd()));
    }

    /// Ends the current sleep, or the next one at once.
    pub fn wake(&self) {
        // It fails only if the counter behind it is full, and then the sleep ends anyway.
        let _ = self.waker.wake();
    }
}

impl AsRawFd for Reactor {
    /// The epoll descriptor; readable when a data socket is ready. Valid while the reactor lives.
    fn as_raw_fd(&self) -> RawFd {
        self.descriptor
    }
}

/// The connections of a process, and when they were last looked at.
struct Lines {
    all: Vec<(Weak<Line>, Silence)>,
    seen: Instant,
}

/// How long a peer's host has been silent while it should have acknowledged something.
#[derive(Default)]
struct Silence {
    since: Option<Instant>,
}

impl Silence {
    /// What was found `now`. A connection that was idle is silent from when an acknowledgement was
    /// first seen to be due.
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

/// A data connection on its way to its link.
pub struct DataStream {
    /// The rank at the other end.
    pub peer: usize,
    /// Authenticated, non-blocking, and registered nowhere.
    pub stream: TcpStream,
    /// The names of this host and of the peer's, for messages.
    pub hosts: (String, String),
}

/// Authenticated streams of a channel on their way from the control thread to its links.
#[derive(Default)]
pub struct Inbox {
    arrived: Mutex<Vec<DataStream>>,
    waiting: AtomicUsize,
}

impl Inbox {
    /// Leaves `stream`, in the place of one from the same peer that no link has taken. Wake the
    /// reactor after.
    pub fn push(&self, stream: DataStream) {
        let mut arrived = lock(&self.arrived);
        arrived.retain(|each| each.peer != stream.peer);
        arrived.push(stream);
        self.waiting.store(arrived.len(), Ordering::Release);
    }

    /// The stream to `peer`, if it has arrived, with its readiness told to `reactor`.
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

/// A connection, as its link and the search for cuts share it.
struct Line {
    stream: TcpStream,
    hosts: (String, String),
    is_cut: AtomicBool,
}

impl Line {
    /// What a read or a write came to; if the peer is cut off, that is why.
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
                 the network between them is cut",
                CUT_OFF_AFTER.as_secs()
            ),
        ))
    }
}

/// A non-blocking TCP connection whose readiness ends the sleep of its [`Reactor`].
pub struct TcpLink {
    line: Arc<Line>,
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
            // A link that could never wake its reader must not look alive: as a closed one it is
            // reported on the next read.
            let _ = stream.shutdown(Shutdown::Both);
        }
        let line = Arc::new(Line {
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
        // Closing the socket deregisters it as well; this is for a descriptor that was inherited.
        let descriptor = self.line.stream.as_raw_fd();
        let _ = self.reactor.registry.deregister(&mut SourceFd(&descriptor));
    }
}

/// Calls again what a signal interrupted.
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
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// A link, and the other end of its connection.
    fn pair(reactor: &Arc<Reactor>) -> (TcpLink, std::net::TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        near.set_nonblocking(true).unwrap();
        set_options(&near).unwrap();
        let inbox = Inbox::default();
        inbox.push(DataStream {
            peer: 1,
            stream: TcpStream::from_std(near),
            hosts: ("here".into(), "there".into()),
        });
        (
            inbox.take(1, reactor).unwrap(),
            listener.accept().unwrap().0,
        )
    }

    #[test]
    fn only_silence_while_something_is_due_counts() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let awaited = |last| Acknowledged {
            is_awaited: true,
            last,
        };
        let mut silence = Silence::default();
        // Idle for an hour; then something is sent.
        assert_eq!(silence.lasts(awaited(3600 * second), start), Duration::ZERO);
        assert_eq!(
            silence.lasts(awaited(3603 * second), start + 3 * second),
            3 * second
        );
        // An acknowledgement came a second ago; more is due.
        assert_eq!(silence.lasts(awaited(second), start + 6 * second), second);
        assert_eq!(
            silence.lasts(awaited(4 * second), start + 9 * second),
            4 * second
        );
        let idle = Acknowledged {
            is_awaited: false,
            last: 60 * second,
        };
        assert_eq!(silence.lasts(idle, start + 69 * second), Duration::ZERO);
        assert_eq!(
            silence.lasts(awaited(90 * second), start + 99 * second),
            Duration::ZERO
        );
    }

    /// The peer's program computes for longer than a cut takes to be noticed; with
    /// `RINGTREE_TEST_LONG` for a minute.
    #[test]
    fn a_peer_that_does_not_read_is_not_cut_off() {
        let computes = match std::env::var_os("RINGTREE_TEST_LONG") {
            Some(_) => Duration::from_secs(60),
            None => CUT_OFF_AFTER + Duration::from_secs(3),
        };
        let reactor = Arc::new(Reactor::new().unwrap());
        let (mut link, mut far) = pair(&reactor);
        let piece = vec![1; 1 << 20];
        let mut written = 0;
        let end = Instant::now() + computes;
        while Instant::now() < end {
            match link.write(&piece) {
                Ok(bytes) => written += bytes,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            reactor.sleep(Duration::from_millis(50));
            reactor.find_cuts();
        }
        drop(link);
        let mut read = Vec::new();
        far.read_to_end(&mut read).unwrap();
        assert_eq!(read.len(), written);
    }
}
