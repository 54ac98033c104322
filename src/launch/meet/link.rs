//! An authenticated connection between two launchers.

use super::message::{Join, Message};
use crate::error::{self, Error};
use crate::launch::secret::random_bytes;
use crate::launch::supervise::{Event, spawn_thread};
use crate::limits::HANDSHAKE_TIMEOUT;
use crate::protocol::handshake::{
    Acceptor, ConnectionKey, Expected, Hello, Initiator, Output, Purpose, Refusal, Secret,
};
use crate::protocol::sealed::{Direction, Opener, Sealer};
use crossbeam::channel::Sender;
use socket2::{SockRef, TcpKeepalive};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// A host that vanished without closing its connections is missed after about this long.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
/// Between further probes of a silent host.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
/// Probes without an answer that end a connection.
const KEEPALIVE_PROBES: u32 = 3;
/// Messages are short and few; a peer that does not take one for this long is lost.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes read at once.
const READ_BYTES: usize = 4 << 10;

/// What the threads that listen to other launchers tell.
#[derive(Debug)]
pub(in crate::launch) enum Heard {
    /// A launcher has proven itself and introduced itself.
    Came(Join, Writer),
    /// Somebody else tried to.
    TurnedAway(SocketAddr, String),
    /// The launcher behind this connection said something.
    Said(usize, Message),
    /// The launcher behind this connection is gone.
    Lost(usize),
}

/// Why a handshake came to nothing.
#[derive(Debug)]
pub(super) enum Failure {
    /// The connection broke or was too slow.
    Io(io::Error),
    /// One end turned the other away.
    Refused(Refusal),
}

/// The sending half of a connection.
#[derive(Debug)]
pub(in crate::launch) struct Writer {
    /// Tells connections apart.
    pub(super) connection: usize,
    stream: TcpStream,
    sealer: Sealer,
}

impl Writer {
    /// Sends `message`. That it cannot be sent need not be told: the reading half hears the end.
    pub(super) fn send(&mut self, message: &Message) {
        let mut bytes = Vec::new();
        self.sealer.seal(&message.encode(), &mut bytes);
        let _ = self.stream.write_all(&bytes);
    }
}

/// The receiving half of a connection.
#[derive(Debug)]
pub(super) struct Reader {
    stream: TcpStream,
    opener: Opener,
}

impl Reader {
    /// The next message, waited for until `deadline`, if there is one. Nothing when the
    /// connection ended, or carried what is no message.
    pub(super) fn next(&mut self, deadline: Option<Instant>) -> Option<Message> {
        loop {
            if let Some(bytes) = self.opener.next_message().ok()? {
                return Message::decode(&bytes);
            }
            let mut bytes = [0; READ_BYTES];
            match read_before(&self.stream, &mut bytes, deadline) {
                Ok(0) | Err(_) => return None,
                Ok(count) => self.opener.feed(&bytes[..count]),
            }
        }
    }

    /// Tells `events` from a thread of its own what comes over `connection` until it ends.
    pub(super) fn listen(mut self, connection: usize, events: Sender<Event>) -> error::Result<()> {
        spawn_thread("ringtree-launcher", move || {
            while let Some(message) = self.next(None) {
                let _ = events.send(Event::Peer(Heard::Said(connection, message)));
            }
            let _ = events.send(Event::Peer(Heard::Lost(connection)));
        })
    }
}

/// The member's end of the handshake.
pub(super) fn initiate(stream: TcpStream, secret: &Secret) -> Result<(Writer, Reader), Failure> {
    let hello = Hello {
        purpose: Purpose::Launch,
        world_size: 2,
        group: 0,
        epoch: 0,
        attempt: 0,
        from: 1,
        to: 0,
    };
    prepare(&stream).map_err(Failure::Io)?;
    let (mut initiator, first) = Initiator::new(secret, hello, nonce()?);
    (&stream).write_all(&first).map_err(Failure::Io)?;
    let key = converse(&stream, &mut initiator)?;
    split(stream, 0, key, Direction::FromInitiator)
}

/// The coordinator's end of the handshake.
pub(super) fn accept(
    stream: TcpStream,
    connection: usize,
    secret: &Secret,
) -> Result<(Writer, Reader), Failure> {
    let expected = Expected {
        purpose: Purpose::Launch,
        world_size: 2,
        rank: 0,
        attempt: 0,
    };
    prepare(&stream).map_err(Failure::Io)?;
    let mut acceptor = Acceptor::new(secret, expected, nonce()?);
    let key = converse(&stream, &mut acceptor)?;
    split(stream, connection, key, Direction::FromAcceptor)
}

/// One end of a handshake.
trait End {
    fn bytes_wanted(&self) -> usize;
    fn input(&mut self, bytes: &[u8]) -> Result<Output, Refusal>;
}

impl End for Initiator {
    fn bytes_wanted(&self) -> usize {
        self.bytes_wanted()
    }

    fn input(&mut self, bytes: &[u8]) -> Result<Output, Refusal> {
        self.input(bytes)
    }
}

impl End for Acceptor {
    fn bytes_wanted(&self) -> usize {
        self.bytes_wanted()
    }

    fn input(&mut self, bytes: &[u8]) -> Result<Output, Refusal> {
        self.input(bytes)
    }
}

/// Carries frames to and from one end of a handshake until it has the connection's key.
fn converse(mut stream: &TcpStream, end: &mut impl End) -> Result<ConnectionKey, Failure> {
    let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
    loop {
        let mut bytes = vec![0; end.bytes_wanted()];
        read_exact_before(stream, &mut bytes, deadline).map_err(Failure::Io)?;
        match end.input(&bytes).map_err(Failure::Refused)? {
            Output::Reply(reply) => stream.write_all(&reply).map_err(Failure::Io)?,
            Output::Done { reply, key, .. } => {
                stream.write_all(&reply).map_err(Failure::Io)?;
                return Ok(key);
            }
            Output::Refuse { reply, refusal, .. } => {
                let _ = stream.write_all(&reply);
                return Err(Failure::Refused(refusal));
            }
        }
    }
}

fn nonce() -> Result<[u8; 32], Failure> {
    random_bytes().map_err(|error: Error| Failure::Io(io::Error::other(error)))
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_PROBES);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

fn split(
    stream: TcpStream,
    connection: usize,
    key: ConnectionKey,
    outward: Direction,
) -> Result<(Writer, Reader), Failure> {
    let inward = match outward {
        Direction::FromInitiator => Direction::FromAcceptor,
        Direction::FromAcceptor => Direction::FromInitiator,
    };
    let reader = Reader {
        stream: stream.try_clone().map_err(Failure::Io)?,
        opener: Opener::new(key.clone(), inward),
    };
    let writer = Writer {
        connection,
        stream,
        sealer: Sealer::new(key, outward),
    };
    Ok((writer, reader))
}

fn read_exact_before(stream: &TcpStream, bytes: &mut [u8], deadline: Instant) -> io::Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        match read_before(stream, &mut bytes[filled..], Some(deadline))? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => filled += count,
        }
    }
    Ok(())
}

fn read_before(
    mut stream: &TcpStream,
    bytes: &mut [u8],
    deadline: Option<Instant>,
) -> io::Result<usize> {
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(left)?;
        match stream.read(bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
