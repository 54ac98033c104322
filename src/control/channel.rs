//! Exchanges sealed messages with another process over a non-blocking stream.

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

/// Maximum number of bytes per read system call.
const READ_BYTES: usize = 16 << 10;

/// An authenticated connection to another process.
pub(crate) struct Channel {
    stream: TcpStream,
    opener: Opener,
    sealer: Sealer,
    queued: Vec<u8>,
    sent: usize,
    /// `true` if this end has closed its sending direction.
    is_finished: bool,
    /// The reason why nothing more can be sent, if sending has failed. Bytes that the other end has
    /// sent are still read.
    broken: Option<String>,
}

/// The result of reading a channel.
pub(crate) enum Received<M> {
    /// A message.
    Message(M),
    /// No message is available yet.
    Empty,
    /// No more messages can arrive, for this reason.
    Lost(String),
}

impl Channel {
    /// Creates one end of a connection: the end that opened it if `initiator` is `true`, or else
    /// the end that accepted it.
    pub(crate) fn new(stream: TcpStream, key: ConnectionKey, initiator: bool) -> Self {
        // If the other host vanishes with our bytes unacknowledged, the connection breaks within
        // seconds instead of the quarter of an hour for which Linux would retry. A healthy peer is
        // never disconnected, because its control thread always reads. If the option cannot be set,
        // the only effect is that such a loss is detected later.
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

    /// Registers the channel with `registry` under `token`, replacing any earlier registration.
    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        // This fails if the channel was not registered before.
        let _ = registry.deregister(&mut self.stream);
        let interest = Interest::READABLE | Interest::WRITABLE;
        registry.register(&mut self.stream, token, interest)
    }

    /// Queues `message` and sends as many bytes as the system currently accepts. If the connection
    /// is lost, [`Channel::flush_and_receive`] reports the loss after it has returned all messages
    /// that can still be read.
    pub(crate) fn send(&mut self, message: &impl Serialize) {
        self.send_encoded(&encode(message));
    }

    /// Like [`Channel::send`], but takes an encoded message.
    pub(super) fn send_encoded(&mut self, bytes: &[u8]) {
        if self.is_finished || self.broken.is_some() {
            return;
        }
        if bytes.len() > SEALED_BYTES_MAX {
            let long = bytes.len();
            return self.breaks(format!(
                "a control message of {long} bytes exceeds the limit of {SEALED_BYTES_MAX}"
            ));
        }
        if self.sent > self.queued.len() / 2 {
            self.queued.drain(..self.sent);
            self.sent = 0;
        }
        if self.queued.len() - self.sent + bytes.len() > CONTROL_QUEUE_BYTES_MAX {
            return self.breaks("it is not reading control messages, so its queue is full".into());
        }
        self.sealer.seal(bytes, &mut self.queued);
        self.flush();
    }

    /// Records the reason `why` nothing more can be sent, and clears the queue.
    fn breaks(&mut self, why: String) {
        self.broken = Some(why);
        self.queued.clear();
        self.sent = 0;
    }

    /// Returns `true` if sending has failed, so that nothing more can be sent.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Sends as many bytes as the system currently accepts.
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

    /// Returns the number of queued bytes that have not been passed to the system yet.
    pub(super) fn queued_bytes(&self) -> usize {
        self.queued.len() - self.sent
    }

    /// Returns `true` if everything in the queue has been passed to the system.
    pub(super) fn is_flushed(&self) -> bool {
        self.queued.is_empty()
    }

    /// Closes the sending direction. The other end then closes the connection.
    pub(super) fn finish(&mut self) {
        if !std::mem::replace(&mut self.is_finished, true) {
            // This fails if the connection is already closed.
            let _ = self.stream.shutdown(Shutdown::Write);
        }
    }

    /// Sends as many bytes as the system accepts now, and then receives the next message.
    pub(crate) fn flush_and_receive<M: DeserializeOwned>(&mut self) -> Received<M> {
        self.flush();
        match (self.receive(), &self.broken) {
            // Messages that the other end sent before the connection broke are still delivered.
            (Received::Empty, Some(why)) => Received::Lost(why.clone()),
            (received, _) => received,
        }
    }

    /// Receives the next message.
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
