//! TCP streams, and the one place a process sleeps for all of them.
//!
//! The control thread dials, accepts and authenticates data connections and drops them into an
//! [`Inbox`]; the link to the peer takes its stream out, which registers it with the [`Reactor`].
//! While a call polls, it tries the sockets directly; only before it sleeps does it ask the
//! reactor.

use mio::net::TcpStream;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token, Waker};
use socket2::{SockRef, TcpKeepalive};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Token of the reactor's waker. All streams use [`STREAM`]: it does not matter which is ready.
const WAKER: Token = Token(0);
const STREAM: Token = Token(1);
/// Readiness notices taken from the system at once; more stay there.
const EVENTS_PER_SLEEP: usize = 256;
/// An idle connection is probed after this long, so that a host that vanished is noticed.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(10);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;

/// Sets what every connection of the library wants: small segments leave at once, idle
/// connections are probed. Buffer sizes are left to the kernel's auto-tuning, which fixed sizes
/// would switch off. No `TCP_USER_TIMEOUT`: Linux would count the time in which a healthy receiver
/// merely does not read.
///
/// # Errors
/// The system's.
pub fn set_options(stream: &impl AsFd) -> io::Result<()> {
    let socket = SockRef::from(stream);
    socket.set_tcp_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_AFTER)
        .with_interval(KEEPALIVE_EVERY)
        .with_retries(KEEPALIVE_PROBES);
    socket.set_tcp_keepalive(&keepalive)
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
        })
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

/// Authenticated streams of a channel on their way from the control thread to its links.
#[derive(Default)]
pub struct Inbox {
    arrived: Mutex<Vec<(usize, TcpStream)>>,
    waiting: AtomicUsize,
}

impl Inbox {
    /// Leaves `stream`, which leads to `peer` and is registered nowhere. Wake the reactor after.
    pub fn push(&self, peer: usize, stream: TcpStream) {
        let mut arrived = lock(&self.arrived);
        arrived.push((peer, stream));
        self.waiting.store(arrived.len(), Ordering::Release);
    }

    /// The stream to `peer`, if it has arrived, with its readiness told to `reactor`.
    pub fn take(&self, peer: usize, reactor: &Arc<Reactor>) -> Option<TcpLink> {
        if self.waiting.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut arrived = lock(&self.arrived);
        let at = arrived.iter().position(|(each, _)| *each == peer)?;
        let (_, stream) = arrived.remove(at);
        self.waiting.store(arrived.len(), Ordering::Release);
        Some(TcpLink::new(stream, Arc::clone(reactor)))
    }
}

/// A non-blocking TCP connection whose readiness ends the sleep of its [`Reactor`].
pub struct TcpLink {
    stream: TcpStream,
    reactor: Arc<Reactor>,
}

impl TcpLink {
    fn new(mut stream: TcpStream, reactor: Arc<Reactor>) -> Self {
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
        Self { stream, reactor }
    }
}

impl Drop for TcpLink {
    fn drop(&mut self) {
        // Closing the socket deregisters it as well; this is for a descriptor that was inherited.
        let _ = self.reactor.registry.deregister(&mut self.stream);
    }
}

/// Calls again what a signal interrupted.
fn uninterrupted(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

impl Read for TcpLink {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        uninterrupted(|| self.stream.read(into))
    }

    fn read_vectored(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        uninterrupted(|| self.stream.read_vectored(into))
    }
}

impl Write for TcpLink {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        uninterrupted(|| self.stream.write(from))
    }

    fn write_vectored(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        uninterrupted(|| self.stream.write_vectored(from))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
