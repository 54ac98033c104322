//! Drives a handshake by sending and receiving the frames of an initiator or an acceptor over a
//! non-blocking connection. [`connect`] blocks until a single handshake is complete. An `Acceptor`
//! drives many handshakes in one poll.

use super::cancel::Cancel;
use super::failure::Failure;
use super::user;
use super::wait::wait;
use crate::limits::{HANDSHAKE_CONFIRMATION_MAX, HANDSHAKE_TIMEOUT};
use crate::link::tcp;
use crate::protocol::handshake::{
    ANSWER_BYTES, Acceptor, ConnectionKey, Expected, Hello, Initiator, Output, Refusal, Secret,
};
use crate::random;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// A connection whose ends have authenticated each other.
pub(crate) struct Proven {
    pub(crate) stream: TcpStream,
    pub(crate) hello: Hello,
    pub(crate) key: ConnectionKey,
}

/// Connects to `remote` and waits until both ends have authenticated each other. The wait ends at
/// `deadline` and takes at most [`HANDSHAKE_TIMEOUT`], even if bytes keep arriving. Once the
/// connection is established, the first answer must arrive within `to_answer`. Fails soon after
/// `cancel` is set.
pub(crate) fn connect(
    remote: SocketAddr,
    secret: Option<&Secret>,
    hello: Hello,
    to_answer: Duration,
    deadline: Instant,
    cancel: &Cancel,
) -> Result<Proven, Failure> {
    let mut poll = Poll::new()?;
    let mut events = Events::with_capacity(4);
    let mut handshake = Handshake::dial(remote, secret, hello)?;
    let interest = Interest::READABLE | Interest::WRITABLE;
    let registry = poll.registry().try_clone()?;
    registry.register(&mut handshake.stream, Token(0), interest)?;
    let end = deadline.min(handshake.deadline);
    let mut answer_by = None;
    while !handshake.advance()? {
        let now = Instant::now();
        let (until, late) = match handshake.is_connected {
            false => (end, "the connection timed out"),
            true => {
                let answer_by = *answer_by.get_or_insert(end.min(now + to_answer));
                let is_answered = handshake.received >= ANSWER_BYTES;
                let until = if is_answered { end } else { answer_by };
                (until, "the process there did not respond to the handshake")
            }
        };
        if cancel.is_canceled() {
            return Err(Failure::Broken("startup was canceled".to_owned()));
        }
        if now >= until {
            return Err(Failure::Broken(late.to_owned()));
        }
        wait(&mut poll, &mut events, Some(cancel.next_check(until)))?;
    }
    registry.deregister(&mut handshake.stream)?;
    handshake.into_proven()
}

enum Side {
    Initiator(Initiator),
    Acceptor(Acceptor),
}

impl Side {
    fn bytes_wanted(&self) -> usize {
        match self {
            Side::Initiator(initiator) => initiator.bytes_wanted(),
            Side::Acceptor(acceptor) => acceptor.bytes_wanted(),
        }
    }

    /// Returns `true` if this end is an initiator, or an acceptor whose initiator has proven that
    /// it holds the secret.
    fn is_initiator_or_proven(&self) -> bool {
        match self {
            Side::Initiator(_) => true,
            Side::Acceptor(acceptor) => acceptor.is_proven(),
        }
    }

    fn input(&mut self, bytes: &[u8]) -> Result<Output, Refusal> {
        match self {
            Side::Initiator(initiator) => initiator.input(bytes),
            Side::Acceptor(acceptor) => acceptor.input(bytes),
        }
    }
}

/// A handshake in progress.
pub(super) struct Handshake {
    pub(super) stream: TcpStream,
    pub(super) remote: SocketAddr,
    /// The time by which the handshake must be complete.
    pub(super) deadline: Instant,
    /// Number of bytes received, which measures the progress of the handshake.
    pub(super) received: usize,
    /// The group and the peer that this end dialed, or `None` for an accepted connection.
    pub(super) dialed: Option<(u32, usize)>,
    side: Side,
    /// `true` in a job without a secret, in which this end asks the kernel for the user at the
    /// other end.
    asks_for_user: bool,
    is_connected: bool,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    done: Option<(Hello, ConnectionKey)>,
}

impl Handshake {
    /// Starts the handshake of an accepted connection.
    pub(super) fn accept(
        stream: TcpStream,
        remote: SocketAddr,
        secret: Option<&Secret>,
        expected: Expected,
    ) -> io::Result<Self> {
        tcp::set_options(&stream)?;
        let nonce = random::bytes()?;
        let acceptor = match secret {
            Some(secret) => Acceptor::new(secret, expected, nonce),
            None => Acceptor::new(&Secret::absent(), expected, nonce),
        };
        let side = Side::Acceptor(acceptor);
        Ok(Self::new(stream, remote, side, secret.is_none()))
    }

    /// Opens a connection and starts its handshake.
    pub(super) fn dial(
        remote: SocketAddr,
        secret: Option<&Secret>,
        hello: Hello,
    ) -> io::Result<Self> {
        let nonce = random::bytes()?;
        let (initiator, first) = match secret {
            Some(secret) => Initiator::new(secret, hello, nonce),
            None => Initiator::new(&Secret::absent(), hello, nonce),
        };
        let stream = TcpStream::connect(remote)?;
        tcp::set_options(&stream)?;
        let side = Side::Initiator(initiator);
        let mut handshake = Self::new(stream, remote, side, secret.is_none());
        handshake.is_connected = false;
        handshake.outbox = first;
        handshake.dialed = Some((hello.group, hello.to as usize));
        Ok(handshake)
    }

    fn new(stream: TcpStream, remote: SocketAddr, side: Side, asks_for_user: bool) -> Self {
        Self {
            stream,
            remote,
            deadline: Instant::now() + HANDSHAKE_TIMEOUT,
            received: 0,
            dialed: None,
            side,
            asks_for_user,
            is_connected: true,
            inbox: Vec::new(),
            outbox: Vec::new(),
            done: None,
        }
    }

    /// Returns `true` if the connection was accepted and its other end has not proven that it holds
    /// the secret.
    pub(super) fn is_unauthenticated(&self) -> bool {
        matches!(&self.side, Side::Acceptor(acceptor) if !acceptor.is_proven())
            && self.done.is_none()
    }

    /// Advances the handshake without blocking. Returns `true` if it is complete.
    pub(super) fn advance(&mut self) -> Result<bool, Failure> {
        if !self.is_connected && !self.check_connected()? {
            return Ok(false);
        }
        loop {
            if !self.flush()? {
                return Ok(false);
            }
            if self.done.is_some() {
                return Ok(true);
            }
            if !self.fill()? {
                return Ok(false);
            }
            let frame = std::mem::take(&mut self.inbox);
            match self.side.input(&frame) {
                Ok(Output::Reply(reply)) => {
                    self.outbox = reply;
                    if self.asks_for_user && self.side.is_initiator_or_proven() {
                        user::check(&self.stream)?;
                    }
                    if matches!(self.side, Side::Acceptor(_)) && !self.is_unauthenticated() {
                        self.deadline = Instant::now() + HANDSHAKE_CONFIRMATION_MAX;
                    }
                }
                Ok(Output::Done { reply, hello, key }) => {
                    // The acceptor waits longer than this end, so until this time it cannot have
                    // dropped the connection.
                    let is_late = Instant::now() > self.deadline + HANDSHAKE_TIMEOUT;
                    if is_late && matches!(self.side, Side::Initiator(_)) {
                        return Err(Failure::Broken("the response was read too late".into()));
                    }
                    self.outbox = reply;
                    self.done = Some((hello, key));
                }
                Ok(Output::Refuse {
                    reply,
                    proven,
                    refusal,
                }) => {
                    // A new socket normally accepts the reply immediately. If it does not, the
                    // reply is dropped.
                    let _ = self.stream.write(&reply);
                    return Err(Failure::Refused(refusal, proven));
                }
                Err(refusal) => return Err(Failure::Refused(refusal, None)),
            }
        }
    }

    /// Returns the connection after [`Handshake::advance`] has returned `true`.
    pub(super) fn into_proven(self) -> Result<Proven, Failure> {
        let cut = || Failure::Broken("the handshake is not complete".into());
        let (hello, key) = self.done.ok_or_else(cut)?;
        Ok(Proven {
            stream: self.stream,
            hello,
            key,
        })
    }

    fn check_connected(&mut self) -> Result<bool, Failure> {
        if let Some(error) = self.stream.take_error()? {
            return Err(error.into());
        }
        match self.stream.peer_addr() {
            // If no process listens on a port of this host, the kernel may choose that port as the
            // connection's source port. The connection then leads back to itself.
            Ok(remote) if self.stream.local_addr()? == remote => {
                return Err(io::Error::from(ErrorKind::ConnectionRefused).into());
            }
            Ok(_) => self.is_connected = true,
            Err(error) if error.kind() == ErrorKind::NotConnected => {}
            Err(error) => return Err(error.into()),
        }
        Ok(self.is_connected)
    }

    /// Sends as many bytes as the system accepts now. Returns `true` if nothing is left to send.
    fn flush(&mut self) -> Result<bool, Failure> {
        while !self.outbox.is_empty() {
            match self.stream.write(&self.outbox) {
                Ok(count) => {
                    self.outbox.drain(..count);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    /// Receives bytes of the next frame. Returns `true` if the frame is complete. Never reads
    /// beyond the frame, because bytes after the last frame of a handshake belong to the channel
    /// that takes over the connection.
    fn fill(&mut self) -> Result<bool, Failure> {
        let wanted = self.side.bytes_wanted();
        while self.inbox.len() < wanted {
            let mut bytes = [0; 256];
            let room = (wanted - self.inbox.len()).min(bytes.len());
            match self.stream.read(&mut bytes[..room]) {
                Ok(0) => return Err(Failure::Broken("the connection was closed".into())),
                Ok(count) => {
                    self.received += count;
                    self.inbox.extend_from_slice(&bytes[..count]);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }
}
