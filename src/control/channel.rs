//! One authenticated connection: sealed messages over a non-blocking stream.

use super::message::{decode, encode};
use crate::limits::{CONTROL_QUEUE_BYTES_MAX, CONTROL_UNACKNOWLEDGED_MAX};
use crate::protocol::handshake::ConnectionKey;
use crate::protocol::sealed::{Direction, Opener, SEALED_BYTES_MAX, Sealer};
use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use serde::Serialize;
use serde::de::DeserializeOwned;
use socket2::SockRef;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;

/// Bytes read from the system at once.
const READ_BYTES: usize = 16 << 10;

/// An authenticated connection to one other process.
pub(crate) struct Channel {
    stream: TcpStream,
    opener: Opener,
    sealer: Sealer,
    queued: Vec<u8>,
    sent: usize,
    /// Nothing more is sent.
    is_finished: bool,
    /// Why nothing more can be sent. What the other end has sent is still read.
    broken: Option<String>,
}

/// What reading a channel came to.
pub(crate) enum Received<M> {
    /// A message.
    Message(M),
    /// Nothing more now.
    Empty,
    /// Nothing more ever, and why.
    Lost(String),
}

impl Channel {
    /// The end that opened the connection, or the one that accepted it.
    pub(crate) fn new(stream: TcpStream, key: ConnectionKey, initiator: bool) -> Self {
        // If the other host vanishes with our bytes unacknowledged, the connection breaks in
        // seconds rather than after the quarter of an hour that Linux would try. A healthy peer is
        // never cut off, because its control thread always reads. If the option is refused, only
        // that case is noticed later.
        let _ = SockRef::from(&stream).set_tcp_user_timeout(Some(CONTROL_UNACKNOWLEDGED_MAX));
        let (outward, inward) = if initiator {
            (Direction::FromInitiator, Direction::FromAcceptor)
        } else {
            (Direction::FromAcceptor, Direction::FromInitiator)
        };
        Self {
            stream,
            opener: Opener::new(key.clone(), inward),
            sealer: Sealer::new(key, outward),
            queued: Vec::new(),
            sent: 0,
            is_finished: false,
            broken: None,
        }
    }

    /// From now on `registry`, and no other, reports by `token` that the channel is ready.
    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        // It fails for a channel that was not registered.
        let _ = registry.deregister(&mut self.stream);
        let interest = Interest::READABLE | Interest::WRITABLE;
        registry.register(&mut self.stream, token, interest)
    }

    /// Queues `message` and sends what the system takes now. If the connection is lost,
    /// [`Channel::flush_and_receive`] says so after what is left to read.
    pub(crate) fn send(&mut self, message: &impl Serialize) {
        self.send_encoded(&encode(message));
    }

    /// Likewise a message that is encoded already.
    pub(super) fn send_encoded(&mut self, bytes: &[u8]) {
        if self.is_finished || self.broken.is_some() {
            return;
        }
        if bytes.len() > SEALED_BYTES_MAX {
            let long = bytes.len();
            return self.breaks(format!("a control message of {long} bytes is too long"));
        }
        if self.sent > self.queued.len() / 2 {
            self.queued.drain(..self.sent);
            self.sent = 0;
        }
        if self.queued.len() - self.sent + bytes.len() > CONTROL_QUEUE_BYTES_MAX {
            return self.breaks("it reads no control messages: its queue is full".into());
        }
        self.sealer.seal(bytes, &mut self.queued);
        self.flush();
    }

    /// Nothing more can be sent.
    fn breaks(&mut self, why: String) {
        self.broken = Some(why);
        self.queued.clear();
        self.sent = 0;
    }

    /// Whether nothing more can be sent.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Sends what the system takes now.
    pub(super) fn flush(&mut self) {
        while self.sent < self.queued.len() {
            match self.stream.write(&self.queued[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return self.breaks(format!("its control connection broke: {error}")),
            }
        }
        self.queued.clear();
        self.sent = 0;
    }

    /// Bytes that have not been handed to the system.
    pub(super) fn queued_bytes(&self) -> usize {
        self.queued.len() - self.sent
    }

    /// Whether everything queued has been handed to the system.
    pub(super) fn is_flushed(&self) -> bool {
        self.queued.is_empty()
    }

    /// Says that nothing more will be sent; the other end then closes.
    pub(super) fn finish(&mut self) {
        if !std::mem::replace(&mut self.is_finished, true) {
            // It fails for a connection that is already closed.
            let _ = self.stream.shutdown(Shutdown::Write);
        }
    }

    /// Sends what the system takes now, then receives.
    pub(crate) fn flush_and_receive<M: DeserializeOwned>(&mut self) -> Received<M> {
        self.flush();
        match (self.receive(), &self.broken) {
            // What the other end sent before the connection broke still counts.
            (Received::Empty, Some(why)) => Received::Lost(why.clone()),
            (received, _) => received,
        }
    }

    /// The next message.
    fn receive<M: DeserializeOwned>(&mut self) -> Received<M> {
        loop {
            match self.opener.next_message() {
                Ok(Some(bytes)) => {
                    return match decode(&bytes) {
                        Some(message) => Received::Message(message),
                        None => Received::Lost("it sent an unknown control message".into()),
                    };
                }
                Ok(None) => {}
                Err(broken) => return Received::Lost(broken.to_string()),
            }
            let mut bytes = [0; READ_BYTES];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Received::Lost("it closed its control connection".into()),
                Ok(count) => self.opener.feed(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Received::Empty,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    return Received::Lost(format!("its control connection broke: {error}"));
                }
            }
        }
    }
}
