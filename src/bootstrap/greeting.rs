//! One handshake in progress over one non-blocking connection.

use crate::protocol::handshake::{
    Acceptor, ConnectionKey, Expected, Hello, Initiator, NONCE_BYTES, Output, Refusal, Secret,
};
use crate::link::tcp;
use mio::net::TcpStream;
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Fresh random bytes.
pub(super) fn nonce() -> io::Result<[u8; NONCE_BYTES]> {
    let mut bytes = [0; NONCE_BYTES];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(bytes)
}

/// Why a handshake brought no connection.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// One end refused the other; if this end did, with what the other had proven to be.
    Refused(Refusal, Option<Hello>),
    /// The connection did not last.
    Broken(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Refused(refusal, _) => refusal.fmt(formatter),
            Failure::Broken(why) => formatter.write_str(why),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::Broken(error.to_string())
    }
}

/// A connection both of whose ends have proven themselves.
pub(super) struct Greeted {
    pub(super) stream: TcpStream,
    pub(super) hello: Hello,
    pub(super) key: ConnectionKey,
}

enum Side {
    Dials(Initiator),
    Accepts(Acceptor),
}

impl Side {
    fn bytes_wanted(&self) -> usize {
        match self {
            Side::Dials(initiator) => initiator.bytes_wanted(),
            Side::Accepts(acceptor) => acceptor.bytes_wanted(),
        }
    }

    fn input(&mut self, bytes: &[u8]) -> Result<Output, Refusal> {
        match self {
            Side::Dials(initiator) => initiator.input(bytes),
            Side::Accepts(acceptor) => acceptor.input(bytes),
        }
    }
}

/// A handshake in progress.
pub(super) struct Greeting {
    pub(super) stream: TcpStream,
    pub(super) remote: SocketAddr,
    pub(super) began: Instant,
    /// `None` once the other end is proven: it may then take its time.
    pub(super) deadline: Option<Instant>,
    /// What was dialed, if this end did: group and peer.
    pub(super) dialed: Option<(u32, usize)>,
    side: Side,
    connected: bool,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    done: Option<(Hello, ConnectionKey)>,
}

impl Greeting {
    /// Takes a connection that came in.
    pub(super) fn accept(
        stream: TcpStream,
        remote: SocketAddr,
        secret: &Secret,
        expected: Expected,
        patience: Duration,
    ) -> io::Result<Self> {
        tcp::set_options(&stream)?;
        let side = Side::Accepts(Acceptor::new(secret, expected, nonce()?));
        Ok(Self::new(stream, remote, side, patience))
    }

    /// Opens a connection.
    pub(super) fn dial(
        remote: SocketAddr,
        secret: &Secret,
        hello: Hello,
        patience: Duration,
    ) -> io::Result<Self> {
        let (initiator, first) = Initiator::new(secret, hello, nonce()?);
        let stream = TcpStream::connect(remote)?;
        tcp::set_options(&stream)?;
        let mut greeting = Self::new(stream, remote, Side::Dials(initiator), patience);
        greeting.connected = false;
        greeting.outbox = first;
        greeting.dialed = Some((hello.group, hello.to as usize));
        Ok(greeting)
    }

    fn new(stream: TcpStream, remote: SocketAddr, side: Side, patience: Duration) -> Self {
        let began = Instant::now();
        Self {
            stream,
            remote,
            began,
            deadline: Some(began + patience),
            dialed: None,
            side,
            connected: true,
            inbox: Vec::new(),
            outbox: Vec::new(),
            done: None,
        }
    }

    /// Goes as far as it can now; whether the handshake is complete.
    pub(super) fn advance(&mut self) -> Result<bool, Failure> {
        if !self.connected && !self.check_connected()? {
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
                    if matches!(&self.side, Side::Accepts(acceptor) if acceptor.is_proven()) {
                        self.deadline = None;
                    }
                }
                Ok(Output::Done { reply, hello, key }) => {
                    self.outbox = reply;
                    self.done = Some((hello, key));
                }
                Ok(Output::Refuse {
                    reply,
                    proven,
                    refusal,
                }) => {
                    // Told if the socket takes it at once, as a new one always does.
                    let _ = self.stream.write(&reply);
                    return Err(Failure::Refused(refusal, proven));
                }
                Err(refusal) => return Err(Failure::Refused(refusal, None)),
            }
        }
    }

    /// The connection, once [`Greeting::advance`] said that the handshake is complete.
    pub(super) fn into_greeted(self) -> Option<Greeted> {
        let (hello, key) = self.done?;
        Some(Greeted {
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
            Ok(_) => self.connected = true,
            Err(error) if error.kind() == ErrorKind::NotConnected => {}
            Err(error) => return Err(error.into()),
        }
        Ok(self.connected)
    }

    /// Whether everything is sent.
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

    /// Whether the next frame is whole. Reads no byte beyond it: what follows the last frame of a
    /// handshake belongs to whoever takes the connection over.
    fn fill(&mut self) -> Result<bool, Failure> {
        let wanted = self.side.bytes_wanted();
        while self.inbox.len() < wanted {
            let mut bytes = [0; 256];
            let room = (wanted - self.inbox.len()).min(bytes.len());
            match self.stream.read(&mut bytes[..room]) {
                Ok(0) => return Err(Failure::Broken("the connection was closed".into())),
                Ok(count) => self.inbox.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }
}
