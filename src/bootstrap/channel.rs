//! One control connection: sealed messages over a non-blocking stream.

use super::messages::Message;
use crate::limits::{CONTROL_QUEUE_BYTES_MAX, CONTROL_UNACKNOWLEDGED_MAX};
use crate::protocol::handshake::ConnectionKey;
use crate::protocol::sealed::{Direction, Opener, SEALED_BYTES_MAX, Sealer};
use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use socket2::SockRef;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;

/// Bytes read from the system at once.
const READ_BYTES: usize = 16 << 10;

/// A control connection to one rank.
pub(super) struct Channel {
    stream: TcpStream,
    opener: Opener,
    sealer: Sealer,
    queued: Vec<u8>,
    sent: usize,
}

/// What reading a channel came to.
pub(super) enum Received {
    /// A message.
    Message(Message),
    /// Nothing more now.
    Empty,
    /// Nothing more ever, and why.
    Lost(String),
}

impl Channel {
    /// The end that opened the connection, or the one that accepted it.
    pub(super) fn new(stream: TcpStream, key: ConnectionKey, initiator: bool) -> Self {
        // A host that vanished with our bytes unacknowledged is given up in seconds, not in the
        // quarter of an hour that the system would try. Safe here because a control thread always
        // reads. Without it only that case is noticed later.
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
        }
    }

    pub(super) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        registry.register(&mut self.stream, token, interest)
    }

    pub(super) fn reregister(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        registry.reregister(&mut self.stream, token, interest)
    }

    /// Queues `message` and sends what the system takes now; the error says why the connection
    /// is lost.
    pub(super) fn send(&mut self, message: &Message) -> Result<(), String> {
        let bytes = message.encode();
        if bytes.len() > SEALED_BYTES_MAX {
            return Err(format!(
                "a control message of {} bytes is too long",
                bytes.len()
            ));
        }
        if self.sent > self.queued.len() / 2 {
            self.queued.drain(..self.sent);
            self.sent = 0;
        }
        if self.queued.len() - self.sent + bytes.len() > CONTROL_QUEUE_BYTES_MAX {
            return Err("it reads no control messages: its queue is full".into());
        }
        self.sealer.seal(&bytes, &mut self.queued);
        self.flush()
    }

    /// Sends what the system takes now.
    pub(super) fn flush(&mut self) -> Result<(), String> {
        while self.sent < self.queued.len() {
            match self.stream.write(&self.queued[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(format!("its control connection broke: {error}")),
            }
        }
        self.queued.clear();
        self.sent = 0;
        Ok(())
    }

    /// Whether everything queued has been handed to the system.
    pub(super) fn is_flushed(&self) -> bool {
        self.queued.is_empty()
    }

    /// Says that nothing more will be sent; the other end then closes.
    pub(super) fn finish(&mut self) {
        // A connection that is already gone needs no farewell.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// The next message.
    pub(super) fn next(&mut self) -> Received {
        loop {
            match self.opener.next_message() {
                Ok(Some(bytes)) => {
                    return match Message::decode(&bytes) {
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
